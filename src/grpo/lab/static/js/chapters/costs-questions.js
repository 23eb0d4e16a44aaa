// Claims that a run refutes, and questions that a computation answers.
import { html } from "htm/preact";
import { exact, number, percent, signed, tick } from "../format.js";
import { Code, Fetched, Figure, Misconception, Only, param, Question, Section, Slider, Table, useAnswer, Verdict } from "../lesson.js";
import { Link } from "../route.js";
import { gib, tera } from "./costs-memory.js";

export function Misconceptions() {
  return html`<${Section} title="Four things one hears" id="misconceptions" depth="intuition math" lead="Each is a preset. Run it.">
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
    return html`<p>Once the policy has moved, the preset <code>grpo</code> leaves <b class="num" data-number="m-held">${held}</b> of ${all} tokens of the family's example without gradient: those are the clipped ones. The critic is what is gone. <${Link} to="/learn/loss">Chapter 4<//> has the clip to play with.</p>`;
  }}<//>`;
}

function ComputeRuns() {
  const state = useAnswer("costs", "compute", { size: 7 });
  return html`<${Fetched} state=${state} height="5rem">${(data) => html`<p>A 7B step of 16 prompts: GRPO with G = 8 takes <b class="num">${tera(data.rows[0].all)}</b>, PPO with one answer each <b class="num">${tera(data.rows[1].all)}</b> (10¹² operations). Per prompt that is <b class="num" data-number="m-compute">${exact(data.per_prompt, 3)}</b> times as much. For the same number of answers it is ${exact(data.alike, 3)} times, since no critic reads and learns. It saves memory; whether it saves compute depends on what is held equal.</p>`}<//>`;
}

function SubjectRuns() {
  const state = useAnswer("costs", "any-task", {});
  return html`<${Fetched} state=${state} height="10rem">${(rows) => html`<${Table} label="Subjects" head=${["rewards from", "rewards", "advantages"]} rows=${rows.map((row) => [row.subject, html`<span class="num">${row.rewards.join("  ")}</span>`, html`<span class="num">${row.advantages.map((a) => signed(a, 2)).join("  ")}</span>`])} foot="The engine sees numbers, not subjects: anything that marks answers will do. Mathematics came first because marking it is easy. (A mark from 1 to 10 works as well as right and wrong, since the group's mean and deviation are taken off.)" />`}<//>`;
}

function StepRuns() {
  const state = useAnswer("costs", "per-token", {});
  return html`<${Fetched} state=${state} height="12rem">${(data) => {
    const points = ["outcome", "process"].flatMap((kind) => data[kind][0].map((y, t) => ({ kind, t, y })));
    return html`<p>An answer whose second of three steps goes wrong, beside one that is right throughout. With a reward for the outcome all its tokens have one advantage; with a reward for each step they have three:</p>
      <${Figure} label="Advantage of each token, outcome and process rewards" height=${170} deps=${[1]} legend=${[["reward for the outcome", "var(--c6)"], ["reward for each step", "var(--c1)"]]} build=${(Plot) => ({ x: { label: "token", ticks: 6 }, y: { grid: true, label: null, ticks: 5, tickFormat: tick }, marks: [Plot.ruleY([0], { stroke: "var(--line-strong)" }), Plot.lineY(points, { x: "t", y: "y", z: "kind", curve: "step", stroke: (d) => (d.kind === "outcome" ? "var(--c6)" : "var(--c1)"), strokeWidth: 2 })] })} table=${{ columns: ["rewards", "token", "advantage"], rows: points.map((p) => [p.kind, p.t, p.y]) }} />
      <p class="small soft"><${Link} to="/learn/credit">Chapter 5<//> goes into it.</p>`;
  }}<//><${Only} depth="code"><${Code} slug="costs" source="process_advantages" /><//>`;
}

