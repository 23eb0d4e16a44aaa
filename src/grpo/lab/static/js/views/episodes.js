// Charts of a run with episodes: calls beside accuracy, reward by number of turns, and where the time went.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Chart } from "../chart.js";
import { number, percent, plural, seconds } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Fetched, MetricHint } from "../parts.js";

export function Episodes({ url, about, series, version }) {
  useStyle("css/time.css");
  const calls = series.calls?.mean.some((value) => value > 0) ? "calls" : "turns_mean";
  return html`<div class="episode-charts">
    <${Beside} name=${calls} counted=${series[calls]} accuracy=${series.accuracy ?? series.reward_mean} judged=${!!series.accuracy} />
    <${ByTurns} url=${url} version=${version} />
    ${about.seconds.wait !== undefined && html`<${Where} spent=${about.seconds} />`}
  </div>`;
}

// Two axes: accuracy on the left from 0 to 1, the mean count on the right from 0 to its highest.
function Beside({ name, counted, accuracy, judged }) {
  const [what, other] = [name === "calls" ? "tool calls" : "turns", judged ? "accuracy" : "reward"];
  const most = Math.max(1e-9, ...counted.mean);
  const top = judged ? 1 : Math.max(1e-9, ...accuracy.mean);
  const right = accuracy.step.map((step, i) => ({ step, value: accuracy.mean[i] }));
  const rows = counted.step.map((step, i) => ({ step, value: (counted.mean[i] / most) * top, count: counted.mean[i] }));
  return html`<${Card} title=${html`${name === "calls" ? "Calls" : "Turns"} and ${other}<${MetricHint} name=${name} />`}
    note=${`On each step's training problems. Left: ${other}. Right: mean number of ${what} in an episode.`}>
    <${Chart} label=${`${other} and mean number of ${what} over the steps, last ${number(right.at(-1)?.value, 2)} and ${number(rows.at(-1)?.count, 2)}`}
      height=${200} deps=${[rows.length, right.at(-1)?.value, rows.at(-1)?.count]}
      legend=${[[other, "var(--c1)"], [what, "var(--c3)"]]}
      build=${(Plot) => ({
        marginRight: 40, x: { label: "step" }, y: { domain: [0, top], label: other, grid: true },
        marks: [
          Plot.axisY({ anchor: "left", ticks: 5, tickFormat: (value) => (judged ? percent(value) : number(value, 1)) }),
          Plot.axisY({ anchor: "right", ticks: 5, label: what, tickFormat: (value) => number((value / top) * most, 1) }),
          Plot.lineY(right, { x: "step", y: "value", stroke: "var(--c1)", strokeWidth: 2 }),
          Plot.lineY(rows, { x: "step", y: "value", stroke: "var(--c3)", strokeWidth: 2, title: (row) => `${what} ${number(row.count, 2)}` }),
        ],
      })}
      table=${{ columns: ["step", other, what], rows: right.map((row, i) => [row.step, row.value, rows[i]?.count ?? "–"]) }} />
  <//>`;
}

const ENDS = [["early", "first steps", "var(--line-strong)"], ["late", "last steps", "var(--c4)"]];

function ByTurns({ url, version }) {
  const state = useApi(`${url}/episodes`, version);
  return html`<${Fetched} state=${state} height="18rem">${(data) => {
    const ends = ENDS.filter(([key]) => data[key]?.rows.length);
    const rows = ends.flatMap(([key, name, colour]) => data[key].rows.map((row) => ({ ...row, key, name, colour })));
    if (!rows.length) return null;
    const steps = ([first, last]) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);
    return html`<${Card} title="Reward by number of turns"
      note=${`Mean reward of the episodes of ${ends.map(([key]) => steps(data[key].steps)).join(" and of ")}; a wider bar means more episodes.`}>
      <${Chart}
        label=${`Mean reward by number of turns: ${rows.map((row) => `${row.name}, ${plural(row.turns, "turn")}: ${number(row.reward, 2)}`).join("; ")}`}
        height=${200} deps=${[JSON.stringify(data)]}
        legend=${ends.map(([key, name, colour]) => [`${name} (${steps(data[key].steps)})`, colour, "square"])}
        build=${(Plot) => ({
          x: { label: "turns", ticks: [...new Set(rows.map((row) => row.turns))], tickFormat: String, inset: 12 },
          y: { label: "mean reward", grid: true, zero: true },
          marks: [Plot.ruleY([0], { stroke: "var(--line-strong)" }), Plot.rectY(rows, bars(rows))],
        })}
        table=${{
          columns: ["turns", "when", "episodes", "reward", "right"],
          rows: rows.map((row) => [row.turns, row.name, row.episodes, row.reward ?? "–", row.accuracy ?? "–"]),
        }} />
    <//>`;
  }}<//>`;
}

// Left half of a number's place: the first steps; right half: the last. The area is the number of episodes times reward.
function bars(rows) {
  const all = Object.fromEntries(ENDS.map(([key]) => [key, rows.filter((row) => row.key === key).reduce((sum, row) => sum + row.episodes, 0)]));
  const width = (row) => 0.06 + (0.34 * row.episodes) / all[row.key];
  return {
    x1: (row) => (row.key === "early" ? row.turns - 0.02 - width(row) : row.turns + 0.02),
    x2: (row) => (row.key === "early" ? row.turns - 0.02 : row.turns + 0.02 + width(row)),
    y: "reward", fill: (row) => row.colour,
    title: (row) => `${row.name}: ${plural(row.episodes, "episode")} of ${plural(row.turns, "turn")}, mean reward ${number(row.reward, 2)}`,
  };
}

const PARTS = [
  ["rollout", "sampling", "var(--c1)"],
  ["wait", "waiting for answers", "var(--c5)"],
  ["reward", "scoring", "var(--c4)"],
  ["update", "update", "var(--c3)"],
  ["record", "record", "var(--c2)"],
];

function Where({ spent }) {
  const parts = PARTS.filter(([key]) => spent[key] > 0);
  const all = parts.reduce((sum, [key]) => sum + spent[key], 0);
  return html`<${Card} title=${html`Where the time went<${MetricHint} name="observation_wait" />`}>
    <ul class="gantt spent">
      ${parts.map(([key, name, colour]) => html`<li><span class="small">${name}</span>
        <span class="gantt-track" aria-hidden="true"><i style=${{ left: 0, width: `max(2px, ${(100 * spent[key]) / all}%)`, background: colour }}></i></span>
        <span class="num small">${percent(spent[key] / all)} <span class="soft">${seconds(spent[key])}</span></span></li>`)}
    </ul>
  <//>`;
}
