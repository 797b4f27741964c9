// The card of an arm: its method, its plane, its numbers and its sliders.

import { makeControl } from "./controls.js";
import { TERMS, plain } from "./explain.js";
import { count, loss, number, percent } from "./format.js";
import { colours, prepare } from "./colours.js";
import { drawField } from "./field.js";

const NUMBERS = [
  ["test_accuracy", "Test accuracy", percent], ["train_accuracy", "Train accuracy", percent],
  ["test_loss", "Test loss", loss], ["train_loss", "Train loss", loss],
  ["residual", "Residual", (value) => number(value, 2)], ["curvature", "Curvature", (value) => number(value, 3)],
];

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/** What a term looks like where it labels no control. */
export function term(name, text) {
  const made = element("button", { type: "button", className: "term", textContent: text });
  made.dataset.term = name;
  return made;
}

export class ArmCard {
  /**
   * `change(name, value, done)` is called with what is set, such as "arms.0.lr"; `paint(x, y)` with a place of the plane;
   * `say(text)` with what is to be read aloud.
   */
  constructor(number, catalogue, { change, paint, say }) {
    this.number = number;
    this.letter = "AB"[number];
    this.catalogue = catalogue;
    this.change = change;
    this.say = say;
    this.controls = {};
    this.build(paint);
  }

