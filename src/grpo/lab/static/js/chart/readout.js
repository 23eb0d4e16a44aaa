// The readout of a chart: the values of all series at the pointer, or at the stop that the arrow keys chose.
import { html } from "htm/preact";
import { number, percent, seconds } from "../format.js";
import { SMOOTHED } from "./smooth.js";

const MOST_ROWS = 9;
const NEAR = 14;

// Positions of a drawn chart's points in pixels, and the stops of the arrow keys.
export function readable({ svg, points, title, tickFormat, frame }) {
  const [x, y] = [svg.scale("x"), svg.scale("y")];
  if (!x || !y || svg.scale("fx")) return null;
  const middle = (scale, value) => scale.apply(value) + (scale.bandwidth ?? 0) / 2;
  const placed = points
    .map((point) => ({ ...point, px: middle(x, point.x), py: middle(y, point.kind === "area" || point.kind === "bar" ? point.high : point.y) }))
    .filter(({ px, py }) => Number.isFinite(px) && Number.isFinite(py) && px >= frame.left - 1 && px <= frame.right + 1);
  if (!placed.length) return null;
  // Points of a scatter, cells and rows are found one by one; values of series by their x alone.
  const single = placed.every(({ kind }) => kind === "cell" || kind === "row" || kind === "dot");
  const stops = single ? placed.sort((a, b) => a.px - b.px || a.py - b.py) : [...new Map(placed.map((point) => [Math.round(point.px), point])).values()].sort((a, b) => a.px - b.px);
  return { placed, stops, single, title, format: formatOf(tickFormat), frame };
}

// As on the axis, with more digits.
function formatOf(tickFormat) {
  const sample = (value) => (typeof tickFormat === "function" ? String(tickFormat(value)) : "");
  return (value) => (typeof value !== "number" ? String(value) : sample(value).endsWith("%") ? percent(value, 1) : sample(value).endsWith(" s") ? seconds(value) : number(value, 4));
}

export function stopAt({ stops, single }, px, py) {
  const far = (point) => Math.abs(point.px - px) + (single ? Math.abs(point.py - py) : 0);
  return stops.reduce((best, point, place) => (far(point) < far(stops[best]) ? place : best), 0);
}

// What the box says at a stop: {px, py, head, rows: [{colour, text}]}.
export function reading({ placed, stops, single, title, format, frame }, place) {
  const stop = stops[Math.max(0, Math.min(stops.length - 1, place))];
  const head = [title.x, typeof stop.x === "number" ? number(stop.x, 3) : String(stop.x)].filter(Boolean).join(" ");
  if (single) return { ...stop, top: frame.top, rows: [row(stop, format, title)], head: stop.text ? "" : head };
  const series = new Map();
  for (const point of placed) {
    const away = Math.abs(point.px - stop.px);
    if (away > NEAR) continue;
    const key = `${point.name} ${point.colour} ${point.z} ${point.kind === "area"}`;
    if (!series.has(key) || away < series.get(key).away) series.set(key, { ...point, away });
  }
  return { ...stop, top: frame.top, head, rows: rowsOf([...series.values()], format, title).slice(0, MOST_ROWS) };
}

// A band around a line of its colour is the line's range.
function rowsOf(points, format, title) {
  const range = (point) => points.find((other) => other.kind === "area" && point.kind !== "area" && other.colour === point.colour && other.low <= point.y && other.high >= point.y && other.low !== 0);
  const bands = new Set(points.map(range).filter(Boolean));
  const rows = points.filter((point) => !bands.has(point)).map((point) => row(point, format, title, range(point)));
  return rows.filter((one, place) => rows.findIndex((other) => other.text === one.text && other.colour === one.colour) === place);
}

function row(point, format, title, band) {
  const name = point.name ?? (title.y || "value");
  const between = band && point.name !== SMOOTHED ? ` (${format(band.low)} to ${format(band.high)})` : "";
  return { colour: point.colour, text: point.text ?? `${name} ${format(point.y)}${between}` };
}

export function Readout({ found, width }) {
  if (!found) return null;
  const left = found.px > width / 2;
  return html`<div class="readout-line" style=${{ left: `${found.px}px` }}></div>
    <div class="readout ${left ? "to-left" : ""}" style=${{ left: `${found.px}px`, top: `${found.top}px` }}>
      ${found.head && html`<b class="num">${found.head}</b>`}
      ${found.rows.map(({ colour, text }) => html`<span class="num"><i class="key dot" style=${{ "--key": colour }}></i>${text}</span>`)}
    </div>`;
}

export const spoken = (found) => (found ? [found.head, ...found.rows.map(({ text }) => text)].filter(Boolean).join("; ") : "");
