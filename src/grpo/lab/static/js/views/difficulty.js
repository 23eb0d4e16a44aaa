// The difficulty of problems over training, and each held-out problem at each evaluation.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useApi } from "../api.js";
import { Chart } from "../chart.js";
import { percent, plural } from "../format.js";
import { Card, Empty, Fetched } from "../parts.js";
import { address, go } from "../route.js";
import { Tex } from "../tex.js";
import { Untrusted } from "../text.js";

export function Difficulty({ url, version, base, about }) {
  const state = useApi(`${url}/difficulty?points=120`, version);
  return html`<p class="view-lead">A problem that is always or never solved gives no signal. The signal is strongest where half of a group is right.</p>
    <${Fetched} state=${state} height="60rem">${(data) => html`
      <${PassMap} data=${data} base=${base} />
      <${Expected} data=${data} />
      <${Heldout} heldout=${data.heldout} status=${about.status} />`}<//>`;
}

function PassMap({ data, base }) {
  const size = data.group_size;
  const step = data.stride;
  const cells = data.columns.flatMap((column) =>
    column.groups_by_right.map((count, right) => ({ x1: column.step - step / 2, x2: column.step + step / 2, right, count, share: count / column.groups_by_right.reduce((a, b) => a + b, 0) })),
  ).filter((cell) => cell.count);
  return html`<${Card} title="Groups by number of right completions" note="Each column is a step. A stronger colour means more groups with that number right. Grey rows have no signal. Click to open a step.">
    <${Chart} label=${`Groups by number of right completions, 0 to ${size}, over the steps`} height=${Math.max(200, 26 * (size + 1) + 40)} deps=${[cells.length, data.columns.at(-1)?.step]} onPick=${(at) => go(address(`${base}/groups`, { step: at }))}
      legend=${[["signal", "var(--c3)", "square"], ["no signal", "var(--ink-faint)", "square"]]}
      build=${(Plot) => ({
        x: { label: "step" }, y: { type: "band", domain: Array.from({ length: size + 1 }, (_, i) => size - i), label: "right of " + size, padding: 0.08 },
        marks: [Plot.rect(cells, { x1: "x1", x2: "x2", y: "right", fill: (cell) => (cell.right === 0 || cell.right === size ? "var(--ink-faint)" : "var(--c3)"), fillOpacity: (cell) => 0.12 + 0.88 * cell.share, title: (cell) => `step ${(cell.x1 + cell.x2) / 2}\n${plural(cell.count, "group")}, ${cell.right} of ${size} right`, inset: 0.3 })],
      })}
      table=${{ columns: ["step", ...Array.from({ length: size + 1 }, (_, i) => `${i} right`)], rows: data.columns.map((column) => [column.step, ...column.groups_by_right]) }} />
  <//>`;
}

function Expected({ data }) {
  const rows = data.columns;
  return html`<${Card} title="Groups without signal, observed and expected" note=${html`If all problems were equally hard, a share of <${Tex}>p^G+(1-p)^G<//> of the groups would have no signal. A higher share means that problems differ: some are far too easy, some far too hard.`}>
    <${Chart} label="Share of groups without signal over the steps, observed and expected" height=${180} deps=${[rows.length, rows.at(-1)?.step]}
      legend=${[["observed", "var(--c3)"], ["expected at the mean pass rate", "var(--c6)"]]}
      build=${(Plot) => ({ x: { label: "step" }, y: { domain: [0, 1], grid: true, label: "share of groups", tickFormat: (v) => percent(v) }, marks: [Plot.lineY(rows, { x: "step", y: "expected_zero_signal", stroke: "var(--c6)", strokeDasharray: "4 3" }), Plot.lineY(rows, { x: "step", y: "observed_zero_signal", stroke: "var(--c3)" })] })}
      table=${{ columns: ["step", "pass rate", "observed", "expected"], rows: rows.map((row) => [row.step, row.pass_rate, row.observed_zero_signal, row.expected_zero_signal]) }} />
  <//>`;
}

// A canvas, because a long run has tens of thousands of cells.
function Heldout({ heldout, status }) {
  const { steps, problems } = heldout;
  const canvas = useRef(null);
  const [at, setAt] = useState(null);
  const [width, setWidth] = useState(0);
  const rowHeight = Math.max(2, Math.min(8, Math.floor(360 / Math.max(1, problems.length))));
  const height = rowHeight * problems.length;
  useEffect(() => {
    if (!canvas.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(canvas.current.parentElement);
    return () => observer.disconnect();
  }, [problems.length > 0]);
  useEffect(() => {
    if (!canvas.current || !width) return;
    function draw() {
      const scale = devicePixelRatio;
      canvas.current.width = width * scale;
      canvas.current.height = height * scale;
      const brush = canvas.current.getContext("2d");
      brush.scale(scale, scale);
      const probe = document.createElement("span");
      document.body.append(probe);
      const colour = (name) => ((probe.style.color = `var(${name})`), getComputedStyle(probe).color);
      const colours = { 1: colour("--reward-3"), 0: colour("--reward-0") };
      probe.remove();
      const column = width / steps.length;
      problems.forEach((problem, row) =>
        problem.right.forEach((right, place) => {
          if (right === null) return;
          brush.fillStyle = colours[right];
          brush.fillRect(place * column, row * rowHeight, column - 1, rowHeight - (rowHeight > 3 ? 1 : 0));
        }),
      );
    }
    draw();
    const observer = new MutationObserver(draw);
    observer.observe(document.documentElement, { attributes: true });
    return () => observer.disconnect();
  }, [width, height, steps.length, problems]);
  if (!problems.length) return html`<${Empty} title="No evaluation yet">${status === "running" ? "The first evaluation appears here when it is recorded." : "This run has no evaluation."}<//>`;
  const solved = problems.filter((problem) => problem.right.at(-1)).length;
  function point(event) {
    const box = canvas.current.getBoundingClientRect();
    setAt([Math.max(0, Math.min(problems.length - 1, Math.floor(((event.clientY - box.top) / box.height) * problems.length))), Math.max(0, Math.min(steps.length - 1, Math.floor(((event.clientX - box.left) / box.width) * steps.length)))]);
  }
  const [row, column] = at ?? [];
  return html`<${Card} title="Held-out problems at each evaluation" note=${`${plural(problems.length, "problem")}, one row each, the hardest at the bottom. Green: solved. ${solved} solved at the last evaluation.`}>
    <div class="heatmap" role="img" aria-label=${`${solved} of ${problems.length} held-out problems solved at the last evaluation, ${problems.filter((problem) => problem.right[0]).length} at the first`}>
      <canvas ref=${canvas} style=${{ width: "100%", height: `${height}px` }} onPointerMove=${point} onPointerLeave=${() => setAt(null)}></canvas>
      <div class="heatmap-axis tiny faint num">${steps.map((step, place) => html`<span>${steps.length <= 14 || place % Math.ceil(steps.length / 14) === 0 ? step : ""}</span>`)}</div>
    </div>
    <p class="small heatmap-about">${row === undefined || !problems[row] ? html`<span class="faint">Point at a row to see its problem.</span>` : html`<${Untrusted} text=${problems[row].prompt} /> <span class="soft">after ${steps[column]} steps: ${problems[row].right[column] ? "solved" : "not solved"}</span>`}</p>
  <//>`;
}
