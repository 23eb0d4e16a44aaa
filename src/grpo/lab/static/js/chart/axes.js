// The axes of a chart: ticks of whole steps, a logarithmic y axis, and the part of x that is zoomed to.
import { number, tick } from "../format.js";

const COUNTED = /^(training )?(step|update|turn|token|first guess|position)/;
const OVER_TRAINING = /^(training )?(step|update)|^(sampled )?tokens$|^second/;

export const bare = (label) => String(label ?? "").replace(/[→↑←↓]/g, "").trim();
export const isOverTraining = (options) => OVER_TRAINING.test(bare(options.x?.label));

const numbers = (points, key = "x") => points.map((point) => point[key]).filter(Number.isFinite);
const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

// No half steps: a tick between two whole numbers names nothing that was recorded.
export function wholeTicks(options, points, width) {
  return wholeY(wholeX(options, points, width), points);
}

function wholeY(options, points) {
  const y = options.y ?? {};
  const [low, high] = y.domain ?? extent(numbers(points, "y"));
  const counts = points.length > 1 && points.every((point) => point.kind !== "cell" && point.kind !== "row" && Number.isInteger(point.y));
  if (!counts || Array.isArray(y.ticks) || y.axis === null || y.type === "log" || high - low > 8 || high - low < 1) return options;
  return { ...options, y: { ...y, ticks: window.d3.range(Math.floor(low), Math.ceil(high) + 1) } };
}

function wholeX(options, points, width) {
  const x = options.x ?? {};
  if (Array.isArray(x.ticks) || x.axis === null || (x.type ?? "linear") !== "linear") return options;
  const found = numbers(points);
  const [low, high] = x.domain ?? extent(found);
  const counted = COUNTED.test(bare(x.label)) || (high - low >= 2 && found.every(Number.isInteger));
  if (!counted || !Number.isFinite(low) || typeof low !== "number") return options;
  const ticks = window.d3.ticks(low, high, Math.min(typeof x.ticks === "number" ? x.ticks : 12, width / 64)).filter(Number.isInteger);
  return { ...options, x: { tickFormat: (value) => number(value), ...x, ticks } };
}

// Only where every value is above 0 and lengths from 0 mean nothing: lines and dots.
export function canBeLog(options, points) {
  const drawn = points.filter((point) => point.kind === "line" || point.kind === "dot");
  return drawn.length > 1 && (options.y?.type ?? "linear") === "linear" && !options.fx && points.every(({ kind }) => ["line", "dot", "area"].includes(kind)) &&
    drawn.every((point) => point.y > 0) &&
    drawn.some((point) => point.y !== drawn[0].y);
}

export function withLog(Plot, options, points, marks) {
  const domain = extent(points.filter((point) => point.kind !== "area").map((point) => point.y));
  const { zero, ...y } = options.y ?? {};
  const fits = (mark) => !(mark instanceof Plot.RuleY) && !(mark instanceof Plot.Area && points.some((point) => point.kind === "area" && point.low <= 0));
  return [
    { ...options, y: { ...y, type: "log", domain, nice: false, clamp: true, ticks: logTicks(domain), tickFormat: y.tickFormat ?? tick } },
    marks.filter(fits),
  ];
}

// Powers of ten; within two of them also their doubles and halves; between fewer of those, evenly spaced.
function logTicks([low, high]) {
  const powers = window.d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const shares = high / low >= 100 ? [1] : [1, 2, 5];
  const ticks = powers.flatMap((power) => shares.map((share) => Number(`${share}e${power}`))).filter((value) => value >= low && value <= high);
  return ticks.length > 1 ? ticks : window.d3.ticks(low, high, 4);
}

// The y axis follows the points in sight, unless the caller gave it limits.
export function withZoom(options, points, [from, to]) {
  const seen = points.filter(({ x }) => x >= from && x <= to);
  const values = seen.flatMap((point) => (point.kind === "area" && point.low !== 0
    ? [point.low, point.high]
    : point.kind === "bar" ? [point.low, point.high] : [point.y])).filter(Number.isFinite);
  const { interval, ...x } = options.x ?? {};
  const free = !options.y?.domain || options.y.type === "log";
  const [low, high] = extent(values);
  const y = free && values.length > 1 && low < high ? { ...options.y, domain: [low, high], zero: false, nice: true } : options.y;
  return { ...options, x: { ...x, domain: [from, to], nice: false }, y };
}
