// Overview of a run: held-out accuracy first, then every recorded metric with its definition.
import { html } from "htm/preact";
import { definitions, useApi } from "../api.js";
import { Chart } from "../chart.js";
import { ChartSettings } from "../chart/settings.js";
import { bytes, isShare, metricTitle, metricValue, number, percent, plural, tick } from "../format.js";
import { Card, Empty, Fetched, MetricHint, Stat } from "../parts.js";
import { address, go, route, setQuery } from "../route.js";
import { Episodes } from "./episodes.js";
import { Pace } from "./pace.js";

const FIRST = ["reward_mean", "zero_signal_groups", "gradient_tokens", "loss", "grad_norm", "kl", "entropy", "length_mean", "sft_loss"];

export function Overview({ url, about, version, base }) {
  const series = useApi(`${url}/series?points=240`, version);
  const judged = about.evals.filter((row) => row.accuracy !== null);
  const last = judged.at(-1);
  const first = judged[0];
  return html`
    <dl class="stats">
      <${Stat} label="Held-out accuracy" value=${last ? percent(last.accuracy, 1) : "–"}
        note=${last && first !== last ? `from ${percent(first.accuracy, 1)}` : ""} />
      <${Stat} label="95% interval" value=${last ? `${percent(last.low)} – ${percent(last.high)}` : "–"}
        note=${last ? `after ${plural(last.step, "step")}` : ""} />
      <${Stat} label="Steps" value=${number(about.steps)} note=${about.steps_total > about.steps ? `of ${number(about.steps_total)}` : ""} />
    </dl>
    <${Pace} about=${about} version=${version} />
    ${judged.length > 0 && html`<${Accuracy} evals=${judged} about=${about} series=${series.data?.series?.accuracy} />`}
    <${Fetched} state=${series} height="60rem">${({ series: found, width }) => {
      const names = Object.keys(found);
      const first = [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => name.endsWith("_share"))];
      const others = names.filter((name) => !first.includes(name) && name !== "accuracy");
      const zero = others.filter((name) => found[name].low.every((low, i) => low === 0 && found[name].high[i] === 0));
      const rest = others.filter((name) => !zero.includes(name));
      const card = (name) => html`<${MetricCard} key=${name} name=${name} points=${found[name]} base=${base} width=${width} />`;
      if (!names.length) return html`<${Empty} title="No step">${about.status === "running"
        ? "The first step appears here when it is recorded."
        : "This run recorded no step."}<//>`;
      return html`${found.turns_mean && html`<${Episodes} url=${url} about=${about} series=${found} version=${version} />`}
        ${width > 1 && html`<p class="small soft">Each point is the mean over ${width} steps; the band is their range.</p>`}
        <h2 class="visually-hidden">Recorded metrics</h2>
        <${ChartSettings}><div class="metrics">${first.map(card)}</div>
        <${More} count=${rest.length}>${() => html`<div class="metrics">${rest.map(card)}</div>
          ${zero.length > 0 && html`<p class="small soft" data-zero>0 in every step: ${zero.join(", ").replaceAll("_", " ")}.</p>`}`}<//><//>`;
    }}<//>
    <${Configuration} about=${about} />`;
}

// Drawn when opened; the address keeps whether it is open.
function More({ count, children }) {
  const open = route.value.query.get("all") === "1";
  return html`<details class="more" open=${open} onToggle=${(event) => setQuery({ all: event.currentTarget.open ? 1 : undefined })}>
    <summary class="small">${count} more metrics: clipping, ratios, speed and others</summary>${open && children()}</details>`;
}

function Accuracy({ evals: judged, about, series }) {
  const evals = judged.map((row) => ({ ...row, x: row.step }));
  const training = series ? series.step.map((step, i) => ({ x: step + 1, y: series.mean[i] })) : [];
  const greedy = evals.some((row) => row.greedy_accuracy !== null);
  return html`<${Card} title="Accuracy" note="On held-out problems, with 95% intervals. Faint: on each step's training problems.">
    <${Chart} label=${`Accuracy of the run, held out from ${percent(evals[0].accuracy, 1)} to ${percent(evals.at(-1).accuracy, 1)}`} height=${260}
      deps=${[JSON.stringify(evals), training.length]}
      legend=${[["held out, sampled", "var(--c1)"], ...(greedy ? [["held out, greedy", "var(--c3)"]] : []), ["training batch", "var(--line-strong)"]]}
      build=${(Plot) => ({
        x: { label: "steps taken", domain: [0, Math.max(1, about.steps_total ?? about.steps)] },
        y: { domain: [0, 1], tickFormat: (v) => percent(v), grid: true, label: "accuracy" },
        marks: [
          Plot.lineY(training, { x: "x", y: "y", stroke: "var(--line-strong)", strokeWidth: 1 }),
          greedy && Plot.lineY(evals, { x: "x", y: "greedy_accuracy", stroke: "var(--c3)", strokeDasharray: "4 3" }),
          Plot.areaY(evals, { x: "x", y1: "low", y2: "high", fill: "var(--c1)", fillOpacity: 0.16 }),
          Plot.lineY(evals, { x: "x", y: "accuracy", stroke: "var(--c1)", strokeWidth: 2 }),
          Plot.dot(evals, { x: "x", y: "accuracy", fill: "var(--c1)", r: 3 }),
        ].filter(Boolean),
      })}
      table=${accuracyTable(evals, training)} />
  <//>`;
}

