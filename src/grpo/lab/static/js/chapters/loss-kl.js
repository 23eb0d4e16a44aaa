// The KL penalty: three estimates, their gradients, and how far a policy drifts.
import { html } from "htm/preact";
import { exact, number, percent, signed, tick } from "../format.js";
import {
  Choice, Code, Equation, Fetched, Figure, Misconception, Numbers, Only, param, Play, Section, Slider, Table, useAnswer, useDepth,
} from "../lesson.js";
import { Term } from "../glossary.js";
import { setQuery } from "../route.js";
import { together } from "./costs-memory.js";

const KINDS = { k1: "var(--c1)", k2: "var(--c2)", k3: "var(--c3)" };

export function Penalty() {
  const state = useAnswer("loss", "kl", { policy: param("p", 0.5), reference: param("q", 0.2), beta: param("beta", 0.04) });
  return html`<${Section} title="The KL penalty: three estimates" id="kl" depth="math code"
    lead="The reference is the model before training. The penalty grows with the difference between policy and reference on each token; β is its coefficient.">
    <${Only} depth="math">
      <${Equation} tex="k_1=d,\\qquad k_2=\\tfrac12d^2,\\qquad k_3=e^{-d}+d-1,\\qquad d=\\log\\pi_\\theta(o_t)-\\log\\pi_{\\text{ref}}(o_t)"
        spoken=${"k one is d; k two is half d squared; k three is e to the minus d, plus d, minus one; d is the log-probability under the policy minus that " +
          "under the reference"} />
    <//>
    <${Play} label="β explorer">
      <div class="knobs"><${Slider} name="beta" label="β" min=${0} max=${0.5} step=${0.01} value=${0.04} show=${(v) => number(v, 2)} />
        <${Slider} name="p" label="token probability under the policy" min=${0.01} max=${0.99} step=${0.01} value=${0.5} show=${(v) => percent(v)} />
        <${Slider} name="q" label="token probability under the reference" min=${0.01} max=${0.99} step=${0.01} value=${0.2} show=${(v) => percent(v)} /></div>
      <${Fetched} state=${state} height="24rem">${(data) => html`
        <${Table} label="Three estimates of the KL divergence" head=${["estimate", "value", "penalty: β × value", "pull on the log-probability"]}
          rows=${Object.entries(data.kinds).map(([kind, row]) => [
            kind,
            row.value,
            html`<span data-number=${`penalty-${kind}`} class="num">${exact(row.penalty, 4)}</span>`,
            html`<span data-number=${`pull-${kind}`} class="num">${signed(row.pull, 4)}</span>`,
          ])} />
        <div class="pair"><${Estimates} data=${data} name="value" title="value" /><${Estimates} data=${data} name="slope" title="slope" /></div>
        <p class="small soft">k1 is negative for a token that has become less likely than under the reference. k3 is never negative; GRPO's paper uses it. The
          policy's push is about ±1 divided by the number of tokens; 0.04 × k3 is small next to it until the policy is far from the reference.</p>`}
      <//>
    <//>
    <${Only} depth="code"><${Code} slug="loss" source="kl_estimate" /><//>
  <//>`;
}

function Estimates({ data, name, title }) {
  const points = Object.entries(data.kinds).flatMap(([kind, row]) => row.curve[name].map((y, i) => ({ kind, x: data.grid[i], y })));
  const now = Object.entries(data.kinds).map(([kind, row]) => ({ kind, x: data.difference, y: row[name] }));
  return html`<${Figure} label=${`${title} of k1, k2 and k3 over the difference of log-probabilities`} height=${200} deps=${[JSON.stringify(now), name]}
    legend=${Object.entries(KINDS)}
    build=${(Plot) => ({
      x: { label: "log p − log reference", ticks: 5, domain: [-2.5, 2.5] },
      y: { grid: true, label: title, ticks: 5, tickFormat: tick, domain: [-3, 4], clamp: false },
      marks: [
        Plot.ruleY([0], { stroke: "var(--line-strong)" }),
        Plot.ruleX([0], { stroke: "var(--line-strong)" }),
        Plot.lineY(points, { x: "x", y: "y", z: "kind", stroke: (d) => KINDS[d.kind], strokeWidth: 2, clip: true }),
        Plot.dot(now.filter((d) => Math.abs(d.x) <= 2.5 && d.y >= -3 && d.y <= 4), { x: "x", y: "y", r: 4.5, fill: (d) => KINDS[d.kind] }),
      ],
    })}
    table=${{
      columns: ["difference", "k1", "k2", "k3"],
      rows: data.grid.map((x, i) => [x, ...Object.values(data.kinds).map((row) => row.curve[name][i])]),
    }} />`;
}

