// Draws a chart: what its caller built, with titles, ticks, margins and the reader's settings.
import { bare, canBeLog, isOverTraining, withLog, withZoom, wholeTicks } from "./axes.js";
import { drawLabels, labelRoom } from "./labels.js";
import { flatMarks, pointsOf } from "./points.js";
import { canSmooth, SMOOTHED, smoothMarks } from "./smooth.js";

export function drawChart(Plot, box, { build, width, height, legend, table, zoom, log, smooth }) {
  const built = build(Plot, width);
  // A title that the caller left out is the name of the only series.
  const alone = legend?.length === 1 ? legend[0][0] : table?.columns.length === 2 ? table.columns[1] : null;
  const name = built.y?.label ?? (built.y?.axis === null || built.y?.type === "band" ? null : alone);
  let options = { ...built, y: { ...built.y, label: name } };
  let marks = flatMarks(built.marks);
  const points = pointsOf(Plot, marks, legend);
  const can = { log: canBeLog(options, points), smooth: isOverTraining(options) && canSmooth(Plot, marks) };
  if (smooth > 0 && can.smooth) marks = smoothMarks(Plot, marks, smooth);
  if (log && can.log) [options, marks] = withLog(Plot, options, points, marks);
  if (zoom) {
    options = withZoom(options, points, zoom);
    marks.forEach((mark) => (mark.clip ??= "frame"));
  }
  options = wholeTicks(options, points, width);
  const shown = smooth > 0 ? [...points, ...smoothedPoints(pointsOf(Plot, marks, legend), points)] : points;
  const room = labelRoom(legend, points, width, zoom?.[1]);
  // An axis label needs its own line, clear of the ticks.
  const margins = { marginLeft: 44, marginRight: 18, marginTop: options.y.label ? 26 : 10, marginBottom: options.x?.label ? 35 : 28 };
  const all = { width, height, ...margins, ...options, marks };
  all.marginRight = Math.max(all.marginRight, room);
  let svg = plotted(Plot, box, all);
  const [left, right] = overflow(svg, width);
  const y = ticksInside(svg, options.y);
  if (left || right || y !== options.y) svg = plotted(Plot, box, { ...all, y, marginLeft: all.marginLeft + left, marginRight: all.marginRight + right });
  const edge = width - all.marginRight - right;
  const labelled = room > 0 && drawLabels(svg, legend, points, {
    height: height - all.marginTop - all.marginBottom,
    right: Math.min(edge, reach(svg, points, zoom)),
    last: zoom?.[1],
  });
  const x = svg.scale("x");
  can.zoom = Boolean(x?.invert) && !options.fx;
  const title = { x: bare(options.x?.label), y: bare(options.y.label) };
  const tickFormat = { x: options.x?.tickFormat, y: options.y.tickFormat, fx: options.fx?.tickFormat };
  // A facet is drawn as the first one, and moved.
  const fx = svg.scale("fx");
  const facet = (value) => (fx ? fx.apply(value) - all.marginLeft - left : 0);
  const frame = { left: Math.min(...(x?.range ?? [0])), right: edge, top: all.marginTop, bottom: height - all.marginBottom };
  return { svg, points: shown, can, labelled, title, tickFormat, frame, facet };
}

// Where lines end, in pixels: in a run that still trains, before the end of the axis.
function reach(svg, points, zoom) {
  const last = points.filter(({ kind, x }) => kind === "line" && x <= (zoom?.[1] ?? Infinity)).reduce((most, { x }) => Math.max(most, x), -Infinity);
  return svg.scale("x").apply(last);
}

// Named after the line that they smooth.
function smoothedPoints(drawn, points) {
  const names = new Map(points.filter(({ kind }) => kind === "line").map((point) => [point.colour, point.name]));
  return drawn.filter((point) => point.name === SMOOTHED).map((point) => ({
    ...point,
    smoothed: true,
    name: [names.get(point.colour), SMOOTHED].filter(Boolean).join(", "),
  }));
}

// The path of a line with one point, such as that of a run's first step. It has no length; round ends make it a dot.
const LONE = /^M[^A-Z]*Z$/;

function plotted(Plot, box, options) {
  const svg = Plot.plot(options);
  // A group with a name and no role confuses screen readers; the frame carries the name. The readout replaces titles.
  svg.querySelectorAll("[aria-label], [aria-description]").forEach((part) => {
    part.removeAttribute("aria-label");
    part.removeAttribute("aria-description");
  });
  svg.querySelectorAll("title").forEach((title) => title.remove());
  for (const path of svg.querySelectorAll("path[d]")) {
    if (!LONE.test(path.getAttribute("d"))) continue;
    path.setAttribute("stroke-linecap", "round");
    path.setAttribute("stroke-width", 5);
  }
  svg.setAttribute("aria-hidden", "true");
  box.replaceChildren(svg);
  return svg;
}

// A tick that the caller named, beyond the axis, would be drawn over its title.
function ticksInside(svg, y) {
  const { domain } = svg.scale("y") ?? {};
  if (!Array.isArray(y.ticks) || typeof domain?.[0] !== "number") return y;
  const inside = y.ticks.filter((tick) => tick >= domain[0] && tick <= domain.at(-1));
  return inside.length < y.ticks.length ? { ...y, ticks: inside } : y;
}

// Pixels that texts reach beyond the chart, left and right.
function overflow(svg, width) {
  const { left } = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect()).filter((box) => box.width);
  const beyond = (distance) => (distance > 1 ? Math.ceil(distance) : 0);
  return [beyond(Math.max(0, ...boxes.map((box) => left - box.left))), beyond(Math.max(0, ...boxes.map((box) => box.right - left - width)))];
}
