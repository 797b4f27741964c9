// Controls made from the server's catalogue: a slider with its number, a menu, or a word.

import { number } from "./format.js";
import { plain } from "./explain.js";

const STEPS = 120; // positions of a logarithmic slider

const LABELS = {
  data: "Shape", turns: "Turns", waves: "Half waves", noise: "Noise", scale: "Scale", points: "Points", depth: "Hidden layers",
  width: "Width", activation: "Activation", start: "Initial weights", replicas: "Runs", batch: "Batch size", lr: "Step size h",
  momentum: "Momentum μ", weight_decay: "Weight decay λ", friction: "Friction γ", temperature: "Temperature τ",
  output_temperature: "Output τ₂", radius: "Radius r", output_radius: "Output radius r₁", coupling: "Coupling ε",
  driving_noise: "Driving noise σ", every: "Slow part every", scheme: "Word", space: "Space", seed: "Seed",
};

const CHOICES = {
  spirals: "Spirals", waves: "Waves", circles: "Circles", xor: "Xor", painted: "Painted by hand", default: "PyTorch's",
  small: "near zero", free: "free", spheres: "on spheres", orthogonal: "orthogonal", 1: "one", 16: "16 replicas",
};
const IN_SPACE = { circles: "on circles" };

export const labelOf = (name) => LABELS[name] ?? name;

const isLog = (control) => control.scale.includes("log");
const positions = ({ low, high, step, ...control }) => (isLog(control) ? STEPS : Math.round((high - low) / step));

/** Position of a value on a slider. Where there is a stop for zero it is position 0. */
function toPosition(control, value) {
  const first = control.zero ? 1 : 0;
  if (first && !value) return 0;
  const { low, high, step } = control;
  if (!isLog(control)) return Math.round((value - low) / step);
  return Math.round(first + Math.max(0, Math.min(1, Math.log(value / low) / Math.log(high / low))) * (STEPS - first));
}

function fromPosition(control, position) {
  const first = control.zero ? 1 : 0;
  if (first && position === 0) return control.zero === "derived" ? null : 0;
  const { low, high, step } = control;
  if (!isLog(control)) return Number((low + position * step).toPrecision(6));
  const value = low * (high / low) ** ((position - first) / (STEPS - first));
  const rounded = control.scale.startsWith("whole") ? Math.round(value) : Number(value.toPrecision(2));
  return Math.max(low, Math.min(high, rounded));
}

/** The number that a text is; else the text itself, for the server to refuse. */
export function typed(text) {
  return text.trim() === "" || !Number.isFinite(Number(text)) ? text : Number(text);
}

const show = (control, value) => (value === null ? "derived" : number(value, 6));

/**
 * A control: an element with `set(value)`, which does not call back. `change(value, done)` is called while a slider
 * moves, and with done = true when it is let go.
 */
export function makeControl(id, name, control, change) {
  const box = document.createElement("div");
  box.className = "control";
  box.dataset.name = id;
  const label = document.createElement("label");
  label.textContent = labelOf(name);
  label.htmlFor = `${id}-input`;
  label.className = "term";
  label.dataset.term = name;
  const about = document.createElement("span");
  about.id = `${id}-about`;
  about.hidden = true;
  about.textContent = plain(name);
  box.append(label, about);
  const make = { number: name === "replicas" ? makeReplicas : makeSlider, choice: makeChoice, word: makeWord }[control.kind];
  box.set = make(box, id, name, control, change);
  for (const input of box.querySelectorAll("input, select")) {
    if (!input.classList.contains("exact")) input.setAttribute("aria-describedby", about.id);
  }
  box.mark = (wrong) => {
    box.classList.toggle("wrong", wrong);
    for (const input of box.querySelectorAll("input, select")) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  };
  return box;
}

function makeSlider(box, id, name, control, change) {
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", id: `${id}-input`, min: 0, step: 1, max: positions(control) });
  const value = () => fromPosition(control, Number(slider.value));
  let shown = null; // the value that the slider is at
  const exact = document.createElement("input");
  Object.assign(exact, { type: "text", inputMode: "decimal", className: "exact", autocomplete: "off", spellcheck: false });
  exact.setAttribute("aria-label", `${labelOf(name)}, as a number`);
  const display = (now) => {
    shown = now;
    exact.value = show(control, now);
    slider.setAttribute("aria-valuetext", show(control, now));
    slider.style.setProperty("--share", `${(100 * slider.value) / slider.max}%`);
  };
  slider.addEventListener("input", () => {
    // Small whole numbers are several positions apart: a key moves on to the next one.
    const way = Math.sign(Number(slider.value) - toPosition(control, shown));
    let at = Number(slider.value);
    while (way && fromPosition(control, at) === shown && at + way >= 0 && at + way <= slider.max) at += way;
    slider.value = at;
    display(value());
    change(value(), false);
  });
  slider.addEventListener("change", () => change(value(), true));
  exact.addEventListener("change", () => {
    const text = exact.value.trim();
    change(control.zero === "derived" && (text === "" || text === "derived") ? null : typed(text), true);
  });
  box.append(exact, slider);
  return (now) => {
    if (slider.matches(":active")) return; // it is being moved
    slider.value = toPosition(control, now);
    const text = exact.value;
    display(now);
    if (document.activeElement === exact) exact.value = text; // a number is being typed
  };
}

function options(select, values, name) {
  for (const value of values) {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = (name === "space" && IN_SPACE[value]) || CHOICES[value] || value;
    select.append(option);
  }
}

function makeChoice(box, id, name, control, change) {
  const select = document.createElement("select");
  select.id = `${id}-input`;
  options(select, control.among, name);
  select.addEventListener("change", () => change(select.value, true));
  box.append(select);
  return (now) => {
    select.value = now;
  };
}

function makeReplicas(box, id, name, control, change) {
  const select = document.createElement("select");
  select.id = `${id}-input`;
  options(select, [1, 16], name);
  select.addEventListener("change", () => change(Number(select.value), true));
  box.append(select);
  return (now) => {
    if (![...select.options].some((option) => Number(option.value) === now)) options(select, [now], name);
    select.value = now;
  };
}

function makeWord(box, id, name, control, change) {
  const input = document.createElement("input");
  Object.assign(input, { id: `${id}-input`, type: "text", autocomplete: "off", spellcheck: false, maxLength: 40 });
  input.className = "word";
  input.autocapitalize = "characters";
  input.addEventListener("change", () => change(input.value.trim().toUpperCase(), true));
  box.append(input);
  return (now) => {
    if (document.activeElement !== input) input.value = now;
  };
}
