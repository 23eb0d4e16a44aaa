// From REINFORCE to GRPO: what each compares a reward with, and what that costs in bias and variance.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Reported, Slider, Table, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { setQuery } from "../route.js";

const FORMULAS = {
  reinforce: ["A_i=r_i", "A i equals r i"],
  actor_critic: ["A_i=r_i-V_\\phi", "A i equals r i minus the critic's value"],
  trpo: ["A_i=r_i-V_\\phi,\\quad \\mathrm{KL}(\\pi_{\\text{old}}\\Vert\\pi)\\le\\delta", "A i equals r i minus the critic's value, with the KL divergence of the step bounded by delta"],
  ppo: ["A_i=r_i-V_\\phi,\\quad \\rho\\text{ clipped to }1\\pm\\varepsilon", "A i equals r i minus the critic's value, with the ratio clipped"],
  rloo: ["A_i=r_i-\\tfrac1{G-1}\\textstyle\\sum_{j\\ne i}r_j", "A i equals r i minus the mean of the others"],
  grpo: ["A_i=\\dfrac{r_i-\\bar r}{\\sigma}", "A i equals r i minus the group's mean, divided by its standard deviation"],
  dr_grpo: ["A_i=r_i-\\bar r", "A i equals r i minus the group's mean"],
};
const WORDS = {
  reinforce: "Every answer is pushed up by what it earned. With rewards from 0 to 1 nothing is ever pushed down; only luck evens it out.",
  actor_critic: "A second network learns what the prompt is worth. However wrong it is, the direction stays right on average; the worse it knows, the more the estimate scatters. Move its error.",
  trpo: "The same advantages; what is new is the step: as far as the KL divergence allows, and no further.",
  ppo: "The same advantages again. The hard limit of TRPO becomes a clip on the ratio, which any optimizer can use.",
  rloo: "No second network: the other answers to the same prompt say what it is worth. Exactly unbiased, because an answer is not in its own baseline.",
  grpo: "The mean of the whole group, the answer included, and divided by the group's std. The mean shortens the gradient by 1 − 1/G; the std turns it aside, because groups with little spread count as much as groups with much.",
  dr_grpo: "The group's mean and no std: the right direction, shortened by 1 − 1/G, which a learning rate makes up for.",
};

const setup = () => ({ p: [param("pa", 0.5), param("pb", 0.3), param("pc", 0.2)].join(","), r: [param("ra", 0), param("rb", 0.2), param("rc", 1)].join(",") });

export function Ancestors() {
  const chosen = param("ancestor", "grpo") in FORMULAS ? param("ancestor", "grpo") : "grpo";
  const state = useAnswer("advantage", "ancestors", { ...setup(), g: param("ag", 4), critic: param("critic", 0) });
  return html`<${Play} label="Ancestors of GRPO">
    <${Fetched} state=${state} height="34rem">${(data) => {
      const rows = Object.entries(data.ancestors);
      const about = data.ancestors[chosen];
      return html`<ol class="lineage" aria-label="Algorithms by year">${rows.map(([key, each]) => html`<li><button type="button" aria-pressed=${key === chosen} onClick=${() => setQuery({ ancestor: key === "grpo" ? undefined : key })}><span class="tiny soft">${each.year}</span>${each.name}</button></li>`)}</ol>
        <div class="ancestor"><h3>${about.name}: ${about.baseline === "none" ? "no baseline" : about.baseline}</h3><${Equation} tex=${FORMULAS[chosen][0]} spoken=${FORMULAS[chosen][1]} /><p>${WORDS[chosen]}</p>
          ${chosen === "trpo" && html`<p class="small">From here its step goes to probabilities ${data.trpo.probabilities.map((p) => percent(p, 1)).join(", ")}: a KL divergence of ${number(data.trpo.kl, 5)}, where ${number(data.trpo.max_kl, 2)} is allowed.</p>`}
          <p class="tiny faint">${about.paper}</p></div>
        <${Numbers} items=${[["length, of the true gradient", percent(about.length, 1), null, "length"], ["cosine with it", number(about.cosine, 4), null, "cosine"], ["bias", Math.abs(about.bias) < 1e-9 ? "0" : number(about.bias, 4), null, "bias"], ["variance", number(about.variance, 4), null, "variance"]]} />
        <div class="knobs"><${Slider} name="ag" label="group size G" min=${2} max=${8} step=${1} value=${4} /><${Slider} name="critic" label="the critic's error" min=${-1} max=${1} step=${0.05} value=${0} show=${(value) => number(value, 2)} /></div>
        <${Figure} label="Direction error and noise of each algorithm's estimate" height=${230} deps=${[JSON.stringify(rows.map(([, each]) => [each.angle, each.noise])), chosen]}
          build=${(Plot) => ({ marginLeft: 50, x: { label: "noise: std of the estimate, in units of its own length →", grid: true, zero: true, nice: true }, y: { label: "↑ degrees off the true direction", grid: true, domain: [0, Math.max(12, ...rows.map(([, each]) => each.angle * 1.15))] }, marks: [Plot.dot(rows, { x: ([, each]) => each.noise, y: ([, each]) => each.angle, r: 6, fill: ([key]) => (key === chosen ? "var(--accent)" : "var(--ink-faint)") }), ...spread(rows).map((place, at, all) => Plot.text([place], { x: "x", y: "y", text: "name", dy: -13 * (1 + all.slice(0, at).filter((other) => Math.abs(other.y - place.y) < 3).length), textAnchor: at === all.length - 1 ? "end" : "middle", fill: "var(--ink)" }))] })}
          table=${{ columns: ["algorithm", "length", "cosine", "degrees off", "bias", "variance", "noise"], rows: rows.map(([, each]) => [each.name, each.length, each.cosine, each.angle, each.bias, each.variance, each.noise]) }} />
        <p class="small soft">All ${data.groups.toLocaleString("en-US")} groups of ${data.group_size} answers gone through, each weighed by its chance. The true gradient is (${data.true_gradient.map((value) => number(value, 3)).join(", ")}).</p>`;
    }}<//>
    <details class="small"><summary>The three answers: probabilities and rewards</summary><div class="knobs"><${Slider} name="pa" label="weight of answer 1" min=${0.05} max=${1} step=${0.05} value=${0.5} show=${two} /><${Slider} name="pb" label="weight of answer 2" min=${0.05} max=${1} step=${0.05} value=${0.3} show=${two} /><${Slider} name="pc" label="weight of answer 3" min=${0.05} max=${1} step=${0.05} value=${0.2} show=${two} /><${Slider} name="ra" label="reward of answer 1" min=${0} max=${1} step=${0.1} value=${0} show=${two} /><${Slider} name="rb" label="reward of answer 2" min=${0} max=${1} step=${0.1} value=${0.2} show=${two} /><${Slider} name="rc" label="reward of answer 3" min=${0} max=${1} step=${0.1} value=${1} show=${two} /></div></details>
  <//>
  <${Only} depth="code"><${Code} slug="advantage" source="moments" /><${Code} slug="advantage" source="true_gradient" /><//>`;
}

