// The points that a chart's marks show, read from Plot's own channels: readout, log axis and labels need no second copy.
const VISIBLE = 0.5;

export const flatMarks = (marks) => marks.flat(Infinity).filter((mark) => mark && typeof mark.initialize === "function");

const kindOf = (Plot, mark) =>
  [
    ["line", Plot.Line], ["dot", Plot.Dot], ["area", Plot.Area], ["bar", Plot.Rect], ["bar", Plot.BarY], ["row", Plot.BarX],
  ].find(([, type]) => mark instanceof type)?.[0];

// One row per datum of lines, dots, areas, rectangles and bars: {kind, name, colour, x, y, low, high, text, fx}.
// A point's `title` is its text in the readout; its name is its `ariaLabel`, else the legend's entry of its colour.
export function pointsOf(Plot, marks, legend = []) {
  const names = new Map([...legend].reverse().map(([text, colour]) => [colour, text]));
  return marks.flatMap((mark) => {
    const kind = kindOf(Plot, mark);
    if (!kind || (kind === "line" && (mark.strokeOpacity ?? 1) < VISIBLE)) return [];
    const channel = channelsOf(mark);
    const paints = kind === "line" ? ["stroke"] : ["fill", "stroke"];
    const facets = mark.fx === undefined ? null : Plot.valueof(mark.data, mark.fx);
    const count = Math.max(0, ...["x", "x1", "y", "y1"].map((name) => channel(name)?.length ?? 0));
    return Array.from({ length: count }, (_, i) => {
      const at = (name) => channel(name)?.[i];
      const colour = paints.map((paint) => at(paint) ?? mark[paint]).find((found) => found && found !== "none");
      const name = at("ariaLabel") ?? names.get(colour);
      return { kind, name, colour, text: at("title"), z: at("z") ?? colour, fx: facets?.[i], ...place(kind, at) };
    }).filter(({ x, y }) => isShown(x) && isShown(y));
  });
}

export function channelsOf(mark) {
  const { channels } = mark.initialize();
  return (name) => channels[name]?.value;
}

const isShown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function place(kind, at) {
  const x = at("x") ?? middle(at("x1"), at("x2"));
  if (kind === "area") return { x, y: at("y2") - at("y1"), low: at("y1"), high: at("y2") };
  if (kind === "row") return { x: at("x2") - at("x1"), y: at("y") };
  if (kind !== "bar") return { x, y: at("y") };
  const [low, high] = [at("y1"), at("y2")];
  // A cell of a map has one place on an axis of names instead of two ends.
  return high === undefined || low === high ? { kind: "cell", x, y: low } : { x, y: high - low, low, high };
}

const middle = (low, high) => (high === undefined || high === null ? low : (low + high) / 2);