export function Questions() {
  return html`<${Section} title="Open questions: say first, then compute" id="questions" lead="Four for anyone, four for those who read on at depth Math.">
    <${Question} name="q-open" ask="Answers are marked by a judge whose marks are off by half a point on a scale from 0 to 1. Does a group still point the right way?" options=${[["fine", "Nearly as well"], ["less", "Less than half as well"], ["not", "Not at all"]]}>${(picked) => html`<${OpenEnded} picked=${picked} />`}<//>
    <${Question} name="q-reward" ask="The checker can be fooled: one wrong answer, likelier than the right one, is paid as well. What happens to the share of right answers?" options=${[["up", "It rises all the same"], ["flat", "It stays"], ["down", "It falls to almost nothing"]]}>${(picked) => html`<${Imperfect} picked=${picked} />`}<//>
    <${Question} name="q-ppo" ask="Is GRPO better than PPO in every way that can be computed here?" options=${[["yes", "Yes"], ["no", "No: PPO tells tokens apart"]]}>${(picked) => html`<${BetterThanPpo} picked=${picked} />`}<//>
    <${Question} name="q-sft" ask="A model that knows nothing writes one of 19 characters at random, four times. How many groups of 8 until one of them has anything to compare?" options=${[["10", "About ten"], ["1000", "About a thousand"], ["16000", "More than ten thousand"]]}>${(picked) => html`<${NoWarmStart} picked=${picked} />`}<//>
    <${Only} depth="math code">
      <${Question} name="q-state" ask="Why compare within a prompt's own group, and not with all answers of the step? In a real run, how much of the reward's variance does the prompt alone explain?" options=${[["none", "Next to nothing"], ["some", "About a fifth"], ["most", "Most of it"]]}>${(picked) => html`<${WhyGroups} picked=${picked} />`}<//>
      <${Question} name="q-size" ask="One prompt in ten is answered right. From groups of 2 to groups of 64, what falls most?" options=${[["bias", "How much shorter than the truth the mean gradient is"], ["noise", "The noise of one group"], ["silent", "The share of groups that say nothing"]]}>${(picked) => html`<${GroupSizes} picked=${picked} />`}<//>
      <${Question} name="q-light" ask="Could GRPO take a light critic for process rewards? What does one cost that shares the policy's network, beside one of its own?" options=${[["same", "As much"], ["half", "Half"], ["free", "Next to nothing"]]}>${(picked) => html`<${LightCritic} picked=${picked} />`}<//>
      <${Question} name="q-batch" ask="Normalise across the whole batch instead of within groups. One prompt is easy (7 of 8 right), one hard (1 of 8). Who gains?" options=${[["easy", "Right answers to the easy prompt"], ["hard", "The one right answer to the hard prompt"], ["nobody", "Nobody: it is the same"]]}>${(picked) => html`<${AcrossBatch} picked=${picked} />`}<//>
    <//>
  <//>`;
}

function OpenEnded({ picked }) {
  const state = useAnswer("costs", "open-ended", { g: param("oe_g", 8) });
  return html`<${Slider} name="oe_g" label="group size" min=${2} max=${32} step=${1} value=${8} /><${Fetched} state=${state} height="12rem">${(data) => html`<${Verdict} picked=${picked} right=${data.rows[2].cosine / data.rows[0].cosine < 0.5 ? "less" : "fine"}><${Table} label="A noisy judge" head=${["error of the judge", "cosine of one group's push with the truth", "groups that say nothing"]} rows=${data.rows.map((row) => [number(row.noise, 1), html`<span class="num" data-cosine=${row.noise}>${number(row.cosine, 3)}</span>`, percent(row.silent)])} foot="A noisy judge is never silent: it always prefers somebody. Larger groups and more prompts average it out; a judge that errs in one direction is not averaged out, it is learned." /><//>`}<//>`;
}

function Imperfect({ picked }) {
  const state = useAnswer("costs", "imperfect", { beta: param("im_beta", 0.2) });
  return html`<${Slider} name="im_beta" label="β" min=${0} max=${1} step=${0.02} value=${0.2} /><${Fetched} state=${state} height="14rem">${(data) => {
    const points = Object.entries(data.lines).flatMap(([which, line]) => ["paid", "true"].flatMap((kind) => line[kind].map((y, i) => ({ x: line.steps[i], y, kind, which, id: `${which} ${kind}` }))));
    return html`<${Verdict} picked=${picked} right="down"><${Figure} label="What is paid and what is right, over 200 steps" height=${190} deps=${[data.beta]} legend=${[["paid", "var(--c2)"], ["truly right", "var(--c1)"], [`dashed: β = ${exact(data.beta, 2)}`, "var(--ink-faint)"]]} build=${(Plot) => ({ x: { label: "step", ticks: 5 }, y: { grid: true, label: null, domain: [0, 1], tickFormat: (v) => percent(v) }, marks: [Plot.lineY(points, { x: "x", y: "y", z: "id", stroke: (d) => (d.kind === "paid" ? "var(--c2)" : "var(--c1)"), strokeWidth: 2, strokeDasharray: "" }), Plot.lineY(points.filter((p) => p.which === "beta"), { x: "x", y: "y", z: "id", stroke: "var(--surface)", strokeWidth: 2.4, strokeDasharray: "3 4" })] })} table=${{ columns: ["β", "step", "paid", "truly right"], rows: Object.entries(data.lines).flatMap(([which, line]) => line.steps.map((step, i) => [which === "beta" ? data.beta : 0, step, line.paid[i], line.true[i]])) }} />
      <p>Without a leash <b class="num" data-number="fooled">${percent(data.lines["0"].true.at(-1), 1)}</b> are truly right in the end, with β = ${exact(data.beta, 2)} <b class="num">${percent(data.lines.beta.true.at(-1), 1)}</b>, while <b class="num">${percent(data.lines["0"].paid.at(-1), 1)}</b> and <b class="num">${percent(data.lines.beta.paid.at(-1), 1)}</b> are paid. The leash keeps the right answer from dying out; most of what is paid is wrong all the same, because the reward is what is learned.</p><//>`;
  }}<//>`;
}

