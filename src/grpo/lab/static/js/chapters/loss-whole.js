// The whole loss: its terms, how tokens are averaged, one update or many, and the loss as code.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { exact, number, signed, tick } from "../format.js";
import { Analogy, Choice, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, Tex, Trial, useAnswer, Verdict } from "../lesson.js";
import { Link } from "../route.js";
import { ownParams, UpdateTable } from "./loss-tokens.js";

const TERMS = [
  ["\\tfrac1G\\sum_i", "average over the group", "Every answer counts once, however long.", "#averages"],
  ["\\tfrac1{|o_i|}\\sum_t", "average over its tokens", "So a token of a long answer weighs less than one of a short answer.", "#averages"],
  ["\\rho_{i,t}", "the ratio", "How far the token has moved since it was sampled.", "#ratio"],
  ["A_i", "the advantage", "How much better than its group the answer was; the same for all its tokens.", "/learn/advantage"],
  ["\\text{clip}(\\rho,1\\pm\\varepsilon)", "the clip", "Enough for now: beyond the range there is nothing more to gain.", "#clip"],
  ["\\min", "the smaller of the two", "The clip may take a gain away and never adds one.", "#clip"],
  ["\\beta\\,k_3", "the leash", "What it costs to be far from the reference.", "#kl"],
];

export function Whole() {
  return html`<${Section} title="The loss, term by term" id="whole">
    <${Equation} tex="\\mathcal L=\\frac1G\\sum_{i=1}^{G}\\frac1{|o_i|}\\sum_{t=1}^{|o_i|}\\Big[-\\min\\big(\\rho_{i,t}A_i,\\ \\text{clip}(\\rho_{i,t},1-\\varepsilon,1+\\varepsilon)A_i\\big)+\\beta\\,k_3(o_{i,t})\\Big]" spoken="the loss is the mean over the group of the mean over tokens of minus the smaller of rho A and clipped rho A, plus beta times k three" />
    <ul class="terms">${TERMS.map(([tex, name, what, to]) => html`<li><a href=${to}><span class="term-tex"><${Tex}>${tex}<//></span><span><b>${name}</b><span class="small soft">${what}</span></span></a></li>`)}</ul>
    <${Only} depth="intuition"><${Analogy} title="A contract with three clauses">
      <p>Think of a musician and a coach. <b>The advantage</b> says which takes to learn from: those better than today's average, away from those that were worse. <b>The clip</b> says how much one rehearsal may change: past a fifth more or less, that bar is left alone until the next recording. <b>The leash</b> says not to lose one's sound: every habit that differs from how one came in has a price.</p>
      <p class="small soft">Where the picture limps: the clip limits what is asked for, not what happens. Bars that nobody worked on still change.</p><//><//>
    <${Only} depth="math"><p>PPO's objective is the same without the group: its advantage comes from a critic, token by token, and its KL is usually taken off the reward. Maximising the objective and minimising this loss are the same thing; papers write the former, code the latter.</p>
      <${Equation} tex="J_{\\text{PPO}}=\\mathbb E\\Big[\\min\\big(\\rho_t\\hat A_t,\\ \\text{clip}(\\rho_t,1-\\varepsilon,1+\\varepsilon)\\hat A_t\\big)\\Big]" spoken="PPO's objective: the expectation of the smaller of rho A and clipped rho A, with an advantage for each token" /><//>
  <//>`;
}

