// Comparison of runs: several metrics at once, live while a run trains.
import { html } from "htm/preact";
import { definitions, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { ChartSettings } from "../chart/settings.js";
import { Line } from "../episode.js";
import { isShare, metricTitle, number, percent, plural, runName, tick } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Empty, Fetched, MetricHint, Reward, Segmented } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";
import { useListing } from "./listing.js";

const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const FIRST = ["reward_mean", "length_mean", "entropy", "grad_norm", "kl"];
const AXES = [["steps", "steps"], ["tokens", "tokens"], ["seconds", "seconds"]];

export function Compare({ query }) {
  useStyle("css/runs.css");
  const chosen = list(query, "runs");
  const metrics = query.get("metrics") === null ? FIRST : list(query, "metrics");
  const by = query.get("by") ?? "steps";
  const runs = useListing();
  // The state of the chosen runs: while one trains, the comparison grows with it.
  const version = (runs.data?.runs ?? []).filter((run) => chosen.includes(run.id)).map((run) => `${run.steps} ${run.status}`).join(" ");
  const state = useApi(
    chosen.length && runs.data ? address("/api/compare", { runs: chosen.join(","), metrics: metrics.join(","), by, points: 200 }) : null,
    version,
  );
  const turn = (id) => setQuery({ runs: changed(chosen, id).join(",") });
  const colour = coloursOf(state.data?.experiments ?? []);
  return html`<main class="page" id="main">
    <div class="page-head"><div><h1>Compare</h1><p class="soft">Runs that differ only in their seed are drawn as one curve with a band.</p></div></div>
    <${Fetched} state=${runs} height="4rem">
      ${({ runs: all }) => html`<div class="row chips" role="group" aria-label="Runs">
        ${all.filter((run) => !run.problem).map((run) => html`<button type="button" class="chip ${chosen.includes(run.id) ? "chosen" : ""}"
          aria-pressed=${chosen.includes(run.id)} onClick=${() => turn(run.id)}>
          ${colour.has(run.id) && chosen.includes(run.id) && html`<i class="key dot" style=${{ "--key": colour.get(run.id) }}></i>`}${run.name}
          ${run.status === "running" ? " (running)" : ""}</button>`)}
      </div>`}
    <//>
    ${chosen.length
      ? html`<div class="row"><${Segmented} label="Align by" value=${by} onChange=${(next) => setQuery({ by: next })} options=${AXES} /></div>
        <${Picker} metrics=${metrics} />
        <${ChartSettings}><${Fetched} state=${state} height="50rem">${(data) => html`<${Comparison} data=${data} by=${by} colour=${colour} />`}<//><//>`
      : html`<${Empty} title="Choose runs">Select one or more runs above.<//>`}
  </main>`;
}

const list = (query, name) => (query.get(name) ?? "").split(",").filter(Boolean);
const changed = (names, name) => (names.includes(name) ? names.filter((other) => other !== name) : [...names, name]);
const coloursOf = (experiments) => new Map(experiments.flatMap((runs, place) => runs.map((run) => [run, COLOURS[place % COLOURS.length]])));
const nameOf = (runs) => (runs.length > 1 ? `${runName(runs[0])} and ${plural(runs.length - 1, "more seed")}` : runName(runs[0]));

function Picker({ metrics }) {
  const names = Object.keys(definitions.value?.training ?? {});
  return html`<details class="metric-picker">
    <summary class="small">${plural(metrics.length, "metric")}: ${metrics.map((name) => name.replaceAll("_", " ")).join(", ")}</summary>
    <ul>
      ${names.map((name) => html`<li>
        <label class="small">
          <input type="checkbox" checked=${metrics.includes(name)} onChange=${() => setQuery({ metrics: changed(metrics, name).join(",") || undefined })} />
          ${name.replaceAll("_", " ")}</label>
      </li>`)}
    </ul>
  </details>`;
}

function Comparison({ data, by, colour }) {
  const recorded = data.metrics.filter((metric) => Object.values(data.curves[metric]).some((curve) => curve.length));
  const missing = data.metrics.filter((metric) => !recorded.includes(metric));
  const legend = data.experiments.map((runs) => [nameOf(runs), colour.get(runs[0])]);
  return html`
    <h2 class="visually-hidden">Metrics</h2>
    <div class="small-multiples">
      <${HeldOut} data=${data} by=${by} colour=${colour} legend=${legend} />
      ${recorded.map((metric) => html`<${Curves} key=${metric} metric=${metric} data=${data} by=${by} colour=${colour} legend=${legend} />`)}
    </div>
    ${missing.length > 0 && html`<p class="small soft">Not recorded by these runs: ${missing.join(", ").replaceAll("_", " ")}.</p>`}
    ${data.experiments.some((runs) => runs.length > 1) && html`<p class="tiny soft">The band is the mean over seeds, ± one sample standard deviation; faint:
      each seed.</p>`}
    <${Differences} data=${data} />
    <${SidebySide} data=${data} />`;
}

// Sampled tokens can be many: short numbers.
const axisOf = (by) => ({ label: by === "steps" ? "steps taken" : by, tickFormat: by === "tokens" ? "~s" : undefined });

function Curves({ metric, data, by, colour, legend }) {
  const unit = definitions.value?.training?.[metric]?.unit;
  const curves = data.curves[metric];
  const points = (runs) => runs.flatMap((run) => curves[run].map((point) => ({ ...point, run })));
  const lines = points(data.experiments.filter((runs) => runs.length === 1).flat());
  const faint = points(data.experiments.filter((runs) => runs.length > 1).flat());
  const bands = data.bands[metric].flatMap((band) => band.points.map((point) => ({ ...point, run: band.runs[0] })));
  const paint = (row) => colour.get(row.run);
  return html`<section class="card metric"><header><h3>${metric.replaceAll("_", " ")}<${MetricHint} name=${metric} /></h3></header>
    <${Chart} label=${`${metric} of ${legend.map(([text]) => text).join(", ")} by ${by}`} height=${220}
      deps=${[metric, by, JSON.stringify(data.experiments), lines.length, faint.length, lines.at(-1)?.x, faint.at(-1)?.x]} legend=${legend}
      build=${(Plot) => ({
        x: axisOf(by), y: { label: metricTitle(metric, unit), grid: true, ticks: 5, tickFormat: isShare(unit) ? (v) => percent(v) : tick },
        marks: [
          Plot.areaY(bands, { x: "x", y1: "low", y2: "high", fill: paint, fillOpacity: 0.18, z: "run" }),
          Plot.lineY(faint, { x: "x", y: "y", z: "run", stroke: paint, strokeOpacity: 0.25, strokeWidth: 1 }),
          Plot.lineY(bands, { x: "x", y: "mean", z: "run", stroke: paint, strokeWidth: 2 }),
          Plot.lineY(lines, { x: "x", y: "y", z: "run", stroke: paint, strokeWidth: 1.8 }),
        ],
      })}
      table=${{
        columns: ["run", by, metric],
        rows: Object.entries(curves).flatMap(([run, found]) => found.map((point) => [runName(run), point.x, point.y])),
      }} />
    </section>`;
}

function HeldOut({ data, by, colour, legend }) {
  const held = Object.entries(data.evaluations).flatMap(([run, rows]) => rows.map((row) => ({ ...row, run })));
  if (!held.length) return null;
  const paint = (row) => colour.get(row.run);
  return html`<section class="card metric"><header><h3>held-out accuracy</h3><span class="tiny soft">with its 95% interval</span></header>
    <${Chart} label=${`Held-out accuracy of ${legend.map(([text]) => text).join(", ")} by ${by}`} height=${220}
      deps=${[by, held.length, JSON.stringify(data.experiments)]} legend=${legend}
      build=${(Plot) => ({
        x: axisOf(by),
        y: { label: "accuracy", grid: true, domain: [0, 1], tickFormat: (v) => percent(v) },
        marks: [
          Plot.areaY(held, { x: "x", y1: "low", y2: "high", fill: paint, fillOpacity: 0.12, z: "run" }),
          Plot.lineY(held, { x: "x", y: "accuracy", z: "run", stroke: paint, marker: "dot", ariaLabel: (row) => runName(row.run) }),
        ],
      })}
      table=${{ columns: ["run", by, "accuracy", "low", "high"], rows: held.map((row) => [runName(row.run), row.x, row.accuracy, row.low, row.high]) }} />
    </section>`;
}

function Differences({ data }) {
  const { runs } = data;
  if (runs.length < 2) return null;
  return html`<${Card} title="Settings that differ">
    ${data.differences.length
      ? html`<div class="scroll" tabIndex="0" role="group" aria-label="Settings that differ">
        <table>
          <thead>
            <tr><th scope="col">setting</th>
              ${runs.map((run) => html`<th scope="col"><${Link} to=${`/runs/${encodeURIComponent(run)}`}>${runName(run)}<//></th>`)}</tr>
          </thead>
        <tbody>
          ${data.differences.map((row) => html`<tr><th scope="row"><code>${row.name}</code></th>
            ${runs.map((run) => html`<td class="mono num">
              ${row.values[run] === undefined || row.values[run] === null || row.values[run] === "" ? "–" : String(row.values[run])}</td>`)}
          </tr>`)}
        </tbody>
        </table>
      </div>`
      : html`<p class="soft">None: all settings are equal.</p>`}
  <//>`;
}