function BetterThanPpo({ picked }) {
  const state = useAnswer("costs", "preset", { preset: "ppo" });
  return html`<${Fetched} state=${state} height="6rem">${(data) => {
    const spread = (rows) => Math.max(...rows.map((row) => Math.max(...row.pushes) - Math.min(...row.pushes)));
    return html`<${Verdict} picked=${picked} right="no"><p>On the family's four answers, the pushes within one answer differ by up to <b class="num">${exact(spread(data.completions), 3)}</b> under PPO, even with a critic that expects one half everywhere, and by <b class="num">${exact(spread(data.grpo), 3)}</b> under GRPO. Cheaper in memory, blunter in credit. Which learns faster is not for a table: <${Link} to="/learn/train">chapter 7<//> trains both.</p><//>`;
  }}<//>`;
}

function NoWarmStart({ picked }) {
  const state = useAnswer("costs", "no-warm-start", { g: param("ws_g", 8) });
  return html`<${Slider} name="ws_g" label="group size" min=${2} max=${64} step=${1} value=${8} /><${Fetched} state=${state} height="6rem">${(data) => html`<${Verdict} picked=${picked} right="16000"><p>By chance an answer is right once in <b class="num">${number(1 / data.untaught)}</b>, so a group of ${data.g} has something to compare once in <b class="num" data-number="untaught-wait">${number(Math.round(data.untaught_wait))}</b>. The recorded run, after supervised training, had ${percent(data.taught)} right in its first step: there nearly every group does, one in <b class="num">${number(data.taught_wait, 2)}</b>. R1-Zero could do without that stage because its base model was already right now and then (reported: arXiv 2501.12948; it also reports mixed languages and poor form, which supervised examples mend).</p><//>`}<//>`;
}

function WhyGroups({ picked }) {
  const state = useAnswer("costs", "why-groups", {});
  return html`<${Fetched} state=${state} height="6rem">${(data) => html`<${Verdict} picked=${picked} right="some"><p>In the first ${data.steps} steps of the recorded run the prompt explains <b class="num" data-number="by-prompt">${percent(data.by_prompt, 1)}</b> of the variance that is left after the step's mean: ${exact(data.batch, 3)} against the batch, ${exact(data.group, 3)} within groups. A prompt is a state that is asked anew as often as one likes, so its value can be had by asking, for any text, without a network that understands it.</p><//>`}<//>`;
}

function GroupSizes({ picked }) {
  const state = useAnswer("costs", "group-sizes", {});
  return html`<${Fetched} state=${state} height="10rem">${(rows) => html`<${Verdict} picked=${picked} right="silent"><${Table} label="Group sizes" head=${["G", "groups that say nothing", "mean gradient, in true gradients", "by theory, 1 − 1/G", "noise of one group", "angle when divided by the deviation"]} rows=${rows.map((row) => [String(row.g), html`<span class="num" data-silent=${row.g}>${percent(row.silent, 1)}</span>`, row.along, row.expected_along, row.noise, `${number(row.angle, 1)}°`])} foot="Per answer drawn, noise falls only with the square root; what a larger group buys at such a prompt is that it says anything at all." /><//>`}<//>`;
}

function LightCritic({ picked }) {
  const state = useAnswer("costs", "critics", { size: param("size", 7) });
  return html`<${Fetched} state=${state} height="10rem">${(rows) => html`<${Verdict} picked=${picked} right="free"><${Table} label="Critics" head=${["critic", "memory at the peak", "10¹² operations"]} rows=${rows.map((row) => [row.critic, gib(row.peak), tera(row.flops)])} foot="--critic.model shared adds one output to the policy's network. It is cheap and knows less: in the runs of docs/algorithm.md its explained variance stayed below 0 where a separate critic's reached 0.4, and held-out accuracy ended at 91% against 93%." /><//>`}<//>`;
}

function AcrossBatch({ picked }) {
  const state = useAnswer("costs", "batch", {});
  return html`<${Fetched} state=${state} height="10rem">${(data) => {
    const cell = (kind, prompt, place) => signed(data.advantages[kind][prompt].at(place), 2);
    return html`<${Verdict} picked=${picked} right="easy"><${Table} label="Within groups and across the batch" head=${["normalised by", "easy: right", "easy: the wrong one", "hard: the right one", "hard: wrong"]} rows=${Object.keys(data.advantages).map((kind) => [kind, cell(kind, "easy", 0), cell(kind, "easy", -1), cell(kind, "hard", 0), cell(kind, "hard", -1)])} foot="Within its group, the rare event weighs most: one success at a hard prompt, one slip at an easy one. Against the batch's mean, every right answer to the easy prompt is praised as much as the one to the hard prompt, and easy prompts take over the batch." /><//>`;
  }}<//>`;
}
