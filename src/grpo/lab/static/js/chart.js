// Observable Plot in a frame of fixed height. Every chart has a readout (pointer, arrow keys), zoom (drag, + and −,
// Escape), its numbers as a table and as CSV, and its picture as PNG; lines over training can be smoothed, and positive
// values drawn on a logarithmic axis. A chart lower than 100 px is a sparkline: it has none of this.
//
// label   what it shows, for screen readers and file names     build   (Plot, width) => options of Plot.plot
// deps    values that redraw it when they change               table   {columns, rows}: its numbers
// legend  [[text, colour, shape]]; names the series of that colour; drawn at the ends of lines where it fits
// onPick  (x) => … on a click
// In `build`, x.label and y.label are nouns; the `title` of a point is its text in the readout.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { saveCsv, savePng, tableOf } from "./chart/download.js";
import { drawChart } from "./chart/drawing.js";
import { readable, reading, Readout, spoken, stopAt } from "./chart/readout.js";
import { useSettings } from "./chart/settings.js";
import { number } from "./format.js";
import { loadPlot } from "./load.js";
import { visible } from "./text.js";

const MOST_TABLE_ROWS = 60;
const SPARKLINE = 100;
const CLICK = 5;

export function Chart({ label, height = 180, build, deps, table, onPick, legend }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  const [drawn, setDrawn] = useState(null);
  const [zoom, setZoom] = useState(null);
  const settings = useSettings();
  const quiet = height < SPARKLINE;
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!width) return;
    let here = true;
    loadPlot().then((Plot) => {
      if (!here || !box.current) return;
      const { smooth, log } = quiet ? {} : settings;
      setDrawn(drawChart(Plot, box.current, { build, width, height, legend: quiet ? undefined : legend, table: quiet ? undefined : table, zoom, log, smooth }));
    });
    return () => (here = false);
  }, [width, height, zoom, settings.log, settings.smooth, ...deps]);
  return html`<figure class="chart">
    <${Stage} box=${box} drawn=${drawn} label=${label} width=${width} height=${height} quiet=${quiet} onPick=${onPick} zoom=${zoom} setZoom=${setZoom} />
    ${legend && html`<figcaption class=${drawn?.labelled ? "visually-hidden" : "legend"}>
      ${legend.map(([text, colour, shape]) => html`<span><i class="key ${shape ?? ""}" style=${{ "--key": colour }}></i>${text}</span>`)}</figcaption>`}
    ${!quiet && html`<div class="chart-foot">
      ${table && html`<${DataTable} ...${table} label=${label} />`}
      <${Tools} label=${label} drawn=${drawn} table=${table} legend=${legend} settings=${settings} />
    </div>`}
  </figure>`;
}