  build(paint) {
    const id = `arms.${this.number}`;
    this.select = element("select", { id: `${id}.method-input` });
    for (const [name, { title }] of Object.entries(this.catalogue.methods)) {
      this.select.append(element("option", { value: name, textContent: title }));
    }
    this.select.addEventListener("change", () => {
      this.change(id, { method: this.select.value, ...this.catalogue.methods[this.select.value].settings }, true);
    });
    const label = element("label", { htmlFor: this.select.id, className: "badge term", textContent: this.letter });
    label.dataset.term = "method";
    this.about = element("p", { className: "about" });
    this.canvas = element("canvas", { className: "plane", tabIndex: -1 });
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Plane of arm ${this.letter}`); // until there is more to say
    this.stopped = element("p", { className: "stopped", hidden: true });
    this.shown = term("field", "Probability of class 1");
    this.highest = element("span", { textContent: "1" });
    this.key = element("p", { className: "key" },
      this.shown, element("span", { className: "scale" }, "0", element("span", { className: "ramp" }), this.highest));
    this.numbers = element("dl", { className: "numbers" });
    this.values = {};
    for (const [name, text] of NUMBERS) {
      this.values[name] = element("dd");
      this.values[name].dataset.number = name;
      this.numbers.append(element("div", {}, element("dt", {}, term(name, text)), this.values[name]));
    }
    this.sliders = element("div", { className: "sliders" });
    this.notes = element("ul", { className: "notes" });
    const frame = element("div", { className: "frame" }, this.canvas, this.stopped);
    this.card = element("article", { className: `card arm arm-${this.letter.toLowerCase()}` },
      element("header", {}, label, this.select), this.about, frame, this.key, this.numbers, this.sliders, this.notes);
    this.card.setAttribute("aria-label", `Arm ${this.letter}`);
    this.card.dataset.arm = this.letter;
    this.listenToPaint(paint);
  }

  listenToPaint(paint) {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [(2 * (event.clientX - box.left)) / box.width - 1, 1 - (2 * (event.clientY - box.top)) / box.height];
    };
    let last = null;
    const touch = (event) => {
      const [x, y] = place(event);
      if (Math.max(Math.abs(x), Math.abs(y)) > 1) return; // a drag that left the plane
      if (last && Math.hypot(x - last[0], y - last[1]) < 0.05) return;
      last = [x, y];
      paint(x, y);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.painting || event.button) return;
      event.preventDefault();
      this.canvas.setPointerCapture(event.pointerId);
      last = null;
      touch(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.painting && this.canvas.hasPointerCapture(event.pointerId)) touch(event);
    });
    this.cross = [0, 0];
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const where = () => this.cross.map((value) => Number(value.toFixed(2))).join(", ");
      if (!this.painting) return;
      if (moves[event.key]) {
        this.cross = this.cross.map((value, i) => Math.max(-1, Math.min(1, value + 0.05 * moves[event.key][i])));
        this.say(`Cross at ${where()}.`);
        this.redraw();
      } else if (event.key === "Enter") {
        paint(...this.cross);
        this.say(`Painted at ${where()}.`);
      } else return;
      event.preventDefault();
    });
    for (const kind of ["focus", "blur"]) this.canvas.addEventListener(kind, () => this.redraw());
  }

  setPainting(on) {
    this.painting = on;
    this.canvas.tabIndex = on ? 0 : -1;
    this.canvas.classList.toggle("painting", on);
    this.canvas.setAttribute("role", on ? "application" : "img");
    if (on) this.canvas.setAttribute("aria-roledescription", "plane to paint on");
    else this.canvas.removeAttribute("aria-roledescription");
  }

  /** Shows the settings of the arm; sliders are made anew when the method is another one. */
  setSettings(settings) {
    const { method, ...values } = settings;
    if (method !== this.method) {
      this.method = method;
      this.select.value = method;
      const { sentence, equation } = TERMS[method];
      this.about.replaceChildren(sentence, " ");
      const line = element("span", { className: "equation" });
      line.innerHTML = equation;
      this.about.append(line);
      this.canvas.title = "";
      this.controls = {};
      for (const name of Object.keys(values)) {
        const control = this.catalogue.arm_controls[name];
        const place = `arms.${this.number}.${name}`;
        this.controls[name] = makeControl(place, name, control, (value, done) => this.change(place, value, done));
      }
      this.sliders.replaceChildren(...Object.values(this.controls));
    }
    for (const [name, value] of Object.entries(values)) this.controls[name].set(value);
    for (const name of ["radius", "output_radius"]) {
      if ("space" in values) this.controls[name].hidden = !["circles", "spheres"].includes(values.space);
    }
  }

  get title() {
    return this.catalogue.methods[this.method]?.title ?? "";
  }

  /** Takes up an arm of a frame. */
  show(arm, frame, plane, options) {
    this.frame = { arm, frame, plane, options };
    for (const [name, , write] of NUMBERS) {
      const curve = arm.parts.curvature?.content;
      const [value, spread] = name === "curvature" ? [curve ? curve.now : null, 0] : arm.numbers[name];
      this.values[name].textContent = write(value);
      if (spread) {
        const text = ` ± ${name.endsWith("accuracy") ? (100 * spread).toFixed(1) : number(spread, 2)}`;
        this.values[name].append(element("span", { className: "deviation", textContent: text }));
      }
    }
    this.showSpread(options.view === "spread" && arm.field.spread !== undefined);
    this.showStopped(arm.stopped && `Stopped at step ${count(arm.step)}: ${arm.stopped.replace(/\.$/, "")}. Choose a smaller step size, then Reset.`);
    if (this.noted !== arm.notes.join("\n")) {
      this.noted = arm.notes.join("\n");
      this.notes.replaceChildren(...arm.notes.map((note) => element("li", { textContent: note })));
    }
    this.redraw();
  }

  /** The key of the plane's colours. */
  showSpread(on) {
    this.shown.textContent = on ? "Spread over replicas" : "Probability of class 1";
    this.shown.dataset.term = on ? "spread" : "field";
    this.highest.textContent = on ? "½" : "1";
    this.key.classList.toggle("spread", on);
  }

  showStopped(text) {
    this.stopped.hidden = !text;
    this.stopped.classList.remove("waiting");
    if (text && this.stopped.textContent !== text) this.say(`Arm ${this.letter}: ${text}`);
    this.stopped.textContent = text;
  }

  /** An arm without a frame: there are no points yet. */
  clear(options) {
    this.frame = { arm: null, plane: null, options };
    for (const [name] of NUMBERS) this.values[name].textContent = "–";
    this.stopped.hidden = false;
    this.stopped.classList.add("waiting");
    this.stopped.textContent = "Paint points here: click or drag. At least two, better some of both classes.";
    this.redraw();
  }

  redraw() {
    const { context, width } = prepare(this.canvas);
    const { arm, frame, plane, options } = this.frame ?? {};
    const field = arm && {
      side: arm.field.side,
      logits: frame.arrays[arm.field.logits],
      spread: arm.field.spread === undefined ? null : frame.arrays[arm.field.spread],
    };
    const cross = this.painting && document.activeElement === this.canvas ? this.cross : null;
    drawField(context, width, field, plane, { ...options, cross });
  }

  /** The text of the picture for those who do not see it. */
  describe() {
    if (!this.frame) return;
    const { arm } = this.frame;
    const [accuracy] = arm?.numbers.test_accuracy ?? [];
    const found = arm
      ? `after ${count(arm.step)} steps ${percent(accuracy)} of new points lie on their side of the boundary. ${plain("field")}`
      : "there are no points yet.";
    const keys = this.painting ? " Arrow keys move the cross, Enter paints." : "";
    this.canvas.setAttribute("aria-label", `Plane of arm ${this.letter}, ${this.title}: ${found}${keys}`);
  }
}

export const colourOf = (number) => colours.arms[number];