export function Averages() {
  const params = { short: param("short", 4), long: param("long", 16) };
  const state = useAnswer("loss", "aggregation", params);
  const names = { sequence: ["mean of each answer, then of the group", "grpo, gspo, sapo"], token: ["mean over all tokens", "dapo, cispo, ppo"], constant: ["sum over a fixed number", "dr_grpo, rloo, opo"] };
  return html`<${Section} title="Whose token weighs more?" id="averages" lead="A short right answer and a long wrong one, advantages +1 and −1. How the sum over tokens is divided decides how hard each token is pushed.">
    <${Play} label="Averages">
      <div class="knobs"><${Slider} name="short" label="tokens of the right answer" min=${1} max=${40} step=${1} value=${4} /><${Slider} name="long" label="tokens of the wrong answer" min=${1} max=${40} step=${1} value=${16} /></div>
      <${Fetched} state=${state} height="14rem">${(data) => html`<${Table} label="Pushes by way of averaging" head=${["average", "a token of the right answer", "a token of the wrong one", "the whole answers"]} rows=${data.rows.map((row) => [html`${names[row.aggregate][0]} <span class="soft small">${names[row.aggregate][1]}</span>`, html`<span class="num" data-number=${`push-${row.aggregate}`}>${signed(row.per_token[0], 4)}</span>`, html`<span class="num">${signed(row.per_token[1], 4)}</span>`, html`<span class="num">${row.per_completion.map((p) => signed(p, 2)).join(" and ")}</span>`])} foot="With the mean of each answer, rambling is punished less per token than brevity is praised: answers that are wrong can learn to be long. The other two give every token the same weight." />`}<//>
    <//>
    <${Only} depth="math code">
      <${Only} depth="math"><p>With one reward for the whole answer there is one advantage for it; “per token” then means only that this one number stands before each token's log-probability:</p>
      <${Equation} tex="\\mathcal L_{\\text{plain}}=-\\sum_{t}A\\,\\log\\pi_\\theta(o_t\\mid q,o_{<t})\\qquad\\frac{\\partial\\mathcal L}{\\partial\\log\\pi_\\theta(o_t)}=-A" spoken="the plain loss is minus the sum over tokens of A times log pi; its derivative by a token's log-probability is minus A" /><//>
      <${Identity} />
      <${Only} depth="code"><${Code} slug="loss" source="weighted_sum" /><${Code} slug="loss" source="denominator" title="What it is divided by, once per optimizer step" /><//><//>
  <//>`;
}

function Identity() {
  const state = useAnswer("loss", "identity", { advantage: 1.5 });
  return html`<p>Before the first update, every preset of the engine has exactly this gradient, whatever its surrogate. Here for A = 1.5:</p><${Fetched} state=${state} height="6rem">${(data) => html`<${Table} label="Push at ratio one" head=${["preset", "value of the loss", "push"]} rows=${data.rows.map((row) => [row.preset, row.loss, row.push])} foot=${`−A log π pushes by ${number(data.plain, 3)} as well. The values differ, the gradients do not: a loss's value is no measure of anything here.`} />`}<//>`;
}

export function Updates() {
  const own = useAnswer("loss", "own", { ...ownParams(), updates: 8 });
  const recorded = useApi("/api/runs/~tiny-arithmetic/series?names=loss,reward_mean&points=80");
  return html`<${Section} title="Loss zero, and still learning" id="updates" lead="With one update on each batch, the usual setting, the ratio is 1 on every token: nothing is clipped, and the advantages of a group cancel. The value of the loss is 0 whatever happens.">
    <${Question} name="q-zero" ask="A group has two right and two wrong answers. Before the first update, what is the value of the policy loss, and how large is its gradient?" options=${[["both", "Both are 0"], ["loss", "The loss is 0, the gradient is not"], ["neither", "Neither is 0"]]}>${(picked) => html`<${FirstUpdate} picked=${picked} own=${own} />`}<//>
    <${Play} label="Eight updates on your group"><p class="small soft">Your group from above, eight updates on it instead of one.</p><${Fetched} state=${own} height="16rem">${(data) => (data.signal ? html`<${UpdateTable} updates=${data.updates} />` : html`<p class="warn">All answers of your group earned the same: no update is taken.</p>`)}<//><//>
    <${Only} depth="intuition math"><${Fetched} state=${recorded} height="14rem">${(data) => html`<h3>The same in a whole run</h3><div class="pair"><${Scalar} series=${data.series.loss} title="loss" /><${Scalar} series=${data.series.reward_mean} title="mean reward" /></div><p class="small soft">The run that ships with the lab. Nobody could read off the left curve what the right one did.</p>`}<//><//>
    <h3>One update or many?</h3>
    <p>Answers are the expensive part, so it is tempting to take several updates on each batch. Then the ratios leave 1, and the clip has work to do. Trained on <code>nano</code>, three seeds each: in the recording eight updates rise sooner, then end lower and less steadily, and the largest ratios show how little the clip holds.</p>
    <${Trial} name="one-or-eight-updates" />
  <//>`;
}

