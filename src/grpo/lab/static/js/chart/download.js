// A chart as a file: its numbers as CSV, its picture as PNG.
const SCALE = 2;
const LINE = 24;
const COPIED = [
  "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "paint-order",
];

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The first part of the label: the rest has numbers, which change.
const fileName = (label, ending) => `${label.split(/[,:;] /)[0].toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-|-$/g, "")}.${ending}`;

// Numbers with all their digits. A text that a spreadsheet would run as a formula gets an apostrophe.
function cell(value) {
  if (typeof value === "number") return String(value);
  const text = value === "–" ? "" : String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf({ columns, rows }) {
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// A chart without a table: its points.
export const tableOf = ({ points, title }) => ({
  columns: ["series", title.x || "x", title.y || "y"],
  rows: points.map((point) => [point.name ?? "", point.x, point.y]),
});

export function saveCsv(label, table) {
  save(new Blob([csvOf(table)], { type: "text/csv" }), fileName(label, "csv"));
}

// The drawing with its colours written out, since a picture has no style sheet; above it the label, below it the legend
// where one is shown.
export async function savePng(label, svg, legend) {
  const [width, height] = [svg.clientWidth, svg.clientHeight];
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((element, place) => {
    const style = getComputedStyle(element);
    for (const name of COPIED) to[place].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * SCALE, (LINE + height + (legend ? LINE : 0)) * SCALE];
  const brush = canvas.getContext("2d");
  brush.scale(SCALE, SCALE);
  brush.fillStyle = coloured("var(--surface)");
  brush.fillRect(0, 0, width, canvas.height / SCALE);
  brush.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  brush.fillStyle = coloured("var(--ink)");
  brush.fillText(label, 8, 17, width - 16);
  brush.drawImage(picture, 0, LINE, width, height);
  if (legend) drawLegend(brush, legend, LINE + height + 14);
  canvas.toBlob((blob) => save(blob, fileName(label, "png")));
}

function drawLegend(brush, legend, y) {
  brush.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  let x = 12;
  for (const [text, colour] of legend) {
    brush.fillStyle = coloured(colour);
    brush.fillRect(x, y - 5, 12, 3);
    brush.fillStyle = coloured("var(--ink-soft)");
    brush.fillText(text, x + 18, y);
    x += brush.measureText(text).width + 36;
  }
}

// The colour behind a name of the style sheet.
function coloured(name) {
  const probe = document.createElement("span");
  probe.style.color = name;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