const two = (value) => number(value, 2);

// Algorithms at one place share one label; from left to right, for labels of neighbours stand at different heights.
function spread(rows) {
  const places = new Map();
  for (const [, each] of rows) {
    const key = `${each.noise.toFixed(2)} ${each.angle.toFixed(0)}`;
    places.set(key, { x: each.noise, y: each.angle, name: [places.get(key)?.name, each.name].filter(Boolean).join(", ") });
  }
  return [...places.values()].sort((a, b) => a.x - b.x);
}

export function GroupSizes() {
  const state = useAnswer("advantage", "sizes", setup());
  return html`<${Misconception} name="unbiased" claim="Normalising within the group is an unbiased estimator of the advantage.">
    <${Fetched} state=${state} height="16rem">${(rows) => html`<p>Every group of every size, exactly, for the three answers above:</p>
      <${Table} label="Length and direction of group estimates" head=${["G", "mean only: length", "1 − 1/G", "leave-one-out: length", "with std: length", "with std: cosine"]} rows=${rows.map((row) => [row.group_size, percent(row.dr_grpo.length, 1), percent(row.expected, 1), percent(row.rloo.length, 1), percent(row.grpo.length, 1), html`<b data-number=${`cosine-${row.group_size}`}>${number(row.grpo.cosine, 3)}</b>`])} />
      <p>Subtracting the group's mean gives (1 − 1/G) of the true gradient: biased, by a factor that a learning rate takes care of. Leaving each answer out of its own mean gives all of it. Dividing by the std points elsewhere: towards groups with little spread. As G grows that fades; at G = 2 it is plain.</p>
      <p class="small soft">That need not hurt. It is a choice of weights over prompts, not an error. But it is no unbiased estimate. <${Reported} source="DeepSeekMath 2024, arXiv:2402.03300">The paper itself claims no unbiasedness of the advantage; its word “unbiased” is about the KL estimate.<//></p>`}<//><//>
    <${Only} depth="math"><${Equation} tex=${"\\mathbb E\\Big[\\tfrac1G\\textstyle\\sum_i(r_i-\\bar r)\\nabla\\log\\pi(a_i)\\Big]=\\Big(1-\\tfrac1G\\Big)\\nabla\\,\\mathbb E[r]"} spoken="The expectation of the group's centred estimate equals one minus one over G times the true gradient" /><p class="small soft">Of the mean, the part that is not the answer itself, (G − 1)/G of it, is independent of it and drops out as any baseline does. The rest, <i>r<sub>i</sub></i>/G, is taken off the answer's own reward.</p><//>
    <${Only} depth="code"><${Code} slug="advantage" source="expected_estimate" /><//>`;
}

export function BaselineSlider() {
  const b = param("b", 0.5);
  const state = useAnswer("advantage", "baseline", { ...setup(), b });
  return html`<${Play} label="Any baseline"><${Slider} name="b" label="baseline b" min=${-1} max=${2} step=${0.05} value=${0.5} show=${two} />
    <${Fetched} state=${state} height="14rem">${(data) => html`<${Numbers} items=${[["Σ p ∇log p · b", `(${data.term.map((value) => number(Math.abs(value) < 1e-12 ? 0 : value, 2)).join(", ")})`], ["mean of (r − b) ∇log p", `(${data.mean.map((value) => number(value, 3)).join(", ")})`], ["variance", data.variance, null, "baseline-variance"]]} />
      <${Figure} label="Variance of the estimate by baseline" height=${170} deps=${[b, JSON.stringify(data.variances[0])]} build=${(Plot) => ({ x: { label: "baseline b" }, y: { label: "variance", grid: true, zero: true }, marks: [Plot.lineY(data.variances, { x: "b", y: "variance", stroke: "var(--c1)", strokeWidth: 2 }), Plot.ruleX([data.value], { stroke: "var(--c3)", strokeDasharray: "3 3" }), Plot.dot([{ b: data.b, variance: data.variance }], { x: "b", y: "variance", r: 5, fill: "var(--accent)" })] })} legend=${[["variance", "var(--c1)"], ["the expected reward", "var(--c3)"]]} table=${{ columns: ["b", "variance"], rows: data.variances.map((row) => [row.b, row.variance]) }} />
      <p class="small soft">The mean never moves. The variance has its foot near the expected reward, ${number(data.value, 2)}: that is what a critic, or a group's mean, is for.</p>`}<//><//>`;
}
