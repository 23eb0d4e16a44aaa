// The whole loss: its terms, the averages over tokens, one update or several, and the loss as code.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { exact, number, signed, tick } from "../format.js";
import {
  Analogy, Choice, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, Tex, Trial, useAnswer, useDepth, Verdict,
} from "../lesson.js";
import { Term } from "../glossary.js";
import { Link } from "../route.js";
import { ownParams, UpdateTable } from "./loss-tokens.js";

const TERMS = [
  ["\\tfrac1G\\sum_i", "average over the group", "Every answer has the same weight, for any length.", "#averages"],
  ["\\tfrac1{|o_i|}\\sum_t", "average over its tokens", "A token of a long answer has less weight than a token of a short one.", "#averages"],
  ["\\rho_{i,t}", "the ratio", "How much the token's probability has changed since it was sampled.", "#ratio"],
  ["A_i", "the advantage", "How much better the answer is than its group; the same for all its tokens.", "/learn/advantage"],
  ["\\text{clip}(\\rho,1\\pm\\varepsilon)", "the clip", "Beyond the range there is no further gain, so no gradient.", "#clip"],
  ["\\min", "the smaller of the two", "The clip can lower a gain and never raises one.", "#clip"],
  ["\\beta\\,k_3", "the KL penalty", "Grows with the distance from the reference.", "#kl"],
];

export function Whole() {
  return html`<${Section} title="Three clauses" depth="intuition"><${Analogy} title="A musician records several takes">
      <p><b>The advantage</b> selects: play more like the takes above today's average. <b>The clip</b> limits one rehearsal: a bar that improved by a fifth is
        left alone. <b>The reference</b> keeps the style: every difference from it costs.</p>
  <//>
    <//>
  <${Section} title="The loss, term by term" id="whole" depth="math code">
    <${Equation}
      tex=${"\\mathcal L=\\frac1G\\sum_{i=1}^{G}\\frac1{|o_i|}\\sum_{t=1}^{|o_i|}\\Big[-\\min\\big(\\rho_{i,t}A_i,\\ " +
        "\\text{clip}(\\rho_{i,t},1-\\varepsilon,1+\\varepsilon)A_i\\big)+\\beta\\,k_3(o_{i,t})\\Big]"}
      spoken="the loss is the mean over the group of the mean over tokens of minus the smaller of rho A and clipped rho A, plus beta times k three" />
    <ul class="terms">
      ${TERMS.map(([tex, name, what, to]) => html`<li>
        <${Link} to=${to}><span class="term-tex"><${Tex}>${tex}<//></span><span><b>${name}</b><span class="small soft">${what}</span></span><//></li>`)}
    </ul>
    <${Only} depth="math">
      <p>PPO's objective is the same without the group: its advantage comes from a critic, one per token, and its KL is usually subtracted from the reward.
        Papers maximise an objective and code minimises a loss; the two differ only in sign.</p>
      <${Equation} tex="J_{\\text{PPO}}=\\mathbb E\\Big[\\min\\big(\\rho_t\\hat A_t,\\ \\text{clip}(\\rho_t,1-\\varepsilon,1+\\varepsilon)\\hat A_t\\big)\\Big]"
        spoken="PPO's objective: the expectation of the smaller of rho A and clipped rho A, with an advantage for each token" />
    <//>
  <//>`;
}