// One row for each number of steps taken that has an evaluation or a training batch.
function accuracyTable(evals, training) {
  const [held, batch] = [new Map(evals.map((row) => [row.x, row])), new Map(training.map((row) => [row.x, row.y]))];
  const taken = [...new Set([...held.keys(), ...batch.keys()])].sort((a, b) => a - b);
  const of = (x, name) => held.get(x)?.[name] ?? "–";
  return {
    columns: ["steps taken", "held out", "low", "high", "greedy", "training batch"],
    rows: taken.map((x) => [x, of(x, "accuracy"), of(x, "low"), of(x, "high"), of(x, "greedy_accuracy"), batch.get(x) ?? "–"]),
  };
}

const WHY_LOSS =
  "The loss does not measure progress. Where all completions count alike (loss.aggregate sequence), it stays near 0 in a healthy run: advantages sum to 0 " +
    "within a group, so the loss does too. Its gradient does not.";

function MetricCard({ name, points, base, width }) {
  const metric = definitions.value?.training?.[name];
  const unit = metric?.unit ?? (name.endsWith("_share") ? "share, 0 to 1" : "");
  const rows = points.step.map((step, i) => ({ step, mean: points.mean[i], low: points.low[i], high: points.high[i] }));
  const latest = rows.at(-1)?.mean;
  const read = unit === "bytes" ? bytes : (value) => metricValue(value, unit);
  const share = isShare(unit);
  const values = rows.flatMap((row) => [row.low, row.high]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return html`<section class="card metric">
    <header><h3>${name.replaceAll("_", " ")}<${MetricHint} name=${name} /></h3><span class="num metric-latest">${read(latest)}</span></header>
    <${Chart} label=${`${name} over the steps, last ${read(latest)}`} height=${140} deps=${[name, rows.length, latest, width, share]}
      onPick=${(step) => go(address(`${base}/groups`, { step }))}
      build=${(Plot) => ({
        x: { label: "step", ticks: 4 },
        y: {
          label: metricTitle(name, unit),
          ticks: 3,
          grid: true,
          nice: true,
          domain: share ? [0, Math.max(high, high > 0.5 ? 1 : 0.05)] : low >= 0 && low < high / 2 ? [0, high || 1] : [low, high === low ? low + 1 : high],
          tickFormat: share ? (v) => percent(v, high < 0.05 ? 1 : 0) : unit === "bytes" ? bytes : tick,
        },
        marks: [
          width > 1 && Plot.areaY(rows, { x: "step", y1: "low", y2: "high", fill: "var(--c1)", fillOpacity: 0.14 }),
          Plot.lineY(rows, { x: "step", y: "mean", stroke: "var(--c1)", strokeWidth: 1.5, ariaLabel: () => name.replaceAll("_", " ") }),
        ].filter(Boolean),
      })}
      table=${{ columns: ["step", "mean", "lowest", "highest"], rows: rows.map((row) => [row.step, row.mean, row.low, row.high]) }} />
    ${name === "loss" && html`<p class="tiny soft">${WHY_LOSS}</p>`}
  </section>`;
}

function Configuration({ about }) {
  const sections = Object.entries(about.config).filter(([, value]) => value && typeof value === "object");
  const top = Object.entries(about.config).filter(([, value]) => typeof value !== "object");
  return html`<details class="card fold"><summary><h2>Configuration</h2><span class="soft small">every field of this run</span></summary>
    <div class="config">${[["", top], ...sections.map(([name, value]) => [name, Object.entries(value)])].map(
      ([name, rows]) => html`<div><h3>${name || "top level"}</h3>
        <table>
          <tbody>
            ${rows.map(([key, value]) => html`<tr><th scope="row">${key}</th>
              <td class="mono">${typeof value === "string" ? value || "–" : JSON.stringify(value)}</td></tr>`)}
          </tbody>
        </table>
      </div>`,
    )}
    <div><h3>versions</h3>
      <table>
        <tbody>${Object.entries(about.versions).map(([key, value]) => html`<tr><th scope="row">${key}</th><td class="mono">${value ?? "–"}</td></tr>`)}</tbody>
      </table>
    </div>
    </div>
  </details>`;
}
