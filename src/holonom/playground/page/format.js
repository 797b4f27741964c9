// Numbers as people read them.

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(digits)));
}

export const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);

/** Four decimals; of smaller losses two digits, since 0.0000 says nothing. */
export function loss(value) {
  if (value === null) return "–";
  return value > 0 && value < 5e-4 ? number(value, 2) : value.toFixed(4);
}

export const count = (value) => value.toLocaleString("en");

/** Steps on an axis: 1500 → 1.5k. */
export function short(value) {
  if (Math.abs(value) >= 1e6) return `${number(value / 1e6)}M`;
  if (Math.abs(value) >= 1e3) return `${number(value / 1e3)}k`;
  return number(value);
}
