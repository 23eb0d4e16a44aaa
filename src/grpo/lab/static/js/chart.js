// Observable Plot in a frame of fixed height, with the same numbers as a table for screen readers.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { number } from "./format.js";
import { loadPlot } from "./load.js";

const MOST_TABLE_ROWS = 60;

export function Chart({ label, height = 180, build, deps, table, onPick, legend }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!width) return;
    let drawn = true;
    loadPlot().then((Plot) => {
      if (!drawn || !box.current) return;
      const options = build(Plot, width);
      // An axis label needs its own line, clear of the ticks.
      const [above, below] = [options.y?.label ? 24 : 10, options.x?.label ? 35 : 28];
      const svg = Plot.plot({ width, height, marginLeft: 44, marginRight: 18, marginTop: above, marginBottom: below, ...options });
      // A group with a name and no role confuses screen readers; the frame carries the name.
      svg.querySelectorAll("[aria-label], [aria-description]").forEach((part) => {
        part.removeAttribute("aria-label");
        part.removeAttribute("aria-description");
      });
      svg.setAttribute("aria-hidden", "true");
      if (onPick) {
        svg.classList.add("pickable");
        svg.addEventListener("click", (event) => {
          const x = svg.scale("x").invert?.(event.clientX - svg.getBoundingClientRect().left);
          if (x !== undefined) onPick(Math.round(x));
        });
      }
      box.current.replaceChildren(svg);
    });
    return () => (drawn = false);
  }, [width, height, ...deps]);
  return html`<figure class="chart">
    <div class="chart-frame" ref=${box} role="img" aria-label=${label} style=${{ height: `${height}px` }}></div>
    ${legend && html`<figcaption class="legend">${legend.map(([text, colour, shape]) => html`<span><i class="key ${shape ?? ""}" style=${{ "--key": colour }}></i>${text}</span>`)}</figcaption>`}
    ${table && html`<${DataTable} ...${table} label=${label} />`}
  </figure>`;
}

// At most MOST_TABLE_ROWS rows, evenly spaced.
function DataTable({ columns, rows, label }) {
  const [open, setOpen] = useState(false);
  const stride = Math.max(1, Math.ceil(rows.length / MOST_TABLE_ROWS));
  const shown = open ? rows.filter((_, index) => index % stride === 0) : [];
  return html`<details class="data" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Numbers<span class="visually-hidden"> of: ${label}</span></summary>
    ${open &&
    html`<div class="scroll" tabIndex="0" role="group" aria-label=${`Table: ${label}`}><table><thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr>${row.map((cell) => html`<td class="num">${typeof cell === "number" ? number(cell, 4) : cell}</td>`)}</tr>`)}</tbody></table></div>`}
  </details>`;
}
