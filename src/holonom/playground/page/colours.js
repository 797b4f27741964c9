// The style sheet's colours, for canvases; read again when the browser changes between light and dark.

const NAMES = ["ink", "quiet", "line", "card", "paper", "zero", "one", "arm-a", "arm-b", "accent"];

export const colours = {};

function read() {
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) colours[name] = style.getPropertyValue(`--${name}`).trim();
  colours.arms = [colours["arm-a"], colours["arm-b"]];
  colours.ramp = ramp(rgb(colours.zero), rgb(colours.card), rgb(colours.one));
  colours.heat = ramp(rgb(colours.card), rgb(colours.card), rgb(colours.accent));
}

/** [r, g, b] of #rrggbb. */
export const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));

const STRENGTH = 0.78; // of the colours at the ends, so that points stand out

/** 256 colours from one over a middle to another, as bytes. */
function ramp(low, middle, high) {
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const side = i / 127.5 - 1, share = STRENGTH * Math.abs(side) ** 0.85;
    const end = side < 0 ? low : high;
    for (let c = 0; c < 3; c++) table[3 * i + c] = middle[c] + share * (end[c] - middle[c]);
  }
  return table;
}

export function watchColours(redraw) {
  read();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    read();
    redraw();
  });
}

/** A canvas context in CSS pixels, as sharp as the screen, cleared. */
export function prepare(canvas) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