// The frame with its drawing: pointer and keys move the readout, a drag zooms, a click picks.
function Stage({ box, drawn, label, width, height, quiet, onPick, zoom, setZoom }) {
  const [found, setFound] = useState(null);
  const [said, setSaid] = useState("");
  const [drag, setDrag] = useState(null);
  const stop = useRef(0);
  const dragged = useRef(false);
  const tapped = useRef(null);
  useEffect(() => setFound(null), [drawn]);
  const map = () => (drawn.map === undefined ? (drawn.map = readable(drawn)) : drawn.map);
  const xOf = (px) => drawn.svg.scale("x").invert(Math.max(drawn.frame.left, Math.min(drawn.frame.right, px)));
  const inside = (event) => {
    const { left, top } = box.current.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  function show(place) {
    stop.current = Math.max(0, Math.min(map().stops.length - 1, place));
    const next = reading(map(), stop.current);
    setFound(next);
    return next;
  }
  function move(event) {
    if (!drawn) return;
    const [px, py] = inside(event);
    if (drag) return setDrag({ ...drag, to: px });
    if (!quiet && map()) show(stopAt(map(), px, py));
  }
  function press(event) {
    if (!drawn || event.button || event.pointerType === "touch") return;
    if (quiet || !drawn.can.zoom) return;
    const [px] = inside(event);
    setDrag({ from: px, to: px });
    event.currentTarget.setPointerCapture(event.pointerId);
  }
  function release() {
    if (!drag) return;
    setDrag(null);
    const [from, to] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    dragged.current = to - from >= CLICK;
    if (dragged.current) setZoom([xOf(from), xOf(to)]);
  }
  function click(event) {
    if (dragged.current) return (dragged.current = false);
    // A finger has no hover: its first tap reads, a second on the same point picks.
    if (event.pointerType === "touch" && drawn && !quiet && map()) {
      const place = stopAt(map(), ...inside(event));
      const again = found && tapped.current === place;
      tapped.current = place;
      show(place);
      if (!again) return;
    }
    const x = drawn?.svg.scale("x")?.invert?.(inside(event)[0]);
    if (onPick && x !== undefined) onPick(Math.round(x));
  }
  function key(event) {
    if (quiet || !drawn || !map() || event.metaKey || event.ctrlKey || event.altKey) return;
    const last = map().stops.length - 1;
    const [at, now] = [found ? stop.current : -1, map().stops[stop.current]];
    const to = { ArrowRight: at + 1, ArrowLeft: found ? at - 1 : last, Home: 0, End: last }[event.key];
    if (to !== undefined) setSaid(spoken(show(to)));
    else if (event.key === "Escape") setZoom(null), setFound(null);
    else if (event.key === "+" && drawn.can.zoom) setZoom([xOf(now.px - width / 4), xOf(now.px + width / 4)]);
    else if (event.key === "-" && drawn.can.zoom) setZoom(null);
    else if (event.key === "Enter" && onPick && found && typeof now.x === "number") onPick(Math.round(now.x));
    else return;
    event.preventDefault();
  }
  const brush = drag && Math.abs(drag.to - drag.from) >= CLICK;
  return html`<div class="chart-stage">
    <div class="chart-frame ${onPick ? "pickable" : ""}" ref=${box} role="img" aria-label=${label} style=${{ height: `${height}px` }}
      tabIndex=${quiet ? undefined : 0} data-arrows=${quiet ? undefined : ""}
      onPointerMove=${move} onPointerDown=${press} onPointerUp=${release} onPointerCancel=${() => setDrag(null)}
      onPointerLeave=${(event) => event.pointerType !== "touch" && setFound(null)} onClick=${click} onDblClick=${() => setZoom(null)} onKeyDown=${key}
      onBlur=${() => setFound(null)}>
    </div>
    ${brush
      ? html`<div class="chart-brush" style=${{ left: `${Math.min(drag.from, drag.to)}px`, width: `${Math.abs(drag.to - drag.from)}px` }}></div>`
      : html`<${Readout} found=${found} width=${width} />`}
    ${zoom && html`<button type="button" class="chart-reset" onClick=${() => setZoom(null)}>Reset zoom<span class="visually-hidden"> of: ${label}</span>
    </button>`}
    ${!quiet && html`<span class="visually-hidden" aria-live="polite">${said}</span>`}
  </div>`;
}

function Tools({ label, drawn, table, legend, settings }) {
  if (!drawn) return null;
  const about = html`<span class="visually-hidden"> of: ${label}</span>`;
  return html`<div class="chart-tools">
    ${settings.own && drawn.can.smooth && html`<button type="button" aria-pressed=${settings.smooth > 0} onClick=${() => settings.turn("smooth")}>Smooth${about}
    </button>`}
    ${settings.own && drawn.can.log && html`<button type="button" aria-pressed=${settings.log} onClick=${() => settings.turn("log")}>Log axis${about}</button>`}
    <button type="button" onClick=${() => saveCsv(label, table ?? tableOf(drawn))}>CSV${about}</button>
    <button type="button" onClick=${() => savePng(label, drawn.svg, legend && !drawn.labelled ? legend : null)}>PNG${about}</button>
  </div>`;
}

// At most MOST_TABLE_ROWS rows, evenly spaced.
function DataTable({ columns, rows, label }) {
  const [open, setOpen] = useState(false);
  const stride = Math.max(1, Math.ceil(rows.length / MOST_TABLE_ROWS));
  const shown = open ? rows.filter((_, index) => index % stride === 0) : [];
  return html`<details class="data" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Numbers<span class="visually-hidden"> of: ${label}</span></summary>
    ${open &&
    html`<div class="scroll" tabIndex="0" role="group" aria-label=${`Table: ${label}`}>
      <table><thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>
        ${shown.map((row) => html`<tr>
          ${row.map((cell) => html`<td class="num">${typeof cell === "number" ? number(cell, 4) : visible(String(cell ?? ""))}</td>`)}</tr>`)}
      </tbody>
      </table>
    </div>`}
  </details>`;
}
