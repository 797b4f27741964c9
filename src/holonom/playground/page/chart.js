// A chart of lines: linear or logarithmic axis, a few ticks, no more.

import { colours } from "./colours.js";
import { number, short } from "./format.js";

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const MARGIN = { left: 42, right: 10, top: 8, bottom: 20 };

/** About `most` round values from low to high. */
export function ticks(low, high, most = 4) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found;
}

function decades(low, high) {
  const found = [];
  const gap = Math.max(1, Math.ceil((Math.log10(high) - Math.log10(low)) / 4));
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += gap) found.push(10 ** power);
  return found;
}

/**
 * `lines`: [{x, y, colour, dashed}] of arrays; `options`: {log, low, high, percent, marks: [x], from, to}.
 * Values that are not numbers interrupt a line.
 */
export function drawChart(context, width, height, lines, options = {}) {
  const usable = (value) => Number.isFinite(value) && (!options.log || value > 0);
  const ys = lines.flatMap(({ y }) => Array.from(y).filter(usable));
  context.font = FONT;
  context.fillStyle = colours.quiet;
  if (!ys.length) {
    context.textAlign = "center";
    context.fillText(options.empty ?? "nothing to show", width / 2, height / 2);
    return;
  }
  const sorted = [...ys].sort((a, b) => a - b);
  let low = options.low ?? sorted[0];
  // A few outliers of a long series do not flatten the rest.
  let high = options.high ?? sorted[Math.floor((sorted.length > 200 ? 0.995 : 1) * (sorted.length - 1))];
  if (options.log) {
    const room = Math.max(2, Math.sqrt((10 * low) / high)); // at least a decade in all
    low /= room;
    high *= room;
  } else if (options.high === undefined) high = Math.max(high + 0.05 * (high - low), low + 1e-9);
  const from = options.from ?? 0;
  const last = Math.max(options.to ?? 0, ...lines.map(({ x }) => x[x.length - 1] ?? 0));
  const to = last > from ? last : from + 1; // before the first step
  const area = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
  const at = (value) => (options.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const px = (value) => area.x + ((value - from) / (to - from)) * area.w;
  const py = (value) => area.y + area.h * (1 - Math.max(-0.02, Math.min(1.03, at(value))));

  context.lineWidth = 1;
  context.strokeStyle = colours.line;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of options.log ? decades(low, high) : ticks(low, high)) {
    context.beginPath();
    context.moveTo(area.x, py(value));
    context.lineTo(area.x + area.w, py(value));
    context.stroke();
    context.fillText(options.percent ? `${number(100 * value)} %` : number(value), area.x - 6, py(value));
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const value of ticks(from, to, 4)) {
    const text = short(value), half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(px(value), width - half - 1), area.y + area.h + 6);
  }
  for (const mark of options.marks ?? []) {
    context.setLineDash([2, 3]);
    context.strokeStyle = colours.quiet;
    context.beginPath();
    context.moveTo(px(mark), area.y);
    context.lineTo(px(mark), area.y + area.h);
    context.stroke();
  }
  context.save();
  context.beginPath();
  context.rect(area.x - 2, area.y - 2, area.w + 4, area.h + 4);
  context.clip();
  context.lineWidth = 1.8;
  context.lineJoin = "round";
  for (const { x, y, colour, dashed } of lines) {
    context.strokeStyle = colour;
    context.globalAlpha = dashed ? 0.75 : 1;
    context.setLineDash(dashed ? [4, 3] : []);
    context.beginPath();
    let drawing = false;
    for (let i = 0; i < x.length; i++) {
      if (!usable(y[i])) drawing = false;
      else if (drawing) context.lineTo(px(x[i]), py(y[i]));
      else {
        context.moveTo(px(x[i]) - 0.5, py(y[i])); // so that a single point is seen
        context.lineTo(px(x[i]) + 0.5, py(y[i]));
        drawing = true;
      }
    }
    context.stroke();
  }
  context.restore();
  context.setLineDash([]);
}