export function Averages() {
  const params = { short: param("short", 4), long: param("long", 16) };
  const state = useAnswer("loss", "aggregation", params);
  const exactly = useDepth() !== "intuition";
  const names = {
    sequence: ["each answer the same", "grpo, gspo, sapo"],
    token: ["each token the same", "dapo, cispo, ppo"],
    constant: ["sum divided by a constant", "dr_grpo, rloo, opo"],
  };
  return html`<${Section} title="Averaging over tokens" id="averages"
    lead="A right and a wrong answer with advantages +1 and −1. How hard is each token pushed?">
    <${Play} label="Averages">
      <div class="knobs"><${Slider} name="short" label="tokens, right answer" min=${1} max=${40} step=${1} value=${4} />
        <${Slider} name="long" label="tokens, wrong answer" min=${1} max=${40} step=${1} value=${16} /></div>
      <${Fetched} state=${state} height="14rem">
        ${(data) => html`<${Table} label="Pushes by kind of average"
          head=${["average", "push per token, right", "wrong", exactly && "sum per answer"].filter(Boolean)}
          rows=${data.rows.map((row) => [
            html`${names[row.aggregate][0]} ${exactly
              ? html`<span class="soft small">${names[row.aggregate][1]}</span>`
              : row.aggregate === "sequence" && html`<span class="soft small">the default</span>`}`,
            html`<span class="num" data-number=${`push-${row.aggregate}`}>${signed(row.per_token[0], 4)}</span>`,
            html`<span class="num">${signed(row.per_token[1], 4)}</span>`,
            exactly && html`<span class="num">${row.per_completion.map((p) => signed(p, 2)).join(" and ")}</span>`,
          ].filter(Boolean))}
          foot=${exactly
            ? "With a mean over each answer, each token of a long wrong answer is pushed down less, so wrong answers can become longer. The other two " +
              "averages give every token the same weight."
            : "By default every answer counts the same, so few tokens get more push each. Make the wrong answer short."} />`}
      <//>
    <//>
    <${Only} depth="math code">
      <${Only} depth="math">
        <p>One reward per answer gives one advantage per answer. “Per token” then means that this number multiplies each token's log-probability:</p>
      <${Equation}
        tex=${"\\mathcal L_{\\text{plain}}=-\\sum_{t}A\\,\\log\\pi_\\theta(o_t\\mid q,o_{<t})\\qquad\\frac{\\partial\\mathcal " +
          "L}{\\partial\\log\\pi_\\theta(o_t)}=-A"}
        spoken="the plain loss is minus the sum over tokens of A times log pi; its derivative by a token's log-probability is minus A" />
      <//>
      <${Identity} />
      <${Only} depth="code"><${Code} slug="loss" source="weighted_sum" />
        <${Code} slug="loss" source="denominator" title="The denominator, computed once per optimizer step" /><//>
    <//>
  <//>`;
}

function Identity() {
  const state = useAnswer("loss", "identity", { advantage: 1.5 });
  return html`<p>Before the first update every preset has exactly this gradient, for any surrogate. Here for A = 1.5:</p>
    <${Fetched} state=${state} height="6rem">
      ${(data) => html`<${Table} label="Push at ratio one" head=${["preset", "value of the loss", "push"]}
        rows=${data.rows.map((row) => [row.preset, row.loss, row.push])}
        foot=${`−A log π pushes by ${number(
          data.plain, 3,
        )} as well. The values differ but the gradients are equal: the value of the loss measures nothing here.`} />`}
    <//>`;
}

export function Updates() {
  const own = useAnswer("loss", "own", { ...ownParams(), updates: 8 });
  const recorded = useApi("/api/runs/~tiny-arithmetic/series?names=loss,reward_mean&points=80");
  return html`<${Section} title="Does the loss show progress?" id="updates" lead=${html`Elsewhere, a falling <${Term} of="loss">loss<//> does. Here?`}>
    <${Question} name="q-zero" ask="Two right and two wrong answers. Before the first update: how large are the loss and its gradient?"
      options=${[["both", "Both are 0"], ["loss", "The loss is 0, the gradient is not"], ["neither", "Neither is 0"]]}>
      ${(picked) => html`<${FirstUpdate} picked=${picked} own=${own} />`}<//>
    <${Only} depth="math code">
      <p>With one update per batch, the usual setting, the ratio is 1 for every token: nothing is clipped, and the advantages of a group sum to 0.</p>
      <${Play} label="Eight updates on your group"><p class="small soft">Your group from above, with eight updates.</p>
        <${Fetched} state=${own} height="16rem">
          ${(data) => (data.signal
            ? html`<${UpdateTable} updates=${data.updates} />`
            : html`<p class="warn">All rewards of your group are equal: no update is taken.</p>`)}
        <//>
      <//>
    <//>
    <${Only} depth="math">
      <${Fetched} state=${recorded} height="14rem">
        ${(data) => html`<h3>Loss and reward over a whole run</h3>
          <div class="pair"><${Scalar} series=${data.series.loss} title="loss" /><${Scalar} series=${data.series.reward_mean} title="mean reward" /></div>
          <p class="small soft">The recorded run that ships with the lab. The loss curve does not show the rise of the reward.</p>`}
      <//>
    <//>
    <${Only} depth="math code"><h3>One update or several?</h3>
    <p>Sampling is the expensive part, so it is tempting to take several updates per batch. Then ratios leave 1 and the clip takes effect.
      With <code>nano</code> and three seeds each, the recorded runs with eight updates rise sooner, but end lower and vary more. The largest ratios show that
      the clip does not bound them.</p>
    <${Trial} name="one-or-eight-updates" /><//>
  <//>`;
}

