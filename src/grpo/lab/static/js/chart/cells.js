// The cells of a map: rectangles of few colours, drawn as one path per colour, because a long run has tens of thousands.
const SVG = "http://www.w3.org/2000/svg";

// `options` are those of Plot.rect, with x1 and x2, y on an axis of names, and fill.
export const cells = (Plot, data, options) => Plot.rect(data, { ...options, render: merged });

function merged(index, scales, values, dimensions, context, next) {
  const group = next([], scales, values, dimensions, context); // empty, with the mark's style and clip
  const height = scales.y.bandwidth();
  const paths = new Map();
  for (const i of index) {
    const [left, right, top] = [values.x1[i], values.x2[i], values.y1[i]];
    const gap = Math.min(0.5, (right - left) / 8);
    const cell = `M${left + gap},${top}H${right - gap}V${top + height}H${left + gap}Z`;
    if (!paths.has(values.fill[i])) paths.set(values.fill[i], []);
    paths.get(values.fill[i]).push(cell);
  }
  for (const [colour, drawn] of paths) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("fill", colour);
    path.setAttribute("d", drawn.join(""));
    group.append(path);
  }
  return group;
}
