// The plane: a smooth field of probabilities, its boundary, and the points.

import { colours } from "./colours.js";

const PIXELS = 200; // of the picture of the field, which is stretched to the canvas

const pictures = new Map(); // one small canvas for each size

function picture(side) {
  if (!pictures.has(side)) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    pictures.set(side, { canvas, context, image: context.createImageData(side, side) });
  }
  return pictures.get(side);
}

const SIGMOID = new Uint8Array(4096); // of logits from −8 to 8
for (let i = 0; i < 4096; i++) SIGMOID[i] = Math.round(255 / (1 + Math.exp(-(i - 2048) / 256)));

/** Byte of the probability that belongs to a logit. */
const byte = (logit) => SIGMOID[Math.max(0, Math.min(4095, Math.round(256 * logit + 2048)))];

/** Bilinear interpolation of a grid to PIXELS × PIXELS, then a colour for every pixel. */
function paint(grid, side, index, table) {
  const { canvas, context, image } = picture(PIXELS);
  const step = (side - 1) / (PIXELS - 1);
  let at = 0;
  for (let row = 0; row < PIXELS; row++) {
    const y = Math.min(side - 2, Math.floor(row * step)), v = row * step - y;
    for (let column = 0; column < PIXELS; column++) {
      const x = Math.min(side - 2, Math.floor(column * step)), u = column * step - x;
      const corner = y * side + x;
      const upper = grid[corner] + u * (grid[corner + 1] - grid[corner]);
      const lower = grid[corner + side] + u * (grid[corner + side + 1] - grid[corner + side]);
      const colour = 3 * index(upper + v * (lower - upper));
      image.data[at++] = table[colour];
      image.data[at++] = table[colour + 1];
      image.data[at++] = table[colour + 2];
      image.data[at++] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The line where the grid is zero: marching squares, as one path. */
function boundary(context, grid, side, size) {
  const unit = size / (side - 1);
  const cross = (a, b) => a / (a - b);
  context.beginPath();
  for (let y = 0; y < side - 1; y++) {
    for (let x = 0; x < side - 1; x++) {
      const at = y * side + x;
      const a = grid[at], b = grid[at + 1], c = grid[at + side + 1], d = grid[at + side];
      const ends = [];
      if (a > 0 !== b > 0) ends.push([x + cross(a, b), y]);
      if (b > 0 !== c > 0) ends.push([x + 1, y + cross(b, c)]);
      if (d > 0 !== c > 0) ends.push([x + cross(d, c), y + 1]);
      if (a > 0 !== d > 0) ends.push([x, y + cross(a, d)]);
      for (let i = 0; i + 1 < ends.length; i += 2) {
        context.moveTo(ends[i][0] * unit, ends[i][1] * unit);
        context.lineTo(ends[i + 1][0] * unit, ends[i + 1][1] * unit);
      }
    }
  }
  context.stroke();
}

function points(context, rows, bound, size, radius, outline) {
  for (let i = 0; i < rows.length; i += 3) {
    const x = ((rows[i] / bound + 1) * size) / 2, y = ((1 - rows[i + 1] / bound) * size) / 2;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = rows[i + 2] > 0.5 ? colours.one : colours.zero;
    context.fill();
    if (outline) context.stroke();
  }
}

function rings(context, rows, bound, size, radius) {
  context.lineWidth = 2;
  for (let i = 0; i < rows.length; i += 3) {
    const x = ((rows[i] / bound + 1) * size) / 2, y = ((1 - rows[i + 1] / bound) * size) / 2;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = colours.paper;
    context.fill();
    context.strokeStyle = rows[i + 2] > 0.5 ? colours.one : colours.zero;
    context.stroke();
  }
}

/**
 * Draws one arm. `field`: {side, logits, spread?} as typed arrays, or null; `plane`: {bound, train, test} or null;
 * `options`: {view, showTest, rings, cross}; with `rings` test points are as large as the others.
 */
export function drawField(context, size, field, plane, options) {
  context.fillStyle = colours.card;
  context.fillRect(0, 0, size, size);
  context.imageSmoothingEnabled = true;
  if (field) {
    const spread = options.view === "spread" && field.spread;
    const image = spread
      ? paint(field.spread, field.side, (value) => Math.round(127.5 + value / 2), colours.heat)
      : paint(field.logits, field.side, byte, colours.ramp);
    context.drawImage(image, 0, 0, size, size);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.6;
    context.lineJoin = context.lineCap = "round";
    boundary(context, field.logits, field.side, size);
  }
  if (plane?.train) {
    const many = plane.train.length / 3;
    const radius = Math.max(1.8, Math.min(4.5, size / (6 * Math.sqrt(many) + 30)));
    if (options.rings) rings(context, plane.test, plane.bound, size, radius);
    else if (options.showTest) {
      context.globalAlpha = 0.55;
      points(context, plane.test, plane.bound, size, Math.max(1, radius * 0.55), false);
      context.globalAlpha = 1;
    }
    context.strokeStyle = colours.paper;
    context.lineWidth = 0.9;
    points(context, plane.train, plane.bound, size, radius, true);
  }
  if (options.cross) {
    const [x, y] = options.cross.map((value, i) => ((1 + (i ? -value : value)) * size) / 2);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x - 9, y);
    context.lineTo(x + 9, y);
    context.moveTo(x, y - 9);
    context.lineTo(x, y + 9);
    context.stroke();
  }
}
