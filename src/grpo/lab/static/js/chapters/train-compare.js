// Comparisons: PPO and GRPO, β, and where exact ascent ends.
import { html } from "htm/preact";
import { Choice, Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Slider, Table, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";

export function Smoothness() {
  const state = useAnswer("train", "smoothness", {});
  return html`<${Misconception} name="smoother" claim="PPO's early steps are noisy because its critic warms up; GRPO converges more smoothly.">
    <${Fetched} state=${state} height="12rem">${(rows) => html`<${Table} label="How smoothly each trained" head=${["", "change of reward from step to step", "of which sampling alone", "reward, first 20 steps", "last 20", "seeds apart at the end", "spread of the gradient's norm"]} rows=${rows.map((row) => [row.label, html`<b data-number=${`jump-${row.label}`}>${number(row.jump, 4)}</b>`, number(row.floor, 4), percent(row.early, 1), percent(row.late, 1), row.apart === null ? "–" : percent(row.apart, 1), percent(row.grad_spread)])} foot=${`${rows[0]?.seeds ?? 0} seeds each, 128 completions a step. Rewards of 0 and 1 scatter by themselves: “sampling alone” is what a policy that never changes would show.`} />
      <${Reading} rows=${rows} />`}<//><//>`;
}

function Reading({ rows }) {
  const [grpo, ppo] = ["GRPO", "PPO"].map((name) => rows.find((row) => row.label === name));
  if (!grpo || !ppo) return null;
  const smoother = grpo.jump < ppo.jump ? "GRPO" : "PPO";
  const [less, more] = smoother === "GRPO" ? [grpo, ppo] : [ppo, grpo];
  const near = more.jump / less.jump < 1.1;
  return html`<p>${near ? "Measured here, neither is smoother: " : `Measured here, ${smoother} is the smoother one: `}the reward changes by ${number(less.jump, 3)} and ${number(more.jump, 3)} from step to step, and ${percent(less.luck)} and ${percent(more.luck)} of that variance would be there if neither learned. What differs is the beginning: over the first 20 steps ${percent(grpo.early)} (GRPO) and ${percent(ppo.early)} (PPO), whose first ten train the critic alone. Over the last 20 it is ${percent(grpo.late)} and ${percent(ppo.late)}. That is this task, with a reward at the end only; a long one with partial rewards may turn out otherwise.</p>`;
}

export function Drift() {
  const asked = { beta: param("beta", 0.04), kl: param("kind", "k3") };
  const state = useAnswer("train", "drift", asked);
  const free = useAnswer("train", "drift", { beta: 0 });
  return html`<${Play} label="Drift of a policy over five answers">
    <div class="knobs"><${Slider} name="beta" label="β" min=${0} max=${1} step=${0.01} value=${0.04} show=${(value) => number(value, 2)} /><${Choice} name="kind" label="estimate of the KL" value="k3" options=${[["k1", "k1"], ["k2", "k2"], ["k3", "k3"]]} /></div>
    <${Fetched} state=${state} height="18rem">${(data) => html`<${Figure} label="KL divergence from the reference over 200 exact steps" height=${210} deps=${[JSON.stringify(asked), free.data?.rows.length]} build=${(Plot) => ({ x: { label: "steps" }, y: { label: null, grid: true, zero: true }, marks: [Plot.lineY(free.data?.rows ?? [], { x: "step", y: "reverse", stroke: "var(--ink-faint)", strokeDasharray: "4 3" }), Plot.lineY(data.rows, { x: "step", y: "reverse", stroke: "var(--c1)", strokeWidth: 2 }), Plot.lineY(data.rows, { x: "step", y: "forward", stroke: "var(--c2)", strokeWidth: 2 })] })} legend=${[["KL(policy ‖ reference)", "var(--c1)"], ["KL(reference ‖ policy)", "var(--c2)"], ["without β", "var(--ink-faint)"]]} table=${{ columns: ["step", "reverse", "forward", "reward"], rows: data.rows.map((row) => [row.step, row.reverse, row.forward, row.reward]) }} />
      <${Numbers} items=${[["KL at the end", data.rows.at(-1).reverse, "nats", "drift-end"], ["expected reward", percent(data.rows.at(-1).reward, 1), null, "drift-reward"], ["probability of the best answer", percent(data.probabilities[4], 1), `was ${percent(data.start[4])}`]]} />`}<//>
    <p class="small soft">Five answers, exact gradients: no luck in it. With k1 the penalty has no effect at all, since its expected gradient is 0. Below, the same question asked of nano.</p><//>
    <${Only} depth="code"><${Code} slug="train" source="drift" /><//>`;
}

export function Drifted() {
  const state = useAnswer("train", "drifted", {});
  return html`<${Misconception} name="drifts" claim="Without the KL penalty the policy drifts further and further away; with it, it settles.">
    <${Fetched} state=${state} height="10rem">${(rows) => html`<${Table} label="How far nano drifted" head=${["", "KL, steps 50 to 100", "KL, last 50 steps", "reward, last 50", "held out"]} rows=${rows.map((row) => [row.label, number(row.kl_middle, 3), html`<b data-number=${`kl-${row.label}`}>${number(row.kl, 3)}</b>`, percent(row.reward, 1), percent(row.accuracy, 1)])} />
      <p>Measured here: with next to no penalty it settles as well. The task is solved by then, groups agree, and without a difference in reward there is no push. A KL divergence of a tenth of a nat is what solving it takes, whoever pulls. Where a reward never runs out, as in the five answers above, it is another matter. What β = 0.3 did do is cost accuracy; renewing the reference every 40 steps, so that the pull is to where the policy already is, gave it back.</p>`}<//><//>`;
}

export function Convergence() {
  const state = useAnswer("train", "convergence", { g: param("cg", 4) });
  const colours = ["var(--c1)", "var(--c2)", "var(--c3)"];
  return html`<p>Ascent along an unbiased gradient with shrinking steps settles where the gradient is 0 (Robbins and Monro, 1951). PPO and GRPO inherit less than is often said: the clip makes the objective another one at every batch, and the group's std points elsewhere. What can be checked is small cases, exactly:</p>
    <${Play} label="Exact ascent by three gradients"><${Slider} name="cg" label="group size G" min=${2} max=${5} step=${1} value=${4} />
      <${Fetched} state=${state} height="16rem">${(data) => html`<${Figure} label="Expected reward over exact steps by three gradients" height=${190} deps=${[data.group_size]} build=${(Plot) => ({ x: { label: "steps" }, y: { label: null, domain: [0, 1], grid: true, tickFormat: (value) => percent(value) }, marks: Object.values(data.ways).map((rows, place) => Plot.lineY(rows, { x: "step", y: "reward", stroke: colours[place], strokeWidth: 2 })) })} legend=${Object.keys(data.ways).map((name, place) => [name, colours[place]])} table=${{ columns: ["step", ...Object.keys(data.ways)], rows: Object.values(data.ways)[0].map((row, at) => [row.step, ...Object.values(data.ways).map((rows) => rows[at].reward)]) }} />
        <${Numbers} items=${Object.entries(data.ways).map(([name, rows]) => [name, percent(rows.at(-1).reward, 1), "after 200"])} />`}<//><//>
    <p>All three end at the best answer here. With the std it gets there sooner, since its steps stay long while the group's spread gets small.</p>
    <${Equation} tex=${"\\theta_{t+1}=\\theta_t+\\eta\\,\\mathbb E\\Big[\\tfrac1G\\textstyle\\sum_i A_i\\nabla\\log\\pi(a_i)\\Big]"} spoken="Theta at t plus one equals theta at t plus eta times the expectation of the mean over the group of A i times the gradient of log pi of a i" />
    <${Only} depth="code"><${Code} slug="train" source="convergence" /><//>`;
}
