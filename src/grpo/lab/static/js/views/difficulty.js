// The difficulty of problems over training, and each held-out problem at each evaluation.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Chart } from "../chart.js";
import { cells } from "../chart/cells.js";
import { percent, plural } from "../format.js";
import { Card, Empty, Fetched } from "../parts.js";
import { address, go } from "../route.js";
import { Tex } from "../tex.js";

export function Difficulty({ url, version, base, about }) {
  const state = useApi(`${url}/difficulty?points=120`, version);
  return html`<p class="view-lead">With rewards of 0 and 1 and a group baseline, a problem that is always or never solved gives no signal. The signal
    is strongest where half of a group is right.</p>
    <${Fetched} state=${state} height="60rem">${(data) => html`
      <${PassMap} data=${data} base=${base} />
      <${Expected} data=${data} />
      <${Heldout} heldout=${data.heldout} status=${about.status} />`}<//>`;
}

function PassMap({ data, base }) {
  const size = data.group_size;
  const step = data.stride;
  const groups = data.columns.flatMap((column) =>
    column.groups_by_right.map((count, right) => ({
      x1: column.step - step / 2,
      x2: column.step + step / 2,
      right,
      count,
      share: count / column.groups_by_right.reduce((a, b) => a + b, 0),
    })),
  ).filter((cell) => cell.count);
  const isMixed = ({ right }) => right > 0 && right < size;
  const most = (mixed) => groups.filter((cell) => isMixed(cell) === mixed).reduce((largest, cell) => Math.max(largest, cell.share), 0);
  const largest = { true: most(true), false: most(false) };
  return html`<${Card} title="Groups by number of right completions"
    note="Each column is a step. A stronger colour means more groups with that number right; violet and grey have a scale each.
      Click to open a step.">
    <${Chart} label=${`Groups by number of right completions, 0 to ${size}, over the steps`} height=${Math.max(200, 26 * (size + 1) + 40)}
      deps=${[groups.length, data.columns.at(-1)?.step]} onPick=${(at) => go(address(`${base}/groups`, { step: at }))}
      legend=${[["some right", "var(--c3)", "square"], ["all or none right", "var(--ink-faint)", "square"]]}
      build=${(Plot) => ({
        x: { label: "step" }, y: { type: "band", domain: Array.from({ length: size + 1 }, (_, i) => size - i), label: "right of " + size, padding: 0.08 },
        marks: [
          Plot.rect(groups, {
            x1: "x1",
            x2: "x2",
            y: "right",
            fill: (cell) => (isMixed(cell) ? "var(--c3)" : "var(--ink-faint)"),
            fillOpacity: (cell) => 0.15 + 0.85 * (cell.share / largest[isMixed(cell)]),
            title: (cell) => `step ${(cell.x1 + cell.x2) / 2}\n${plural(cell.count, "group")}, ${cell.right} of ${size} right`,
            inset: 0.3,
          }),
        ],
      })}
      table=${{
        columns: ["step", ...Array.from({ length: size + 1 }, (_, i) => `${i} right`)],
        rows: data.columns.map((column) => [column.step, ...column.groups_by_right]),
      }} />
  <//>`;
}

function Expected({ data }) {
  const rows = data.columns;
  return html`<${Card} title="Groups without signal, observed and expected"
    note=${html`With such rewards and equally hard problems, a share of <${Tex}>p^G+(1-p)^G<//> of the groups would have no signal. A higher share means
      that problems differ: some are far too easy, some far too hard.`}>
    <${Chart} label="Share of groups without signal over the steps, observed and expected" height=${180} deps=${[rows.length, rows.at(-1)?.step]}
      legend=${[["observed", "var(--c3)"], ["expected at the mean pass rate", "var(--c6)"]]}
      build=${(Plot) => ({
        x: { label: "step" },
        y: { domain: [0, 1], grid: true, label: "share of groups", tickFormat: (v) => percent(v) },
        marks: [
          Plot.lineY(rows, { x: "step", y: "expected_zero_signal", stroke: "var(--c6)", strokeDasharray: "4 3" }),
          Plot.lineY(rows, { x: "step", y: "observed_zero_signal", stroke: "var(--c3)" }),
        ],
      })}
      table=${{
        columns: ["step", "pass rate", "observed", "expected"],
        rows: rows.map((row) => [row.step, row.pass_rate, row.observed_zero_signal, row.expected_zero_signal]),
      }} />
  <//>`;
}

const ROW = { most: 8, least: 2, all: 360 };

function Heldout({ heldout, status }) {
  const { steps, problems } = heldout;
  if (!problems.length) return html`<${Empty} title="No evaluation yet">
    ${status === "running" ? "The first evaluation appears here when it is recorded." : "This run has no evaluation."}<//>`;
  const [first, last] = [0, -1].map((place) => problems.filter((problem) => problem.right.at(place)).length);
  const row = Math.max(ROW.least, Math.min(ROW.most, Math.floor(ROW.all / problems.length)));
  const found = problems.flatMap((problem, rank) => problem.right.map((right, place) => ({
    prompt: problem.prompt, rank, place, right,
  }))).filter(({ right }) => right !== null);
  const verdict = ({ right }) => (right ? "solved" : "not solved");
  return html`<${Card} title="Held-out problems at each evaluation"
    note=${`${plural(problems.length, "problem")}, one row each, the hardest at the bottom. Solved: the first sampled completion is
      right. ${last} solved at the last evaluation.`}>
    <${Chart} label=${`${last} of ${problems.length} held-out problems solved at the last evaluation, ${first} at the first`}
      height=${Math.max(120, row * problems.length + 45)} deps=${[problems]}
      legend=${[["solved", "var(--reward-3)", "square"], ["not solved", "var(--reward-0)", "square"]]}
      build=${(Plot) => ({
        marginLeft: 8, x: { label: "steps taken", tickFormat: (place) => String(steps[place] ?? "") },
        y: { type: "band", domain: problems.map((_, rank) => rank), axis: null, padding: row > 3 ? 0.12 : 0, round: false },
        marks: [
          cells(Plot, found, {
            x1: (cell) => cell.place - 0.5,
            x2: (cell) => cell.place + 0.5,
            y: "rank",
            fill: (cell) => (cell.right ? "var(--reward-3)" : "var(--reward-0)"),
            title: (cell) => `${cell.prompt}\nafter ${plural(steps[cell.place], "step")}: ${verdict(cell)}`,
          }),
        ],
      })}
      table=${{
        columns: ["problem", ...steps.map((step) => `after ${step}`)],
        rows: problems.map((problem) => [problem.prompt, ...problem.right.map((right) => right ?? "")]),
      }} />
  <//>`;
}
