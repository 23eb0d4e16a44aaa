// Components of chapters. The address holds all settings of the reader; the server computes all numbers.
import { createContext } from "preact";
import { html } from "htm/preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { useApi } from "./api.js";
import { Chart } from "./chart.js";
import { number } from "./format.js";
import { Fetched, Segmented } from "./parts.js";
import { address, route, setQuery } from "./route.js";
import { Tex } from "./tex.js";
export { useStyle } from "./load.js";
export { Trial } from "./trial.js";
export { Fetched, Tex };
export const Figure = Chart;

export const Depth = createContext("intuition");
export const useDepth = () => useContext(Depth);

// One idea. `depth`, if given, names the depths that show it: "math", or "math code".
export function Section({ title, lead, id, depth, children }) {
  const now = useDepth();
  if (depth && !depth.split(" ").includes(now)) return null;
  return html`<section class="lesson-section" id=${id}>
    <h2>${title}</h2>
    ${lead && html`<p class="section-lead">${lead}</p>`}
    ${children}
  </section>`;
}

// Part of a section that only some depths show.
export function Only({ depth, children }) {
  return depth.split(" ").includes(useDepth()) ? children : null;
}

// The frame of an interactive part.
export function Play({ label, children }) {
  return html`<div class="play" role="group" aria-label=${label}>${children}</div>`;
}

// The value of a name in the address; a number if the default is one.
export function param(name, otherwise) {
  const text = route.value.query.get(name);
  if (text === null) return otherwise;
  return typeof otherwise === "number" ? (Number.isFinite(Number(text)) ? Number(text) : otherwise) : text;
}

// The entry of a list at a slider's position; the default if the address has an invalid position.
export const among = (list, place, otherwise) => list[place] ?? list[otherwise];

// A native range: arrow keys, Home and End move it. The address keeps its value, unless it is the default.
export function Slider({ name, label, min, max, step, value, show = (now) => number(now, 3) }) {
  const now = param(name, value);
  const set = (event) => setQuery({ [name]: Number(event.target.value) === value ? undefined : event.target.value });
  return html`<label class="knob"><span class="knob-label">${label} <b class="num">${show(now)}</b></span>
    <input type="range" name=${name} min=${min} max=${max} step=${step} value=${now} onInput=${set} aria-valuetext=${show(now)} /></label>`;
}

export function Choice({ name, label, options, value, quiet = false }) {
  const now = param(name, value);
  return html`<div class="knob">${!quiet && html`<span class="knob-label">${label}</span>`}
    <${Segmented} label=${label} options=${options} value=${now} onChange=${(key) => setQuery({ [name]: key === value ? undefined : key })} /></div>`;
}

// A text field; the address keeps its value.
export function TextField({ name, label, value, most = 400, rows = 1 }) {
  const now = param(name, value);
  const set = (event) => setQuery({ [name]: event.target.value === value ? undefined : event.target.value });
  return html`<label class="knob wide"><span class="knob-label">${label}</span>
    ${rows > 1
      ? html`<textarea name=${name} rows=${rows} maxlength=${most} spellcheck=${false} onInput=${set}>${now}</textarea>`
      : html`<input type="text" name=${name} maxlength=${most} spellcheck=${false} value=${now} onInput=${set} />`}
    </label>`;
}

const REST = 40; // ms without a change before a request

// The server's answer to a chapter's query; the last one stays while the next one loads.
export function useAnswer(slug, key, params = {}) {
  const wanted = address(`/api/chapters/${slug}/${key}`, params);
  const [url, setUrl] = useState(wanted);
  useEffect(() => {
    if (url === wanted) return;
    const timer = setTimeout(() => setUrl(wanted), REST);
    return () => clearTimeout(timer);
  }, [wanted]);
  const state = useApi(url);
  return { ...state, loading: state.loading || url !== wanted };
}

// A formula; `spoken` is what a screen reader says.
export function Equation({ tex, spoken }) {
  return html`<div class="equation scroll" tabIndex="0" role="group" aria-label="Formula"><div role="img" aria-label=${spoken}><${Tex} block>${tex}<//></div>
    </div>`;
}

