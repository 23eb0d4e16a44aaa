// Formatting of numbers, with a true minus sign and few digits.
const minus = (text) => text.replaceAll("-", "−");

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return minus(value.toExponential(2).replace("e+", "e"));
  if (Number.isInteger(value)) return minus(value.toLocaleString("en-US"));
  return minus(size >= 1000 ? Math.round(value).toLocaleString("en-US") : value.toFixed(size >= 100 ? 1 : digits));
}

export function signed(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = number(value, digits);
  return value > 0 ? `+${text}` : text;
}

// Six significant digits, for worked examples.
export const exact = (value, digits = 6) => (value === null ? "–" : minus(String(Number(value.toPrecision(digits)))));

export const percent = (value, digits = 0) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;

// A probability: "33%", "5.7%", "<0.1%".
export function chance(value) {
  if (value < 0.00095) return "<0.1%";
  return percent(value, value < 0.0995 ? 1 : 0);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const parts = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  return parts[0] ? `${parts[0]} h ${parts[1]} min` : `${parts[1]} min ${parts[2]} s`;
}

export function ago(value) {
  return value < 90 ? `${Math.max(0, Math.round(value))} s ago` : `${seconds(value)} ago`;
}

export function date(iso) {
  if (!iso) return "–";
  const moment = new Date(iso);
  return moment.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

export const plural = (count, noun, nouns = `${noun}s`) => `${count.toLocaleString("en-US")} ${count === 1 ? noun : nouns}`;

// On an axis: no trailing zeros, short where the numbers are very small.
export function tick(value) {
  const size = Math.abs(value);
  if (value !== 0 && size < 1e-3) return minus(String(Number(value.toPrecision(2)).toExponential()));
  return minus(Number(value.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 }));
}

export const isShare = (unit) => unit?.startsWith("share");

export function metricValue(value, unit) {
  return isShare(unit) ? percent(value, 1) : number(value);
}

// The title of an axis: the unit without its range; a metric without a unit has its name.
export function metricTitle(name, unit = "") {
  const [title] = unit.split(",");
  return title && title !== "none" ? title : name.replaceAll("_", " ");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const [size, unit] = value < 2 ** 30 ? [value / 2 ** 20, "MiB"] : [value / 2 ** 30, "GiB"];
  return `${size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${unit}`;
}

// The name of a run by its id; those that ship with the package begin with ~.
export const runName = (id) => id.replace(/^~/, "");
