// Temperatures of layers, and weights in their spaces.

import { colours } from "./colours.js";
import { number } from "./format.js";

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export function empty(context, width, height, text) {
  context.font = FONT;
  context.fillStyle = colours.quiet;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, width / 2, height / 2);
}

/** Rows of layers on one logarithmic axis: a bar at the target, a disc (kinetic) and a diamond (configurational). */
export function drawTemperatures(context, width, height, arms) {
  const rows = arms.flatMap(({ layers, colour, name }) =>
    (layers ?? []).map((values, i) => ({ values, colour, label: `${name} ${i + 1}` })));
  const known = rows.flatMap(({ values }) => values.filter((value) => value !== null && value > 0));
  if (!known.length) {
    const some = arms.some(({ measured }) => measured);
    return empty(context, width, height, some ? "nothing is read yet" : "these methods have no temperature");
  }
  const low = 10 ** Math.floor(Math.log10(Math.min(...known)) - 0.05), high = 10 ** Math.ceil(Math.log10(Math.max(...known)) + 0.05);
  const left = 34, right = 12, bottom = 20, top = 6;
  const px = (value) => left + (Math.log(value / low) / Math.log(high / low)) * (width - left - right);
  context.font = FONT;
  context.textBaseline = "top";
  context.textAlign = "center";
  const powers = Math.round(Math.log10(high / low));
  for (let i = 0; i <= powers; i += Math.ceil(powers / 5)) {
    const value = low * 10 ** i;
    context.strokeStyle = colours.line;
    context.beginPath();
    context.moveTo(px(value), top);
    context.lineTo(px(value), height - bottom);
    context.stroke();
    context.fillStyle = colours.quiet;
    const text = number(value), half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(px(value), width - half - 1), height - bottom + 6);
  }
  const gap = (height - top - bottom) / rows.length, size = Math.min(5, gap * 0.32);
  rows.forEach(({ values: [target, kinetic, configurational], colour, label }, i) => {
    const y = top + gap * (i + 0.5);
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(label, left - 8, y);
    context.fillStyle = context.strokeStyle = colour;
    context.lineWidth = 2;
    if (target > 0) {
      context.fillStyle = colours.ink;
      context.fillRect(px(target) - 1.25, y - gap * 0.36, 2.5, gap * 0.72);
      context.fillStyle = colour;
    }
    if (kinetic > 0) {
      context.beginPath();
      context.arc(px(kinetic), y, size, 0, 2 * Math.PI);
      context.fill();
    }
    if (configurational > 0) {
      context.beginPath();
      for (const [dx, dy] of [[0, -1], [1, 0], [0, 1], [-1, 0]]) {
        context.lineTo(px(configurational) + dx * size * 1.35, y + dy * size * 1.35);
      }
      context.closePath();
      context.stroke();
    }
  });
}

const PER_LAYER = 56; // the least width that a layer may have, in pixels

/** Every weight of an arm as its space shows it, side by side. */
export function drawWeights(context, width, height, layers, arrays, colour) {
  if (!layers?.length) return empty(context, width, height, "no weights yet");
  const perRow = Math.min(layers.length, Math.max(1, Math.floor(width / PER_LAYER)));
  const rows = Math.ceil(layers.length / perRow);
  const cell = { w: width / perRow, h: height / rows };
  const largest = Math.max(1e-9, ...layers.flatMap(({ values }) => (values === undefined ? [] : Array.from(arrays(values)).slice(0, 1))));
  layers.forEach((layer, i) => {
    const x = (i % perRow) * cell.w, y = Math.floor(i / perRow) * cell.h;
    context.save();
    context.translate(x, y);
    const inner = cell.h - 16;
    if (layer.points !== undefined) disc(context, cell.w, inner, arrays(layer.points), layer.space, colour);
    else if (layer.values !== undefined) singular(context, cell.w, inner, arrays(layer.values), largest, layer.space, colour, i % perRow === 0);
    context.font = FONT;
    context.fillStyle = colours.quiet;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const radius = layer.radius ? `  r = ${number(layer.radius)}` : "";
    const text = `${layer.shape[0]}×${layer.shape[1]}${radius}`;
    context.fillText(context.measureText(text).width < cell.w ? text : `r = ${number(layer.radius ?? 0)}`, cell.w / 2, cell.h);
    context.restore();
  });
}

function disc(context, width, height, points, space, colour) {
  const radius = Math.max(4, Math.min(width, height) / 2 - 5), x = width / 2, y = height / 2;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  if (space === "Sphere") {
    const shade = context.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
    shade.addColorStop(0, colours.card);
    shade.addColorStop(1, colours.line);
    context.fillStyle = shade;
    context.fill();
  }
  context.strokeStyle = colours.quiet;
  context.lineWidth = 1;
  context.stroke();
  context.fillStyle = colour;
  context.globalAlpha = points.length > 200 ? 0.55 : 0.85;
  for (let i = 0; i < points.length; i += 2) {
    context.beginPath();
    context.arc(x + radius * points[i], y - radius * points[i + 1], points.length > 200 ? 1.7 : 2.6, 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
}

/** Singular values from large to small as bars on an axis from 0, with a line at 1. */
function singular(context, width, height, values, largest, space, colour, isFirst) {
  const top = Math.max(1.25, largest * 1.05), inset = 5;
  const py = (value) => height - 2 - (value / top) * (height - 8);
  const step = (width - 2 * inset) / values.length;
  context.fillStyle = colour;
  context.globalAlpha = space === "Orthogonal" ? 1 : 0.6;
  for (let i = 0; i < values.length; i++) {
    const bar = Math.max(0.75, Math.min(10, step * 0.75));
    context.fillRect(inset + step * (i + 0.5) - bar / 2, py(values[i]), bar, Math.max(1, height - 2 - py(values[i])));
  }
  context.globalAlpha = 1;
  context.strokeStyle = colours.ink;
  context.setLineDash([2, 3]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(inset - 2, py(1));
  context.lineTo(width - inset + 2, py(1));
  context.stroke();
  context.setLineDash([]);
  if (isFirst) {
    context.font = FONT;
    context.fillStyle = colours.quiet;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText("1", 0, py(1) - 1);
  }
}
