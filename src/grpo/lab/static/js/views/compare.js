// Comparison of runs.
import { html } from "htm/preact";
import { definitions, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { Line } from "../episode.js";
import { isShare, number, percent, tick } from "../format.js";
import { Card, Empty, Fetched, MetricHint, Reward, Segmented } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";

const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const AXES = [["steps", "steps"], ["tokens", "tokens"], ["seconds", "seconds"]];

export function Compare({ query }) {
  const chosen = (query.get("runs") ?? "").split(",").filter(Boolean);
  const metric = query.get("metric") ?? "reward_mean";
  const by = query.get("by") ?? "steps";
  const runs = useApi("/api/runs");
  const state = useApi(chosen.length ? address("/api/compare", { runs: chosen.join(","), metric, by, points: 200 }) : null);
  const turn = (id) => setQuery({ runs: (chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id]).join(",") });
  return html`<main class="page" id="main">
    <div class="page-head"><div><h1>Compare</h1><p class="soft">Runs that differ only in their seed are drawn as one curve with a band.</p></div></div>
    <${Fetched} state=${runs} height="4rem">${({ runs: all }) => html`<div class="row chips" role="group" aria-label="Runs">${all.filter((run) => !run.problem).map((run) => html`<button type="button" class="chip ${chosen.includes(run.id) ? "chosen" : ""}" aria-pressed=${chosen.includes(run.id)} onClick=${() => turn(run.id)}>${run.name}</button>`)}</div>`}<//>
    ${chosen.length
      ? html`<${Fetched} state=${state} height="50rem">${(data) => html`<${Comparison} data=${data} metric=${metric} by=${by} />`}<//>`
      : html`<${Empty} title="Choose runs">Select one or more runs above.<//>`}
  </main>`;
}

function Comparison({ data, metric, by }) {
  const names = Object.keys(definitions.value?.training ?? {}).filter((name) => name !== "sft_loss");
  const unit = definitions.value?.training?.[metric]?.unit;
  const colour = new Map(data.experiments.flatMap((runs, place) => runs.map((run) => [run, COLOURS[place % COLOURS.length]])));
  const label = (runs) => (runs.length > 1 ? `${runs[0].replace(/^~/, "")} and ${runs.length - 1} more seed${runs.length > 2 ? "s" : ""}` : runs[0].replace(/^~/, ""));
  const lines = data.experiments.flatMap((runs) => (runs.length > 1 ? [] : data.curves[runs[0]].map((point) => ({ ...point, run: runs[0] }))));
  const faint = data.experiments.flatMap((runs) => (runs.length > 1 ? runs.flatMap((run) => data.curves[run].map((point) => ({ ...point, run }))) : []));
  const bands = data.bands.flatMap((band) => band.points.map((point) => ({ ...point, run: band.runs[0] })));
  const held = Object.entries(data.evaluations).flatMap(([run, rows]) => rows.map((row) => ({ ...row, run })));
  return html`
    <div class="row"><label class="small soft">Metric <select value=${metric} onChange=${(event) => setQuery({ metric: event.target.value })}>${names.map((name) => html`<option value=${name} selected=${name === metric}>${name}</option>`)}</select></label><${MetricHint} name=${metric} />
      <${Segmented} label="Align by" value=${by} onChange=${(next) => setQuery({ by: next })} options=${AXES} /></div>
    <${Card} title=${metric.replaceAll("_", " ")}>
      <${Chart} label=${`${metric} of ${data.experiments.map(label).join(", ")} by ${by}`} height=${300} deps=${[metric, by, JSON.stringify(data.experiments), lines.length, bands.length]}
        legend=${data.experiments.map((runs) => [label(runs), colour.get(runs[0])])}
        build=${(Plot) => ({
          x: { label: by, tickFormat: by === "tokens" ? "~s" : undefined }, y: { label: null, grid: true, tickFormat: isShare(unit) ? (v) => percent(v) : tick }, marginLeft: 56,
          marks: [
            Plot.areaY(bands, { x: "x", y1: "low", y2: "high", fill: (row) => colour.get(row.run), fillOpacity: 0.18, z: "run" }),
            Plot.lineY(faint, { x: "x", y: "y", z: "run", stroke: (row) => colour.get(row.run), strokeOpacity: 0.25, strokeWidth: 1 }),
            Plot.lineY(bands, { x: "x", y: "mean", z: "run", stroke: (row) => colour.get(row.run), strokeWidth: 2 }),
            Plot.lineY(lines, { x: "x", y: "y", z: "run", stroke: (row) => colour.get(row.run), strokeWidth: 1.8 }),
          ],
        })}
        table=${{ columns: ["run", by, metric], rows: Object.entries(data.curves).flatMap(([run, points]) => points.map((point) => [run, point.x, point.y])) }} />
      ${data.bands.length > 0 && html`<p class="tiny soft">The band is the mean over seeds, ± one sample standard deviation.</p>`}
    <//>
    ${held.length > 0 && html`<${Card} title="Held-out accuracy" note="With its 95% interval.">
      <${Chart} label="Held-out accuracy of the runs" height=${240} deps=${[by, held.length, JSON.stringify(data.experiments)]}
        build=${(Plot) => ({ x: { label: by, tickFormat: by === "tokens" ? "~s" : undefined }, y: { label: null, grid: true, domain: [0, 1], tickFormat: (v) => percent(v) }, marks: [Plot.areaY(held, { x: "x", y1: "low", y2: "high", fill: (row) => colour.get(row.run), fillOpacity: 0.12, z: "run" }), Plot.lineY(held, { x: "x", y: "accuracy", z: "run", stroke: (row) => colour.get(row.run), marker: "dot" })] })}
        table=${{ columns: ["run", by, "accuracy", "low", "high"], rows: held.map((row) => [row.run, row.x, row.accuracy, row.low, row.high]) }} />
    <//>`}
    <${Differences} data=${data} />
    <${SidebySide} data=${data} />`;
}

function Differences({ data }) {
  const runs = Object.keys(data.curves);
  if (runs.length < 2) return null;
  return html`<${Card} title="Settings that differ">
    ${data.differences.length
      ? html`<div class="scroll" tabIndex="0" role="group" aria-label="Settings that differ"><table><thead><tr><th scope="col">setting</th>${runs.map((run) => html`<th scope="col"><${Link} to=${`/runs/${encodeURIComponent(run)}`}>${run.replace(/^~/, "")}<//></th>`)}</tr></thead>
        <tbody>${data.differences.map((row) => html`<tr><th scope="row"><code>${row.name}</code></th>${runs.map((run) => html`<td class="mono num">${row.values[run] === undefined || row.values[run] === null || row.values[run] === "" ? "–" : String(row.values[run])}</td>`)}</tr>`)}</tbody></table></div>`
      : html`<p class="soft">None: all settings are equal.</p>`}
  <//>`;
}

