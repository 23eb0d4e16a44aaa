// Time by phase of every step, and between steps.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Chart } from "../chart.js";
import { percent, seconds, tick } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Fetched, Stat } from "../parts.js";
import { setQuery } from "../route.js";
import { chosenStep, whyStep } from "./groups.js";

const PHASES = {
  rollout: ["rollout", "var(--c1)", "sampling the completions"],
  wait: ["waiting for answers", "var(--c5)", "the part of the rollout in which no row samples: tools, environments or the task answer"],
  reward: ["reward", "var(--c4)", "scoring the completions"],
  update: ["update", "var(--c3)", "log-probabilities, loss, gradient, optimizer"],
  record: ["record", "var(--c2)", "writing the record"],
  between: ["between steps", "var(--c6)", "evaluations, checkpoints, waiting"],
};
// Most ranks that are listed.
const RANKS = 16;
const about = (name) => PHASES[name] ?? [name, "var(--c5)", ""];

export function Time({ url, version, about: run, query }) {
  useStyle("css/time.css");
  const state = useApi(`${url}/timeline?points=160`, version);
  const speed = useApi(`${url}/series?names=tokens_per_second&points=160`, version);
  const step = chosenStep(run, query);
  return html`<${Fetched} state=${state} height="50rem">${({ rows, width }) => {
    const names = Object.keys(PHASES).filter((name) => rows.some((row) => row.name === name)).concat(
      [...new Set(rows.map((row) => row.name))].filter((name) => !(name in PHASES)),
    );
    const totals = Object.fromEntries(names.map((name) => [name, rows.filter((row) => row.name === name).reduce((sum, row) => sum + row.seconds * width, 0)]));
    const all = Object.values(totals).reduce((a, b) => a + b, 0);
    return html`
      <dl class="stats">
        ${names.map((name) => html`<${Stat} label=${about(name)[0]} value=${percent(totals[name] / all)} note=${seconds(run.seconds[name] ?? totals[name])}
          hint=${about(name)[2]} />`)}
      </dl>
      <${Card} title="Seconds of each step by phase" note=${`${width > 1 ? `Means over ${width} steps. ` : ""}Click to show one step below.`}>
        <${Chart} label="Seconds by phase over the steps" height=${260} deps=${[rows.length, rows.at(-1)?.step]} onPick=${(at) => setQuery({ step: at })}
          legend=${names.map((name) => [about(name)[0], about(name)[1], "square"])}
          build=${(Plot) => ({
            x: { label: "step" },
            y: { label: "seconds", grid: true, nice: true, tickFormat: (v) => `${tick(v)} s` },
            marks: [
              Plot.rectY(rows, {
                x1: (row) => row.step - width / 2,
                x2: (row) => row.step + width / 2,
                y: "seconds",
                fill: (row) => about(row.name)[1],
                order: names,
                z: "name",
                inset: width > 1 || rows.length < 900 ? 0.3 : 0,
              }),
              Plot.ruleX([step], { stroke: "var(--ink)", strokeOpacity: 0.5 }),
            ],
          })}
          table=${{ columns: ["step", "phase", "seconds"], rows: rows.map((row) => [row.step, row.name, row.seconds]) }} />
      <//>
      <${OneStep} url=${url} step=${step} why=${whyStep(run, query)} />
      ${run.ranks?.idle.length > 0 && html`<${Idle} ranks=${run.ranks.idle} />`}
      <${Fetched} state=${speed} height="14rem">${({ series }) => {
        const points = series.tokens_per_second;
        if (!points) return null;
        const line = points.step.map((at, i) => ({ at, rate: points.mean[i] }));
        return html`<${Card} title="Tokens sampled per second">
          <${Chart} label="Tokens sampled per second over the steps" height=${160} deps=${[line.length, line.at(-1)?.rate]}
            build=${(Plot) => ({
              x: { label: "step" },
              y: { label: "tokens per second", grid: true, zero: true, tickFormat: tick },
              marks: [Plot.lineY(line, { x: "at", y: "rate", stroke: "var(--c1)" })],
            })}
            table=${{ columns: ["step", "tokens per second"], rows: line.map((row) => [row.at, row.rate]) }} />
        <//>`;
      }}<//>`;
  }}<//>`;
}

function Idle({ ranks }) {
  const mean = ranks.reduce((sum, row) => sum + row.idle, 0) / ranks.length;
  const all = `${percent(mean)} on average over ${ranks.length} ranks`;
  return html`<${Card} title="Idle time of each rank"
    note=${`Share of the training time spent waiting for other ranks and for the network: ${all}${ranks.length > RANKS
      ? `; the ${RANKS} idlest are listed`
      : ""}.`}>
    <ul class="gantt ranks">
      ${ranks.slice(0, RANKS).map((row) => html`<li><span class="small">rank ${row.rank} <span class="soft">${row.host}</span></span>
        <span class="gantt-track" aria-hidden="true"><i style=${{ left: 0, width: `max(2px, ${100 * Math.min(1, row.idle)}%)`, background: "var(--c6)" }}></i>
        </span>
        <span class="num small">${percent(row.idle, 1)}</span></li>`)}
    </ul>
  <//>`;
}

function OneStep({ url, step, why }) {
  const state = useApi(`${url}/steps/${step}/spans`);
  return html`<${Card} title=${`Step ${step}`} note=${why && `${why[0].toUpperCase()}${why.slice(1)}.`}>
    <${Fetched} state=${state} height="6rem">${(spans) => {
      const end = Math.max(1e-9, ...spans.map((span) => span.start + span.seconds));
      return html`<ul class="gantt">
        ${spans.map((span) => html`<li><span class="small">${about(span.name)[0]}</span>
          <span class="gantt-track" aria-hidden="true">
            <i style=${{ left: `${(100 * span.start) / end}%`, width: `max(2px, ${(100 * span.seconds) / end}%)`, background: about(span.name)[1] }}></i></span>
          <span class="num small">${seconds(span.seconds)}</span></li>`)}
        </ul>`;
    }}<//>
  <//>`;
}