function FirstUpdate({ picked, own }) {
  return html`<${Fetched} state=${own} height="4rem">
    ${(data) => (data.signal
      ? html`<${Verdict} picked=${picked} right="loss">
        <p>The group's pushes up and down cancel in the loss, not in the model. On your group above:
          loss <b class="num" data-number="first-loss">${exact(data.updates[0].loss, 3)}</b>, gradient
          norm <b class="num" data-number="first-norm">${number(data.updates[0].grad_norm, 3)}</b>. A loss curve at zero does not mean that a run is stuck or
          finished.</p>
      <//>`
      : html`<p class="warn">All rewards of your group are equal; write one right and one wrong answer.</p>`)}
    <//>`;
}

function Scalar({ series, title }) {
  const points = series.step.map((step, i) => ({ x: step, y: series.mean[i] }));
  return html`<${Figure} label=${`${title} over the steps of the recorded run`} height=${160} deps=${[title]}
    build=${(Plot) => ({
      x: { label: "step", ticks: 5 },
      y: { grid: true, label: title, ticks: 4, tickFormat: tick },
      marks: [Plot.ruleY([0], { stroke: "var(--line-strong)" }), Plot.lineY(points, { x: "x", y: "y", stroke: "var(--c1)", strokeWidth: 1.8 })],
    })}
    table=${{ columns: ["step", title], rows: points.map((point) => [point.x, point.y]) }} />`;
}

export function Reference() {
  return html`<${Section} title="The reference, and what is proved" id="reference" depth="math code">
    <p>The reference is loaded once and does not change (<code>loss.refresh 0</code>). With β = 0 it is not loaded, which saves its weights and one forward pass
      per step. Every n steps it can be replaced by a copy of the policy (<code>loss.refresh n</code>), as in the outer loop of GRPO's paper. The penalty then
      measures the distance from the latest copy, and total drift is unbounded. With LoRA the reference needs no extra weights: it is the model without the
      adapters.</p>
    <p>Neither PPO nor GRPO has a guarantee of convergence to the best policy. Proofs exist for idealised relatives: TRPO's bound shows that a small enough step
      within a trust region does not lower the true objective. The clip is a heuristic that replaces this bound without giving one (see the histogram above).
      Dividing by the group's standard deviation also changes the direction; <${Link} to="/learn/advantage">chapter 3<//> measures by how much.</p>
  <//>`;
}

export function LossCode() {
  const params = ownParams();
  const fifty = useAnswer("loss", "fifty", params);
  const trl = useAnswer("loss", "trl", { algorithm: param("preset", "grpo"), g: param("g", 8), updates: param("trl_updates", 1) });
  return html`<${Section} title="The loss in fifty lines" id="fifty" depth="code"
    lead="From rewards to the loss of a group, with torch only. It runs here on your answers from above, next to the trainer's loss.">
      <${Code} slug="loss" source="fifty" open=${true} title="GRPO's loss from top to bottom" />
      <${Fetched} state=${fifty} height="6rem">
        ${(data) => html`<${Numbers}
          items=${[
            ["these lines", exact(data.fifty, 6), null, "fifty"],
            ["the trainer", exact(data.trainer, 6), null, "trainer"],
            ["difference", exact(data.difference, 2), "the trainer uses float32"],
          ]} />`}
      <//>
      <p>The trainer's loss does the same for twelve algorithms, any mask, and micro-batches of any size:</p>
      <${Code} slug="loss" source="policy_loss" title="The loss that trains" />
    <//>
    <${Section} title="The same objective in TRL" id="trl" depth="code"
      lead="The same objective as a config of TRL's trainer, so that the two can be compared.">
      <${Play} label="TRL equivalent">
        <div class="knobs">
          <${Choice} name="preset" label="preset" value="grpo"
            options=${["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce++"].map((name) => [name, name])} />
          <${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} />
          <${Slider} name="trl_updates" label="updates per batch" min=${1} max=${8} step=${1} value=${1} /></div>
      <${Fetched} state=${trl} height="16rem">
        ${(data) => html`<pre class="listing scroll" tabIndex="0" role="group" aria-label="Command"><code>${data.command}</code></pre>
          <pre class="listing scroll" tabIndex="0" role="group" aria-label="TRL config"><code>${data.text}</code></pre>
          ${data.missing.length
            ? html`<p class="small">No counterpart in TRL: ${data.missing.join("; ")}.</p>`
            : html`<p class="small soft">Every setting has a counterpart.</p>`}`}
      <//>
      <//>
      <p class="small soft">The repository's tests call TRL's loss on random numbers and compare loss and gradient for each preset that TRL has.</p>
      <${Code} slug="loss" source="trl_equivalent" />
    <//>`;
}
