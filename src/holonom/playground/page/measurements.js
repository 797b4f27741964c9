// The cards below the planes: curves, temperatures, weights, the line from the start.

import { colours, prepare } from "./colours.js";
import { drawChart } from "./chart.js";
import { drawTemperatures, drawWeights, empty } from "./panels.js";
import { columns } from "./message.js";
import { count, loss, number, percent } from "./format.js";
import { term } from "./arms.js";

const COLUMNS = ["step", "train_loss", "test_loss", "train_accuracy", "test_accuracy", "residual"];

/** Series of every arm by the names of COLUMNS. */
const series = (frame) => frame.arms.map((arm) => {
  const found = columns(frame.arrays[arm.series], COLUMNS.length);
  return Object.fromEntries(COLUMNS.map((name, i) => [name, found[i]]));
});

const part = (frame, number, kind) => {
  const found = frame.arms[number]?.parts[kind];
  return found && { ...found, array: (index) => frame.arrays[found.base + index] };
};

const pair = (frame, train, test) => series(frame).flatMap((own, i) => [
  { x: own.step, y: own[train], colour: colours.arms[i], dashed: true },
  { x: own.step, y: own[test], colour: colours.arms[i] },
]);

const weightsOf = (which) => (context, width, height, frame) => {
  const found = part(frame, which, "weights");
  drawWeights(context, width, height, found?.content, (index) => found.array(index), colours.arms[which]);
};

/** [id, term, title, draw, describe, wide] of every card. */
const CARDS = [
  ["loss", "loss", "Loss",
    (context, width, height, frame) => drawChart(context, width, height, pair(frame, "train_loss", "test_loss"), { low: 0 }),
    (frame) => frame.arms.map(({ numbers }, i) => `${"AB"[i]}: test ${loss(numbers.test_loss[0])}, training ${loss(numbers.train_loss[0])}`)],
  ["accuracy", "accuracy", "Accuracy",
    (context, width, height, frame) => drawChart(context, width, height, pair(frame, "train_accuracy", "test_accuracy"), { high: 1, percent: true }),
    (frame) => frame.arms.map(({ numbers }, i) => `${"AB"[i]}: test ${percent(numbers.test_accuracy[0])}, training ${percent(numbers.train_accuracy[0])}`)],
  ["temperatures", "temperatures", "Temperatures",
    (context, width, height, frame) => drawTemperatures(context, width, height, frame.arms.map((_, i) => ({
      ...part(frame, i, "temperatures")?.content, colour: colours.arms[i], name: "AB"[i],
    }))),
    (frame) => frame.arms.flatMap((_, i) => (part(frame, i, "temperatures")?.content.layers ?? []).map(([target, kinetic, configurational], layer) =>
      `${"AB"[i]} layer ${layer + 1}: set ${number(target)}, kinetic ${number(kinetic)}, configurational ${number(configurational)}`))],
  ["line", "line", "Loss along a line",
    (context, width, height, frame) => drawChart(context, width, height, frame.arms.flatMap((_, i) => {
      const found = part(frame, i, "line");
      return found ? [{ x: found.array(found.content.along), y: found.array(found.content.loss), colour: colours.arms[i] }] : [];
    }), { low: 0, marks: [1], to: 1.25 }),
    () => []],
  ["weights-a", "weights", "Weights of A", weightsOf(0),
    (frame) => (part(frame, 0, "weights")?.content ?? []).map(({ layer, shape, space }) => `layer ${layer}, ${shape.join(" by ")}: ${space}`)],
  ["weights-b", "weights", "Weights of B", weightsOf(1),
    (frame) => (part(frame, 1, "weights")?.content ?? []).map(({ layer, shape, space }) => `layer ${layer}, ${shape.join(" by ")}: ${space}`)],
  ["residuals", "residuals", "Constraint residual",
    (context, width, height, frame) => drawChart(context, width, height,
      series(frame).map((own, i) => ({ x: own.step, y: own.residual, colour: colours.arms[i] })), { log: true, empty: "no constraint" }),
    (frame) => frame.arms.map(({ numbers }, i) => `${"AB"[i]}: ${number(numbers.residual[0], 2)}`)],
  ["curvatures", "curvatures", "Curvature of the boundary",
    (context, width, height, frame) => drawChart(context, width, height, frame.arms.flatMap((_, i) => {
      const found = part(frame, i, "curvature");
      if (!found) return [];
      const [x, y] = columns(found.array(found.content.series), 2);
      return [{ x, y, colour: colours.arms[i] }];
    }), { low: 0, empty: "no boundary yet" }),
    (frame) => frame.arms.map((_, i) => `${"AB"[i]}: ${number(part(frame, i, "curvature")?.content.now ?? null)}`)],
];

const LEGENDS = {
  loss: "— test   ┄ train", accuracy: "— test   ┄ train", temperatures: "❘ as set   ● momenta   ◇ positions",
  line: "0 = start   1 = now", residuals: "along the run", curvatures: "along the run",
};
const BY_SPACE = { Circle: "every weight on its circle", Sphere: "every row inside its sphere" };

/** What is drawn of weights: it depends on where they live. */
function legendOf(layers) {
  const kinds = (layers ?? []).map(({ space }) => BY_SPACE[space] ?? "singular values, largest first");
  return [...new Set(kinds)].join("; ");
}

/** A letter in its arm's colour. */
function arm(letter) {
  const made = document.createElement("span");
  made.className = `of of-${letter.toLowerCase()}`;
  made.textContent = letter;
  return made;
}

export class Measurements {
  constructor(section) {
    this.cards = CARDS.map(([id, name, title, draw, describe]) => {
      const card = document.createElement("article");
      card.className = "card chart";
      card.dataset.chart = id;
      const heading = document.createElement("h2");
      const legend = document.createElement("p");
      legend.className = "legend";
      legend.textContent = LEGENDS[id] ?? "";
      heading.append(term(name, title));
      if (!id.startsWith("weights")) heading.append(arm("A"), arm("B"));
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", title);
      card.append(heading, legend, canvas);
      section.append(card);
      return { id, title, card, legend, canvas, draw, describe };
    });
  }

  show(frame, arms) {
    this.frame = frame;
    for (const { id, card, legend, canvas, draw } of this.cards) {
      card.hidden = id === "weights-b" && arms < 2;
      if (card.hidden) continue;
      if (id.startsWith("weights")) {
        const text = legendOf(part(frame, id === "weights-a" ? 0 : 1, "weights")?.content);
        if (legend.textContent !== text) legend.textContent = text;
      }
      const { context, width, height } = prepare(canvas);
      if (width) draw(context, width, height, frame);
    }
  }

  clear() {
    for (const { canvas } of this.cards) {
      const { context, width, height } = prepare(canvas);
      empty(context, width, height, "no points yet");
    }
    this.frame = null;
  }

  describe() {
    for (const { title, canvas, describe } of this.cards) {
      const found = this.frame
        ? [`${title} after ${count(this.frame.step)} steps`, ...describe(this.frame)]
        : [title, "nothing to show yet"];
      canvas.setAttribute("aria-label", found.join(". "));
    }
  }
}
