// Definitions of all recorded metrics.
import { html } from "htm/preact";
import { definitions } from "../api.js";
import { Loading } from "../parts.js";

// A text with its `names` as code.
const coded = (text) => text.split("`").map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));

export function Metrics() {
  const tables = definitions.value;
  return html`<main class="page narrow" id="main">
    <div class="page-head"><div><h1>Metrics</h1><p class="soft">Every metric that a run records, from the trainer's own table.</p></div></div>
    ${tables
      ? [["Training, one row per step", "training"], ["Evaluation, on held-out problems", "evaluation"]].map(
          ([title, key]) => html`<h2 class="section-title">${title}</h2>
            <dl class="definitions">${Object.entries(tables[key]).map(
              ([name, metric]) => html`<div>
                <dt id=${name}><code>${name}</code><span class="faint small">${metric.unit === "none" ? "" : metric.unit}</span></dt>
                <dd><p>${coded(metric.definition)}</p><p class="soft small">Healthy: ${coded(metric.healthy)}</p></dd></div>`,
            )}</dl>`,
        )
      : html`<${Loading} height="60vh" />`}
  </main>`;
}
