// Misconceptions, each refuted by a run.
import { html } from "htm/preact";
import { exact, signed, tick } from "../format.js";
import { Code, Fetched, Figure, Misconception, Only, Section, Table, useAnswer } from "../lesson.js";
import { Link } from "../route.js";
import { tera } from "./costs-memory.js";

export function Misconceptions() {
  return html`<${Section} title="Four misconceptions" id="misconceptions" depth="math" lead="Run the computation that refutes each claim.">
    <${Misconception} name="m-clip" claim="GRPO doesn't use clipping."><${ClipRuns} /><//>
    <${Misconception} name="m-compute" claim="GRPO needs less compute than PPO."><${ComputeRuns} /><//>
    <${Misconception} name="m-math" claim="GRPO works for mathematics only."><${SubjectRuns} /><//>
    <${Misconception} name="m-token" claim="The advantage is always one number per answer."><${StepRuns} /><//>
  <//>`;
}

function ClipRuns() {
  const state = useAnswer("costs", "preset", { preset: "grpo", moved: "yes" });
  return html`<${Fetched} state=${state} height="5rem">${(data) => {
    const held = data.completions.flatMap((row) => row.pushes).filter((push) => push === 0).length;
    const all = data.completions.flatMap((row) => row.pushes).length;
    return html`<p>With ratios of 1, 1.42 and 0.70, the preset <code>grpo</code> clips <b class="num" data-number="m-held">${held}</b> of the ${all} tokens in
      the family tree's example. GRPO drops PPO's critic, not its clip. <${Link} to="/learn/loss">Chapter 4<//> explains the clip.</p>`;
  }}<//>`;
}

function ComputeRuns() {
  const state = useAnswer("costs", "compute", { size: 7 });
  return html`<${Fetched} state=${state} height="5rem">
    ${(data) => html`<p>A 7B step of 16 prompts: GRPO with G = 8 takes <b class="num">${tera(data.rows[0].all)}</b>, PPO with one answer per
      prompt <b class="num">${tera(data.rows[1].all)}</b> (10¹² FLOPs). Per prompt, GRPO
      needs <b class="num" data-number="m-compute">${exact(data.per_prompt, 3)}</b> times as much. Per answer it needs ${exact(data.alike, 3)} times as much,
      since it has no critic. GRPO saves memory; it saves compute only for an equal number of answers.</p>`}
    <//>`;
}

function SubjectRuns() {
  const state = useAnswer("costs", "any-task", {});
  return html`<${Fetched} state=${state} height="10rem">
    ${(rows) => html`<${Table} label="Subjects" head=${["source of the rewards", "rewards", "advantages"]}
      rows=${rows.map((row) => [
        row.subject,
        html`<span class="num">${row.rewards.join("  ")}</span>`,
        html`<span class="num">${row.advantages.map((a) => signed(a, 2)).join("  ")}</span>`,
      ])}
      foot=${"The formulas contain rewards, not subjects, so any scorer works. Mathematics came first because it is easy to check. (A score from 1 to 10 " +
        "works as well as 0 and 1, because the group's mean is subtracted and its standard deviation divided out.)"} />`}
    <//>`;
}

function StepRuns() {
  const state = useAnswer("costs", "per-token", {});
  return html`<${Fetched} state=${state} height="12rem">${(data) => {
    const points = ["outcome", "process"].flatMap((kind) => data[kind][0].map((y, t) => ({ kind, t, y })));
    return html`<p>One answer fails at the second of three steps; another is right throughout. With an outcome reward all tokens of the first share one
      advantage. With process rewards it has three:</p>
      <${Figure} label="Advantage of each token, outcome and process rewards" height=${170} deps=${[1]}
        legend=${[["outcome reward", "var(--c6)"], ["process rewards", "var(--c1)"]]}
        build=${(Plot) => ({
          x: { label: "token", ticks: 6 },
          y: { grid: true, label: "advantage", ticks: 5, tickFormat: tick },
          marks: [
            Plot.ruleY([0], { stroke: "var(--line-strong)" }),
            Plot.lineY(points, { x: "t", y: "y", z: "kind", curve: "step", stroke: (d) => (d.kind === "outcome" ? "var(--c6)" : "var(--c1)"), strokeWidth: 2 }),
          ],
        })}
        table=${{ columns: ["rewards", "token", "advantage"], rows: points.map((p) => [p.kind, p.t, p.y]) }} />
      <p class="small soft"><${Link} to="/learn/credit">Chapter 5<//> has the details.</p>`;
  }}<//><${Only} depth="code"><${Code} slug="costs" source="process_advantages" /><//>`;
}