function SidebySide({ data }) {
  const runs = Object.keys(data.curves);
  if (!data.probes.length) return null;
  return html`<${Card} title="The same problem, side by side" note="Pinned problems that all of these runs share, at their last evaluation.">
    <div class="scroll" tabIndex="0" role="group" aria-label="Pinned problems side by side"><table class="side"><thead><tr><th scope="col">problem</th>${runs.map((run) => html`<th scope="col">${run.replace(/^~/, "")}</th>`)}</tr></thead>
      <tbody>${data.probes.map((probe) => html`<tr><th scope="row"><${Untrusted} text=${probe.prompt.slice(0, 200)} /><br /><span class="faint">answer <${Untrusted} text=${probe.answer} /></span></th>${runs.map((run) => html`<td><${Last} moment=${probe.runs[run].at(-1)} /></td>`)}</tr>`)}</tbody></table></div>
  <//>`;
}

function Last({ moment }) {
  const right = moment.samples.filter((sample) => sample.correct).length;
  const best = [...moment.samples].sort((a, b) => b.reward - a.reward)[0];
  return html`<span class="num small">${moment.samples.every((sample) => sample.correct === null) ? "" : `${right} of ${moment.samples.length} right, `}after ${number(moment.step)} steps</span><br /><${Reward} value=${best.reward} /> ${best.turns ? html`<${Line} turns=${best.turns} />` : html`<${Untrusted} text=${best.text.slice(0, 200)} />`}`;
}