const WORDS = ["the", "a", "its", "14"];
const POLICY = [0.05, 0.15, 0.2, 0.6];
const REFERENCE = [0.4, 0.3, 0.2, 0.1];
const listed = (name, otherwise) => {
  const found = param(name, otherwise.join(",")).split(",").map(Number);
  const sum = found.reduce((all, one) => all + one, 0);
  return found.length === otherwise.length && found.every((one) => one > 0 && one <= 1) ? found.map((one) => one / sum) : otherwise;
};
const LEAST = 0.001; // of a bar

// The shares after a bar was dragged to `share`: the others keep their proportions, and all sum to 1.
function dragged(shares, place, share) {
  const now = Math.max(LEAST, Math.min(1 - (shares.length - 1) * LEAST, share));
  const rest = (1 - now) / (1 - shares[place]);
  return shares.map((old, at) => Number((at === place ? now : Math.max(LEAST, old * rest)).toFixed(4)));
}

export function Bars() {
  const [policy, reference] = [listed("policy", POLICY), listed("reference", REFERENCE)];
  const state = useAnswer("loss", "bars", { policy: policy.join(","), reference: reference.join(",") });
  const exactly = useDepth() !== "intuition";
  return html`<${Section} title="Distance from the reference" id="bars"
    lead=${html`The <${Term} of="reference">reference<//> is the model before training. Drag a bar: how far apart are the two, on the next word?`}>
    <${Play} label="KL bars">
      <${Fetched} state=${state} height="22rem">${(data) => html`
        <div class="kl-bars">${WORDS.map((word, place) => html`<div class="kl-bar"><span class="kl-word">“${word}”</span>
          <${Bar} name="reference" place=${place} values=${reference} share=${data.reference[place]} label=${`the reference's “${word}”`} colour="var(--c6)" />
          <${Bar} name="policy" place=${place} values=${policy} share=${data.policy[place]} label=${`the policy's “${word}”`} colour="var(--c1)" /></div>`)}
        </div>
        <p class="legend"><span><i class="key square" style=${{ "--key": "var(--c6)" }}></i>reference</span>
          <span><i class="key square" style=${{ "--key": "var(--c1)" }}></i>policy</span></p>
        <${Numbers}
          items=${exactly
            ? [
              ["KL(policy ‖ reference), reverse", exact(data.reverse, 4), "nats; the one the penalty is meant to limit", "reverse"],
              ["KL(reference ‖ policy), forward", exact(data.forward, 4), "nats", "forward"],
            ]
            : [[html`distance (<${Term} of="KL">KL<//>)`, number(data.reverse, 2), null, "reverse"]]} />
        ${exactly && html`<p class="small soft">KL divergence has two directions. The reverse KL penalises words that are likely under the policy and unlikely
          under the reference. The forward KL penalises words of the reference that the policy has dropped. Set one bar of the policy to 0: the forward KL grows
          without bound.</p>`}
        <p>
          <button type="button" onClick=${() => setQuery({ policy: reference.join(",") === POLICY.join(",") ? undefined : reference.join(",") })}>Set policy to
            reference</button> <button type="button" onClick=${() => setQuery({ policy: undefined, reference: undefined })}>Reset</button>
        </p>`}
      <//>
    <//>
    <${Only} depth="math">
      <${Equation} tex="\\text{KL}(\\pi_\\theta\\|\\pi_{\\text{ref}})=\\sum_a\\pi_\\theta(a)\\log\\frac{\\pi_\\theta(a)}{\\pi_{\\text{ref}}(a)}"
        spoken="the reverse KL divergence is the sum over answers of the policy's probability times the logarithm of policy over reference" />
    <//>
    <${Only} depth="code"><${Code} slug="loss" source="tabular_kl" /><//>
  <//>
  <${Pulls} state=${state} />`;
}

// A bar that is its own slider: its length is the share, wherever it is dragged.
function Bar({ name, place, values, share, label, colour }) {
  const set = (event) => setQuery({ [name]: dragged(values, place, Number(event.target.value)).join(",") });
  return html`<label class="kl-row" style=${{ "--key": colour, "--share": `${100 * share}%` }}><span class="visually-hidden">${label}</span>
    <input type="range" min="0" max="1" step="0.01" value=${values[place]} name=${`${name}-${place}`} onInput=${set} aria-valuetext=${percent(share)} />
    <span class="num small" data-number=${`${name}-share-${place}`}>${percent(share)}</span></label>`;
}

// The expected gradient of k1 as a loss is zero.
function Pulls({ state }) {
  return html`<${Section} title="The expected gradient of each estimate" id="pulls" depth="math code"
    lead="An unbiased estimate of the KL can still have the wrong gradient as a loss, because the sampling itself is not differentiated.">
    <${Misconception} name="k1" claim="Adding β × (log π − log π_ref) to the loss keeps the policy near the reference."><${K1Runs} /><//>
    <${Play} label="Expected gradients of the bars above">
      <${Fetched} state=${state} height="16rem">
        ${(data) => html`<${Table} label="Estimates as values and as losses" head=${["estimate", "mean", "std", "expected gradient", "gradient of"]}
        rows=${Object.entries(data.estimates).map(([kind, row]) => [
          kind === "k3_ratio" ? "k3 · ρ" : kind,
          html`<span class="num">${exact(row.mean, 4)}</span>
            ${Math.abs(row.mean - data.reverse) < 1e-9
              ? html` <span class="soft small">unbiased</span>`
              : html` <span class="soft small">not ${exact(data.reverse, 4)}</span>`}`,
          row.spread,
          html`<span class="num">${row.gradient.map((g) => signed(Math.abs(g) < 1e-9 ? 0 : g, 3)).join("  ")}</span>`,
          html`<b data-match=${kind}>${row.matches === "nothing" ? "nothing (zero)" : row.matches === "neither" ? "neither" : `the ${row.matches} KL`}</b>`,
        ])}
        foot=${`Gradients by the logits of the four words. Gradient of the reverse KL: ${data.gradients.reverse.map(
          (g) => signed(Math.abs(g) < 1e-9 ? 0 : g, 3),
        ).join("  ")}; of the forward KL: ${data.gradients.forward.map((g) => signed(Math.abs(g) < 1e-9 ? 0 : g, 3)).join("  ")}.`} />`}
      <//>
    <//>
    <${Only} depth="math"><h3>The expected gradient of k1 is zero</h3>
    <${Equation} tex="\\mathbb E_{a\\sim\\pi}\\big[\\nabla k_1\\big]=\\sum_a\\pi(a)\\,\\nabla\\log\\pi(a)=\\nabla\\sum_a\\pi(a)=\\nabla 1=0"
      spoken=${"the expected gradient of k one is the sum of pi times the gradient of log pi, which is the gradient of the sum of pi, which is the gradient " +
        "of one: zero"} />
    <h3>The expected gradient of k2 is that of the reverse KL</h3>
    <${Equation}
      tex="\\mathbb E_{a\\sim\\pi}\\big[\\nabla\\tfrac12d^2\\big]=\\sum_a\\pi(a)\\,d(a)\\,\\nabla\\log\\pi(a)=\\nabla\\,\\text{KL}(\\pi\\|\\pi_{\\text{ref}})"
      spoken="the expected gradient of half d squared is the sum of pi times d times the gradient of log pi, which is the gradient of the reverse KL" />
    <h3>The expected gradient of k3 is that of the forward KL</h3>
    <${Equation}
      tex=${"\\mathbb E_{a\\sim\\pi}\\big[\\nabla k_3\\big]=\\sum_a\\pi(a)\\Big(1-\\frac{\\pi_{\\text{ref}}(a)}{\\pi(a)}\\Big)\\nabla\\log\\pi(a)=-\\sum_a" +
        "\\pi_{\\text{ref}}(a)\\nabla\\log\\pi(a)=\\nabla\\,\\text{KL}(\\pi_{\\text{ref}}\\|\\pi)"}
      spoken="the expected gradient of k three is minus the sum of the reference times the gradient of log pi, which is the gradient of the forward KL" />
    <p>The value of k3 is k1 plus <span class="num">r − 1</span>, with r = π<sub>ref</sub>/π. The extra term has mean 0 under the policy, so k3 is unbiased like
      k1. Since r − 1 ≥ log r, k3 is never negative. Its variance is smaller while policy and reference are close.</p>
    <//>
    <p>k3 multiplied by the ratio (k3 · ρ, TRL's default) also differentiates the weight π, so its expected gradient is that of the reverse KL.</p>
    <${Only} depth="code"><${Code} slug="loss" source="expected_kl_gradient" /><//>
  <//>`;
}

function K1Runs() {
  const states = ["k1", "k3"].map((kl) => useAnswer("loss", "drift", { beta: 1, kl }));
  return html`<${Fetched} state=${together(...states)} height="6rem">${([k1, k3]) => html`
      <p>It keeps it no closer. After 200 steps with β = 1, mean of three seeds: without a penalty the KL
        is <b class="num">${exact(k1.ends[0].reverse, 4)}</b>, with k1 in the loss <b class="num">${exact(k1.ends[1].reverse, 4)}</b>, with
        k3 <b class="num">${exact(k3.ends[1].reverse, 4)}</b>. k1 does work in the reward, because there it multiplies ∇log π. The
        presets <code>rloo</code> and <code>ppo</code> use it that way.</p>`}<//>`;
}

export function Drift() {
  const exactly = useDepth() !== "intuition";
  const params = { beta: param("dbeta", 0.2), kl: exactly ? param("kl", "k3") : "k3" };
  const state = useAnswer("loss", "drift", params);
  return html`<${Section} title="200 steps with and without a penalty" id="drift"
    lead="The penalty pulls the model back towards the reference. Twelve possible answers, one right: a stronger pull keeps it closer and lets it learn less.">
    <${Play} label="Drift over training">
      <div class="knobs"><${Slider} name="dbeta" label="strength of the penalty, β" min=${0} max=${1} step=${0.02} value=${0.2} show=${(v) => number(v, 2)} />
        ${exactly && html`<${Choice} name="kl" label="estimate in the loss" options=${[["k1", "k1"], ["k2", "k2"], ["k3", "k3"], ["k3_ratio", "k3 · ρ"]]}
          value="k3" />`}
      </div>
      <${Fetched} state=${state} height="26rem">
        ${(data) => html`<div class="pair">
          ${[
            ["reverse", exactly ? "KL(policy ‖ reference)" : "distance from the reference"],
            ...(exactly ? [["forward", "KL(reference ‖ policy)"]] : []),
            ["reward", "expected reward"],
          ].map(([name, title]) => html`<${Lines} data=${data} name=${name} title=${title} key=${name} />`)}
        </div>
        ${exactly && html`<${Table} label="After 200 steps, mean of three seeds"
          head=${["after 200 steps", "KL(policy ‖ reference)", "KL(reference ‖ policy)", "expected reward"]}
          rows=${data.ends.map((row) => [
            `β = ${exact(row.beta, 3)}`,
            html`<span class="num" data-number=${`drift-${row.beta === 0 ? "free" : "held"}`}>${exact(row.reverse, 4)}</span>`,
            row.forward,
            row.reward,
          ])} />
        <p class="small soft">It is often said that without a penalty the policy drifts without limit. Here the reverse KL does not: once the right answer is
          nearly certain, groups have no signal, and it stays below <b class="num">${exact(data.ceiling, 4)}</b>, the reverse KL of a policy that always gives
          that answer. The forward KL keeps growing. A penalty keeps the policy closer at the cost of reward: compare the last two columns.</p>`}`}
      <//>
    <//>
    <${Only} depth="code"><${Code} slug="loss" source="train_tabular" title="The training loop of this page" /><//>
  <//>`;
}

function Lines({ data, name, title }) {
  const colour = (beta) => (beta === 0 ? "var(--c6)" : "var(--c1)");
  const points = data.lines.flatMap((line) => line[name].map((y, i) => ({ x: data.steps[i], y, beta: line.beta, run: `${line.beta} ${line.seed}` })));
  return html`<div>
    <${Figure} label=${`${title} over 200 steps, three seeds each`} height=${180} deps=${[JSON.stringify([data.beta, data.kl]), name]}
      legend=${data.beta === 0 ? [["β = 0", "var(--c6)"]] : [["β = 0", "var(--c6)"], [`β = ${exact(data.beta, 3)}`, "var(--c1)"]]}
    build=${(Plot) => ({
      x: { label: "step", ticks: 5 },
      y: { grid: true, label: title, ticks: 5, zero: true, tickFormat: tick },
      marks: [Plot.lineY(points, { x: "x", y: "y", z: "run", stroke: (d) => colour(d.beta), strokeWidth: 1.6, strokeOpacity: 0.85 })],
    })}
    table=${{
      columns: ["step", "β", "seed", title],
      rows: data.lines.flatMap((line) => line[name].map((y, i) => [data.steps[i], line.beta, line.seed, y])),
    }} />
    </div>`;
}