function FirstUpdate({ picked, own }) {
  return html`<${Fetched} state=${own} height="4rem">${(data) => (data.signal ? html`<${Verdict} picked=${picked} right="loss"><p>On your group above: loss <b class="num" data-number="first-loss">${exact(data.updates[0].loss, 3)}</b>, size of the gradient <b class="num" data-number="first-norm">${number(data.updates[0].grad_norm, 3)}</b>. A curve of the loss that sits at zero is no sign that a run is stuck, nor that it is done.</p><//>` : html`<p class="warn">Your group has no spread; write one right and one wrong answer.</p>`)}<//>`;
}

function Scalar({ series, title }) {
  const points = series.step.map((step, i) => ({ x: step, y: series.mean[i] }));
  return html`<${Figure} label=${`${title} over the steps of the recorded run`} height=${160} deps=${[title]} legend=${[[title, "var(--c1)"]]} build=${(Plot) => ({ x: { label: "step", ticks: 5 }, y: { grid: true, label: null, ticks: 4, tickFormat: tick }, marks: [Plot.ruleY([0], { stroke: "var(--line-strong)" }), Plot.lineY(points, { x: "x", y: "y", stroke: "var(--c1)", strokeWidth: 1.8 })] })} table=${{ columns: ["step", title], rows: points.map((point) => [point.x, point.y]) }} />`;
}

export function Reference() {
  return html`<${Section} title="Keeping the reference, and what is proved" id="reference" depth="math code">
    <p>The reference is loaded once and stays as it was (<code>loss.refresh 0</code>). With β = 0 it is not loaded at all, which saves its weights and one forward pass per step. Every n steps it can become a copy of the policy (<code>loss.refresh n</code>), as the outer loop of GRPO's paper does: the leash is then measured from where the policy stood last, and total drift is unbounded. With adapters it costs nothing: the reference is the model without them.</p>
    <p>PPO and GRPO come with no guarantee of convergence to the best policy. What is proved is about idealised relatives: TRPO's bound says that a small enough step within a trust region does not lower the true objective, and the clip is a heuristic in its place, without a bound (the histogram above). Dividing by the group's deviation moves the direction besides; <${Link} to="/learn/advantage">chapter 3<//> measures by how much.</p>
  <//>`;
}

export function LossCode() {
  const params = ownParams();
  const fifty = useAnswer("loss", "fifty", params);
  const trl = useAnswer("loss", "trl", { algorithm: param("preset", "grpo"), g: param("g", 8), updates: param("trl_updates", 1) });
  return html`<${Section} title="Fifty lines, and the same number" id="fifty" depth="code" lead="Nothing but torch, from rewards to the loss of a group. It is run here, on your answers from above, beside the trainer's own.">
      <${Code} slug="loss" source="fifty" open=${true} title="GRPO's loss from top to bottom" />
      <${Fetched} state=${fifty} height="6rem">${(data) => html`<${Numbers} items=${[["these lines", exact(data.fifty, 6), null, "fifty"], ["the trainer", exact(data.trainer, 6), null, "trainer"], ["difference", exact(data.difference, 2), "the trainer computes in 32 bits"]]} />`}<//>
      <p>The engine's own does the same for eleven algorithms, any mask, and micro-batches of any size:</p>
      <${Code} slug="loss" source="policy_loss" title="The loss that trains" />
    <//>
    <${Section} title="In TRL's words" id="trl" depth="code" lead="The same objective as a config of TRL's trainer, so that either can be checked against the other.">
      <${Play} label="TRL equivalent"><div class="knobs"><${Choice} name="preset" label="preset" value="grpo" options=${["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce++"].map((name) => [name, name])} /><${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} /><${Slider} name="trl_updates" label="updates per batch" min=${1} max=${8} step=${1} value=${1} /></div>
      <${Fetched} state=${trl} height="16rem">${(data) => html`<pre class="listing scroll" tabIndex="0" role="group" aria-label="Command"><code>${data.command}</code></pre><pre class="listing scroll" tabIndex="0" role="group" aria-label="TRL config"><code>${data.text}</code></pre>${data.missing.length ? html`<p class="small">No counterpart there: ${data.missing.join("; ")}.</p>` : html`<p class="small soft">Nothing is left out.</p>`}`}<//><//>
      <p class="small soft">The repository's tests call TRL's own loss on random numbers and compare loss and gradient, for each of these that it knows.</p>
      <${Code} slug="loss" source="trl_equivalent" />
    <//>`;
}