function SidebySide({ data }) {
  const { runs } = data;
  if (!data.probes.length) return null;
  return html`<${Card} title="The same problem, side by side" note="Pinned problems that all of these runs share, at their last evaluation.">
    <div class="scroll" tabIndex="0" role="group" aria-label="Pinned problems side by side">
      <table class="side"><thead><tr><th scope="col">problem</th>${runs.map((run) => html`<th scope="col">${runName(run)}</th>`)}</tr></thead>
      <tbody>
        ${data.probes.map((probe) => html`<tr>
          <th scope="row"><${Untrusted} text=${probe.prompt.slice(0, 200)} /><br /><span class="faint">answer <${Untrusted} text=${probe.answer} /></span></th>
          ${runs.map((run) => html`<td><${Last} moment=${probe.runs[run].at(-1)} /></td>`)}</tr>`)}
      </tbody>
      </table>
    </div>
  <//>`;
}

function Last({ moment }) {
  const right = moment.samples.filter((sample) => sample.correct).length;
  const best = [...moment.samples].sort((a, b) => b.reward - a.reward)[0];
  return html`<span class="num small">
    ${moment.samples.every((sample) => sample.correct === null) ? "" : `${right} of ${moment.samples.length} right, `}after ${number(moment.step)} steps</span>
    <br /><${Reward} value=${best.reward} /> ${best.turns ? html`<${Line} turns=${best.turns} />` : html`<${Untrusted} text=${best.text.slice(0, 200)} />`}`;
}
