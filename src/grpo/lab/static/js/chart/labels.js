// Names of lines at their right ends, in place of a legend.
const LINE = 14;
const GAP = 8;
const NARROWEST = 400;
const SVG = "http://www.w3.org/2000/svg";

let ruler = null;
function widthOf(text) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return Math.ceil(ruler.measureText(text).width);
}

// The margin that the names need; 0 where they do not fit: a narrow chart, long names, or lines that end elsewhere.
export function labelRoom(legend, points, width, last) {
  if (!legend || legend.length < 2 || width < NARROWEST || legend.some(([, , shape]) => shape)) return 0;
  if (new Set(legend.map(([, colour]) => colour)).size < legend.length) return 0;
  const ends = legend.map(([, colour]) => endOf(points, colour, last));
  const reach = Math.max(...points.filter((point) => point.kind === "line").map((point) => point.x));
  const edge = Math.min(last ?? Infinity, reach);
  const span = edge - Math.min(...points.map((point) => point.x));
  if (ends.some((end) => !end || edge - end.x > 0.02 * span)) return 0;
  const room = Math.max(...legend.map(([text]) => widthOf(text))) + 22;
  return room > 0.3 * width ? 0 : room;
}

function endOf(points, colour, last = Infinity) {
  let end = null;
  for (const point of points) if (point.kind === "line" && point.colour === colour && point.x <= last && (!end || point.x >= end.x)) end = point;
  return end;
}

// Adds the names to the drawn chart, apart from one another; false where the height is too small for all.
export function drawLabels(svg, legend, points, { height, right, last }) {
  const scale = svg.scale("y");
  const [low, high] = [Math.min(...scale.range), Math.max(...scale.range)];
  const rows = legend
    .map(([text, colour]) => ({ text, colour, y: Math.max(low, Math.min(high, scale.apply(endOf(points, colour, last).y))) }))
    .sort((a, b) => a.y - b.y);
  if (rows.length * LINE > height) return false;
  rows.forEach((row, i) => (row.at = Math.max(row.y, i ? rows[i - 1].at + LINE : low)));
  for (let i = rows.length - 1; i >= 0; i--) rows[i].at = Math.min(rows[i].at, i === rows.length - 1 ? high : rows[i + 1].at - LINE);
  for (const { text, colour, at } of rows) {
    const key = document.createElementNS(SVG, "line");
    for (const [name, value] of Object.entries({
      x1: right + GAP - 4, x2: right + GAP + 4, y1: at, y2: at, "stroke-width": 3, "stroke-linecap": "round",
    })) key.setAttribute(name, value);
    key.style.stroke = colour;
    const words = document.createElementNS(SVG, "text");
    for (const [name, value] of Object.entries({
      x: right + GAP + 9, y: at, dy: "0.35em", "text-anchor": "start", class: "chart-label",
    })) words.setAttribute(name, value);
    words.textContent = text;
    svg.append(key, words);
  }
  return true;
}
