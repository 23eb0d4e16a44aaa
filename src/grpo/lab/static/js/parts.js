// Components of views.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { definitions } from "./api.js";
import { signed } from "./format.js";
import { setQuery } from "./route.js";

// States of fetched content. Each has the height of the content, so that nothing jumps.
export function Loading({ height = "12rem", label = "Loading" }) {
  return html`<div class="loading" role="status" style=${{ minHeight: height }}><span class="visually-hidden">${label}</span></div>`;
}

export function Failed({ error }) {
  return html`<div class="failed" role="alert"><h2>Error</h2><p>${error.message}</p></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2><div class="soft">${children}</div></div>`;
}

export function Fetched({ state, height, children }) {
  if (state.data === undefined) return state.error ? html`<${Failed} error=${state.error} />` : html`<${Loading} height=${height} />`;
  return html`<div class="fetched" aria-busy=${state.loading}>
    ${state.error && html`<${Failed} error=${state.error} />`}${children(state.data)}
  </div>`;
}

export function Card({ title, note, actions, children, class: extra = "" }) {
  return html`<section class="card ${extra}">
    ${(title || actions) &&
    html`<header class="card-head"><h2>${title}</h2>${note && html`<p class="soft small">${note}</p>`}${actions && html`<div class="actions">${actions}</div>`}
    </header>`}
    ${children}
  </section>`;
}

export function Stat({ label, value, note, hint }) {
  return html`<div class="stat">
    <dt>${label}${hint && html`<${Hint} text=${hint} />`}</dt>
    <dd><span class="stat-value num">${value}</span>${note && html` <span class="soft small">${note}</span>`}</dd>
  </div>`;
}

// A definition behind a small button: opens in place, closes with Escape or a click elsewhere.
export function Hint({ text, label = "What is this?" }) {
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    if (!open) return;
    const close = (event) => (event.type === "keydown" ? event.key === "Escape" : !box.current?.contains(event.target)) && setOpen(false);
    addEventListener("keydown", close);
    addEventListener("pointerdown", close);
    return () => {
      removeEventListener("keydown", close);
      removeEventListener("pointerdown", close);
    };
  }, [open]);
  return html`<span class="hint" ref=${box}>
    <button type="button" class="hint-button" aria-label=${label} aria-expanded=${open} onClick=${() => setOpen(!open)}>?</button>
    ${open && html`<span class="hint-text" role="note">${text}</span>`}
  </span>`;
}

export function MetricHint({ name, evaluation = false }) {
  const metric = definitions.value?.[evaluation ? "evaluation" : "training"]?.[name];
  if (!metric) return null;
  return html`<${Hint}
    label=${`What is ${name}?`}
    text=${html`<span><b>${name}</b> <span class="faint">${metric.unit}</span></span><span>${metric.definition}</span>
      <span class="faint">Healthy: ${metric.healthy}</span>`}
  />`;
}

// Scrolls a strip of links until the current one is in its middle. (scrollIntoView would also move where Tab begins.)
export function centreCurrent(strip) {
  const [outer, inner] = [strip, strip?.querySelector("[aria-current]")].map((one) => one?.getBoundingClientRect());
  if (inner) strip.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
}

// One choice of a few; arrow keys move it.
export function Segmented({ label, options, value, onChange }) {
  return html`<div class="segmented" role="radiogroup" aria-label=${label}>
    ${options.map(
      ([key, text, title]) => html`<label class=${key === value ? "chosen" : ""} title=${title}>
        <input type="radio" name=${label} value=${key} checked=${key === value} onChange=${() => onChange(key)} />${text}
      </label>`,
    )}
  </div>`;
}

// The colour of an advantage: its sign gives the hue, its size the strength, as in the terminal.
export function advantageClass(value) {
  return value > 0 ? "above" : value < 0 ? "below" : "level";
}

export const strength = (value, unit = 1) => ({ "--strength": Math.tanh(Math.abs(value ?? 0) / unit).toFixed(3) });

export function Advantage({ value }) {
  if (value === null || value === undefined) return html`<span class="faint">–</span>`;
  return html`<span class="advantage num ${advantageClass(value)}" style=${strength(value)}>${signed(value)}</span>`;
}

export function rewardStep(value, top = 1) {
  if (value === null || value === undefined) return "none";
  return Math.round(4 * Math.min(1, Math.max(0, value / (top || 1))));
}

export function Reward({ value, top = 1 }) {
  if (value === null || value === undefined) return html`<span class="faint" title="unscored">–</span>`;
  return html`<span class="reward num reward-${rewardStep(value, top)}">${Number.isInteger(value) ? value.toFixed(0) : value.toFixed(2)}</span>`;
}

// Choice of a step: previous, next, a slider, and the arrow keys anywhere on the page.
export function StepBar({ step, last, following, why }) {
  // Keys may come faster than the page is drawn.
  const at = useRef(step);
  at.current = step;
  function show(to) {
    at.current = present(Math.max(0, Math.min(last, to)), at.current);
    setQuery({ step: at.current, group: undefined, sample: undefined, token: undefined });
  }
  useEffect(() => {
    const press = (event) => {
      if (event.target.closest?.("input, textarea, select, [role=listbox], [data-arrows]") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "ArrowLeft") show(at.current - 1);
      else if (event.key === "ArrowRight") show(at.current + 1);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [last]);
  return html`<div class="stepbar">
    <button type="button" onClick=${() => show(step - 1)} disabled=${step <= 0} aria-label="Previous step">←</button>
    <label><span class="stepbar-label">Step <b class="num">${step}</b> <span class="faint">(0 to ${last})</span></span>
      <input type="range" min="0" max=${last} value=${step} onInput=${(event) => show(Number(event.target.value))} />
    </label>
    <button type="button" onClick=${() => show(step + 1)} disabled=${step >= last} aria-label="Next step">→</button>
    ${following && html`<span class="following small">following the newest</span>`}
    ${why && html`<span class="stepbar-why small soft">${why}</span>`}
  </div>`;
}

// The step itself, or, in an export without it, the next one in the direction of the move.
function present(to, from) {
  const kept = window.grpoExport?.steps;
  return kept ? ((to > from ? kept.find((step) => step >= to) : kept.findLast((step) => step <= to)) ?? from) : to;
}

// A list of any length that renders only the visible rows.
export function VirtualList({ rows, rowHeight, render, onEnd, height = "70vh", label }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setRoom(entry.contentRect.height));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / rowHeight) - 6);
  const end = Math.min(rows.length, Math.ceil((top + room) / rowHeight) + 6);
  useEffect(() => {
    if (onEnd && end >= rows.length - 10) onEnd();
  }, [end, rows.length, onEnd]);
  return html`<div class="virtual" ref=${box} style=${{ height }} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} tabIndex="0" role="group"
    aria-label=${label}>
    <div style=${{ height: `${rows.length * rowHeight}px` }}>
      <div style=${{ transform: `translateY(${first * rowHeight}px)` }}>
        ${rows.slice(first, end).map((row, place) => render(row, first + place))}
      </div>
    </div>
  </div>`;
}
