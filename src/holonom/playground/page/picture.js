// The page as one PNG: both planes, their numbers, and every chart.

import { colours } from "./colours.js";
import { count } from "./format.js";

const MOST_LINES = 4; // of settings

const WIDTH = 1200, GAP = 24, RATIO = 2, HEAD = 60; // HEAD: of a chart
const font = (size, weight = 400) => `${weight} ${size}px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif`;

/** Lines of settings such as a=1&b=2 that fit; what does not fit on `most` lines is left out. */
function wrap(context, text, width, most) {
  const lines = [""];
  for (const part of text.split("&")) {
    const longer = lines.at(-1) ? `${lines.at(-1)}  ${part}` : part;
    if (context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else if (lines.length < most && context.measureText(part).width <= width) lines.push(part);
    else {
      lines[lines.length - 1] += " …";
      break;
    }
  }
  return lines;
}

/** A canvas with the canvases of the page as they are now. */
export function compose(cards, charts, steps, link) {
  const side = (WIDTH - 3 * GAP) / 2;
  const shown = charts.filter(({ card }) => !card.hidden);
  const columns = 4, wide = (WIDTH - (columns + 1) * GAP) / columns, high = wide * 0.72;
  const numbers = 96;
  const settings = document.createElement("canvas").getContext("2d");
  settings.font = font(11);
  const lines = wrap(settings, `Settings at this step:  ${decodeURIComponent(link)}`, WIDTH - 2 * GAP, MOST_LINES);
  const top = 56 + 16 * lines.length;
  const height = top + side + numbers + Math.ceil(shown.length / columns) * (high + HEAD) + GAP;
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH * RATIO;
  canvas.height = height * RATIO;
  const context = canvas.getContext("2d");
  context.scale(RATIO, RATIO);
  context.fillStyle = colours.card;
  context.fillRect(0, 0, WIDTH, height);
  context.fillStyle = colours.ink;
  context.font = font(20, 650);
  context.fillText("holonom playground", GAP, 36);
  context.font = font(13);
  context.fillStyle = colours.quiet;
  context.textAlign = "right";
  context.fillText(`${count(steps)} steps`, WIDTH - GAP, 36);
  context.textAlign = "left";
  context.font = font(11);
  lines.forEach((line, i) => context.fillText(line, GAP, 56 + 16 * i));
  cards.forEach((card, i) => {
    const x = GAP + i * (side + GAP);
    context.drawImage(card.canvas, x, top, side, side);
    context.fillStyle = colours.arms[i];
    context.font = font(15, 650);
    context.fillText(`${card.letter}  ${card.title}`, x, top + side + 24);
    context.fillStyle = colours.ink;
    context.font = font(13);
    const rows = [...card.numbers.children].map((row) => `${row.children[0].textContent} ${row.children[1].textContent}`);
    rows.forEach((line, n) => context.fillText(line, x + (n % 3) * (side / 3), top + side + 48 + Math.floor(n / 3) * 20));
  });
  shown.forEach(({ canvas: chart, card, legend }, i) => {
    const x = GAP + (i % columns) * (wide + GAP), y = top + side + numbers + Math.floor(i / columns) * (high + HEAD);
    context.fillStyle = colours.ink;
    context.font = font(13, 650);
    context.fillText(card.querySelector(".term").textContent, x, y + 12);
    context.fillStyle = colours.quiet;
    context.font = font(11);
    context.fillText(legend.textContent, x, y + 28);
    const scale = Math.min(wide / chart.width, high / chart.height);
    context.drawImage(chart, x, y + 38, chart.width * scale, chart.height * scale);
  });
  return canvas;
}