// The source of the function that computed the answer.
export function Code({ slug, source, open = false, title }) {
  const [shown, setShown] = useState(open);
  return html`<details class="code" open=${open} onToggle=${(event) => event.currentTarget.open && setShown(true)}>
    <summary>${title ?? html`The source of <code>${source}</code>`}</summary>
    ${shown && html`<${Listing} slug=${slug} source=${source} />`}
  </details>`;
}

function Listing({ slug, source }) {
  const state = useApi(`/api/chapters/${slug}/source/${source}`);
  return html`<${Fetched} state=${state} height="10rem">
    ${(found) => html`<p class="small soft code-name"><code>${found.name}</code> <span>${found.file}, line ${found.line}</span></p>
    <pre class="scroll" tabIndex="0" role="group" aria-label=${`Source of ${found.name}`}><code>${dedent(found.text)}</code></pre>`}<//>`;
}

function dedent(text) {
  const indent = Math.min(...text.split("\n").filter((line) => line.trim()).map((line) => line.match(/^ */)[0].length));
  return text.split("\n").map((line) => line.slice(indent)).join("\n").trimEnd();
}

// Predict, then compute: the answer shows only after a guess. `children` is a function of the guess.
export function Question({ name, ask, options, children }) {
  const picked = param(name, "");
  return html`<div class="question">
    <p class="question-ask" id=${`ask-${name}`}>${ask}</p>
    <div class="question-options" role="group" aria-labelledby=${`ask-${name}`}>${options.map(
      ([key, text]) => html`<button type="button" class=${picked === key ? "picked" : ""} aria-pressed=${picked === key}
        onClick=${() => setQuery({ [name]: key })}>
        ${text}</button>`,
    )}</div>
    ${picked ? html`<div class="question-answer" role="status">${children(picked)}</div>` : html`<p class="small faint">Choose an answer.</p>`}
  </div>`;
}

// Whether the guess was right.
export function Verdict({ picked, right, children }) {
  return html`<div class="verdict"><p><b class=${picked === right ? "good" : "missed"}>${picked === right ? "Correct." : "Not quite."}</b></p>${children}
    </div>`;
}

// A common claim, and a button that runs the computation about it.
export function Misconception({ name, claim, children }) {
  const open = param(name, "") === "run";
  return html`<div class="misconception">
    <p class="small soft">A common claim</p>
    <p class="claim">“${claim}”</p>
    <button type="button" aria-expanded=${open} onClick=${() => setQuery({ [name]: open ? undefined : "run" })}>${open ? "Hide the result" : "Check it"}
    </button>
    ${open && html`<div class="refutation" role="status">${children}</div>`}
  </div>`;
}

// A number reported by others and not measured here.
export function Reported({ source, children }) {
  return html`<span class="reported">${children} <span class="reported-source">reported: ${source}</span></span>`;
}

// Cells are text, numbers or elements; the first of each row is its heading.
export function Table({ label, head, rows, foot }) {
  return html`<div class="scroll table" tabIndex="0" role="group" aria-label=${label}><table>
    <thead><tr>${head.map((cell) => (cell ? html`<th scope="col">${cell}</th>` : html`<td></td>`))}</tr></thead>
    <tbody>
      ${rows.map(([first, ...rest]) => html`<tr><th scope="row">${first}</th>
        ${rest.map((cell) => html`<td class=${typeof cell === "number" ? "num" : ""}>${typeof cell === "number" ? number(cell) : cell}</td>`)}</tr>`)}
    </tbody>
  </table></div>${foot && html`<p class="small soft">${foot}</p>`}`;
}

// An analogy.
export function Analogy({ title, children }) {
  return html`<aside class="analogy" aria-label=${title}><h3>${title}</h3>${children}</aside>`;
}

// Labelled numbers in a row.
export function Numbers({ items }) {
  return html`<dl class="stats">
    ${items.map(([label, value, note, key]) => html`<div class="stat"><dt>${label}</dt>
      <dd><span class="stat-value num" data-number=${key}>${typeof value === "number" ? number(value) : value}</span>
        ${note && html` <span class="soft small">${note}</span>`}</dd>
    </div>`)}
    </dl>`;
}

