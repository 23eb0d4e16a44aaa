// Settings of charts: smoothing and a logarithmic axis. A page with one kind of chart keeps them in its address.
import { createContext } from "preact";
import { html } from "htm/preact";
import { useContext, useState } from "preact/hooks";
import { route, setQuery } from "../route.js";

const USUAL = 0.8;
const MOST = 0.98;
const Shared = createContext(null);

// Of this chart: those of the page, else its own.
export function useSettings() {
  const shared = useContext(Shared);
  const [own, setOwn] = useState({ smooth: 0, log: false });
  if (shared) return { ...shared, own: false };
  return { ...own, own: true, turn: (name) => setOwn({ ...own, [name]: name === "log" ? !own.log : own.smooth ? 0 : USUAL }) };
}

function inAddress() {
  const { query } = route.value;
  const smooth = Number(query.get("smooth"));
  return { smooth: smooth > 0 && smooth <= MOST ? smooth : 0, log: query.get("log") === "1" };
}

// The controls, above the charts that they apply to.
export function ChartSettings({ children }) {
  const settings = inAddress();
  return html`<div class="chart-settings row small soft" role="group" aria-label="Settings of all charts">
      <label>Smoothing <input type="range" min="0" max=${MOST} step="0.02" value=${settings.smooth}
        onInput=${(event) => setQuery({ smooth: Number(event.target.value) || undefined })} /> <span class="num">
          ${settings.smooth ? settings.smooth.toFixed(2) : "off"}</span>
      </label>
      <label><input type="checkbox" checked=${settings.log} onChange=${(event) => setQuery({ log: event.target.checked ? 1 : undefined })} /> log axis</label>
      <span class="tiny faint how">Drag over a chart to zoom.</span>
    </div>
    <${Shared.Provider} value=${settings}>${children}<//>`;
}
