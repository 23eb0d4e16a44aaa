// The readout of a chart: the values of all series at the pointer, or at the stop that the arrow keys chose.
import { html } from "htm/preact";
import { exact, number, percent, seconds } from "../format.js";
import { visible } from "../text.js";

const MOST_ROWS = 9;
const NEAR = 14;
const BESIDE = 24;

// Positions of a drawn chart's points in pixels, and the stops of the arrow keys.
export function readable({ svg, points, title, tickFormat, frame, facet }) {
  const [x, y] = [svg.scale("x"), svg.scale("y")];
  if (!x || !y) return null;
  const middle = (scale, value) => scale.apply(value) + (scale.bandwidth ?? 0) / 2;
  const placed = points
    .map((point) => ({
      ...point,
      px: facet(point.fx) + middle(x, point.x),
      py: middle(y, point.kind === "area" || point.kind === "bar" ? point.high : point.y),
    }))
    .filter(({ px, py }) => Number.isFinite(px) && Number.isFinite(py) && px >= frame.left - 1 && px <= frame.right + 1);
  if (!placed.length) return null;
  // Points of a scatter, cells and rows are found one by one; values of series by their x alone.
  const single = placed.every(({ kind }) => kind === "cell" || kind === "row" || kind === "dot");
  const spot = ({ px, py }) => (single ? `${Math.round(px)} ${Math.round(py)}` : Math.round(px));
  const stops = [...new Map(placed.map((point) => [spot(point), point])).values()].sort((a, b) => a.px - b.px || a.py - b.py);
  const format = { x: formatOf(tickFormat.x, short), y: formatOf(tickFormat.y, (value) => number(value, 4)), fx: tickFormat.fx ?? String };
  return { placed, stops, single, title, format, frame };
}

// As on the axis, with more digits.
function formatOf(tickFormat, plain) {
  const sample = (value) => (typeof tickFormat === "function" ? String(tickFormat(value)) : "");
  return (value) => (typeof value !== "number"
    ? String(value)
    : sample(value).endsWith("%") ? percent(value, 1) : sample(value).endsWith(" s") ? seconds(value) : plain(value));
}

const short = (value) => (Number.isInteger(value) || Math.abs(value) >= 1000 ? number(value) : exact(value, 4));

export function stopAt({ stops, single }, px, py) {
  const far = (point) => Math.abs(point.px - px) + (single ? Math.abs(point.py - py) : 0);
  return stops.reduce((best, point, place) => (far(point) < far(stops[best]) ? place : best), 0);
}

// What the box says at a stop: {px, py, head, rows: [{colour, text}]}.
export function reading({ placed, stops, single, title, format, frame }, place) {
  const stop = stops[Math.max(0, Math.min(stops.length - 1, place))];
  const head = [stop.fx === undefined ? "" : format.fx(stop.fx), named(title.x, format.x(stop.x))].filter(Boolean).join("; ");
  if (single) {
    const here = placed.filter(({ px, py }) => Math.abs(px - stop.px) <= 1 && Math.abs(py - stop.py) <= 1).map((point) => alone(point, head, format, title));
    // A map can be higher than the screen: the box stays near its cell.
    const top = stop.kind === "dot" ? frame.top : Math.max(frame.top, stop.py - BESIDE);
    return { ...stop, top, head: here[0].head, rows: here.flatMap(({ rows }) => rows).slice(0, MOST_ROWS) };
  }
  const series = new Map();
  for (const point of placed) {
    const away = Math.abs(point.px - stop.px);
    if (away > NEAR) continue;
    const key = `${point.name} ${point.colour} ${point.z} ${point.kind === "area"}`;
    if (!series.has(key) || away < series.get(key).away) series.set(key, { ...point, away, elsewhere: point.x === stop.x ? "" : ` at ${format.x(point.x)}` });
  }
  return { ...stop, top: frame.top, head, rows: rowsOf([...series.values()], format, title).slice(0, MOST_ROWS) };
}

const named = (label, value) => [label.includes(" ") ? `${label}:` : label, value].filter(Boolean).join(" ");

// A point of its own: of a row, the row's name and what its length means.
function alone(point, head, format, title) {
  if (point.text) return { head: "", rows: [row(point, format, title)] };
  if (typeof point.y === "number") return { head, rows: [row(point, format, title)] };
  return { head: String(point.y), rows: [{ colour: point.colour, text: [point.name, format.x(point.x), title.x].filter(Boolean).join(" ") }] };
}

// An area around a line of its colour, or under it, belongs to the line: if it reaches above, it is the line's range.
function rowsOf(points, format, title) {
  const range = (point) => points.find((other) => other.kind === "area" && point.kind !== "area" && other.colour === point.colour && other.low <= point.y &&
    other.high >= point.y);
  const bands = new Set(points.map(range).filter(Boolean));
  const rows = points.filter((point) => !bands.has(point)).map((point) => row(point, format, title, range(point)));
  return rows.filter((one, place) => rows.findIndex((other) => other.text === one.text && other.colour === one.colour) === place);
}

function row(point, format, title, band) {
  const name = point.name ?? (title.y || "value");
  const range = band && band.high > point.y && !point.smoothed ? ` (${format.y(band.low)} to ${format.y(band.high)})` : "";
  return { colour: point.colour, text: (point.text ?? `${name} ${format.y(point.y)}${range}`) + (point.elsewhere ?? "") };
}

export function Readout({ found, width }) {
  if (!found) return null;
  const left = found.px > width / 2;
  return html`<div class="readout-line" style=${{ left: `${found.px}px` }}></div>
    <div class="readout ${left ? "to-left" : ""}" style=${{ left: `${found.px}px`, top: `${found.top}px` }}>
      ${found.head && html`<b class="num">${visible(found.head)}</b>`}
      ${found.rows.map(({ colour, text }) => html`<span class="num"><i class="key dot" style=${{ "--key": colour }}></i><bdi>${visible(text)}</bdi></span>`)}
    </div>`;
}

export const spoken = (found) => (found ? [found.head, ...found.rows.map(({ text }) => text)].filter(Boolean).join("; ") : "");
