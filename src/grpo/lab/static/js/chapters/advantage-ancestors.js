// From REINFORCE to GRPO: the baseline of each algorithm, its bias and its variance.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Reported, Slider, Table, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { setQuery } from "../route.js";

const FORMULAS = {
  reinforce: ["A_i=r_i", "A i equals r i"],
  actor_critic: ["A_i=r_i-V_\\phi", "A i equals r i minus the critic's value"],
  trpo: [
    "A_i=r_i-V_\\phi,\\quad \\mathrm{KL}(\\pi_{\\text{old}}\\Vert\\pi)\\le\\delta",
    "A i equals r i minus the critic's value, with the KL divergence of the step bounded by delta",
  ],
  ppo: ["A_i=r_i-V_\\phi,\\quad \\rho\\text{ clipped to }1\\pm\\varepsilon", "A i equals r i minus the critic's value, with the ratio clipped"],
  rloo: ["A_i=r_i-\\tfrac1{G-1}\\textstyle\\sum_{j\\ne i}r_j", "A i equals r i minus the mean of the others"],
  grpo: ["A_i=\\dfrac{r_i-\\bar r}{\\sigma}", "A i equals r i minus the group's mean, divided by its standard deviation"],
  dr_grpo: ["A_i=r_i-\\bar r", "A i equals r i minus the group's mean"],
};
const WORDS = {
  reinforce:
    "Every answer is pushed up in proportion to its reward. With rewards from 0 to 1 no answer is pushed down, so the estimate is right on average but noisy.",
  actor_critic:
    "A second network (the critic) predicts the value of the prompt. Its error does not change the expected direction, but it increases the variance. Move " +
      "its error below.",
  trpo: "The same advantages. New is the step size: the KL divergence of an update is bounded by δ.",
  ppo: "The same advantages. A clip on the ratio replaces TRPO's bound, so any optimizer can be used.",
  rloo: "No second network: the mean of the other answers estimates the value of the prompt. Unbiased, because an answer is not part of its own baseline.",
  grpo:
    "The mean of the whole group, including the answer, and division by the group's standard deviation. The mean scales the gradient by 1 − 1/G. Dividing " +
      "by the standard deviation changes its direction, because groups with a small spread count as much as groups with a large one.",
  dr_grpo: "The group's mean without the std: the right direction, scaled by 1 − 1/G. The learning rate can compensate for that factor.",
};

const setup = () => ({ p: [param("pa", 0.5), param("pb", 0.3), param("pc", 0.2)].join(","), r: [param("ra", 0), param("rb", 0.2), param("rc", 1)].join(",") });

export function Ancestors() {
  const chosen = param("ancestor", "grpo") in FORMULAS ? param("ancestor", "grpo") : "grpo";
  const state = useAnswer("advantage", "ancestors", { ...setup(), g: param("ag", 4), critic: param("critic", 0) });
  return html`<${Play} label="Ancestors of GRPO">
    <${Fetched} state=${state} height="34rem">${(data) => {
      const rows = Object.entries(data.ancestors);
      const about = data.ancestors[chosen];
      return html`<ol class="lineage" aria-label="Algorithms by year">
        ${rows.map(([key, each]) => html`<li>
          <button type="button" aria-pressed=${key === chosen} onClick=${() => setQuery({ ancestor: key === "grpo" ? undefined : key })}>
            <span class="tiny soft">${each.year}</span>${each.name}</button>
        </li>`)}
        </ol>
        <div class="ancestor"><h3>${about.name}: ${about.baseline === "none" ? "no baseline" : about.baseline}</h3>
          <${Equation} tex=${FORMULAS[chosen][0]} spoken=${FORMULAS[chosen][1]} /><p>${WORDS[chosen]}</p>
          ${chosen === "trpo" && html`<p class="small">One step changes the probabilities to ${data.trpo.probabilities.map((p) => percent(p, 1)).join(", ")}: a
            KL divergence of ${number(data.trpo.kl, 5)}, with a bound of ${number(data.trpo.max_kl, 2)}.</p>`}
          <p class="tiny faint">${about.paper}</p></div>
        <${Numbers}
          items=${[
            ["length, as a share of the true gradient's", percent(about.length, 1), null, "length"],
            ["cosine with the true gradient", number(about.cosine, 4), null, "cosine"],
            ["bias", Math.abs(about.bias) < 1e-9 ? "0" : number(about.bias, 4), null, "bias"],
            ["variance", number(about.variance, 4), null, "variance"],
          ]} />
        <div class="knobs"><${Slider} name="ag" label="group size G" min=${2} max=${8} step=${1} value=${4} />
          <${Slider} name="critic" label="the critic's error" min=${-1} max=${1} step=${0.05} value=${0} show=${(value) => number(value, 2)} /></div>
        <${Figure} label="Direction error and noise of each algorithm's estimate" height=${230}
          deps=${[JSON.stringify(rows.map(([, each]) => [each.angle, each.noise])), chosen]}
          build=${(Plot) => ({
            marginLeft: 50,
            x: { label: "noise: std of the estimate ÷ its length →", grid: true, zero: true, nice: true },
            y: { label: "↑ degrees off the true direction", grid: true, domain: [0, Math.max(12, ...rows.map(([, each]) => each.angle * 1.15))] },
            marks: [
              Plot.dot(rows, {
                x: ([, each]) => each.noise,
                y: ([, each]) => each.angle,
                r: 6,
                fill: ([key]) => (key === chosen ? "var(--accent)" : "var(--ink-faint)"),
              }),
              ...spread(rows).map((place, at, all) => Plot.text([place], {
                x: "x",
                y: "y",
                text: "name",
                dy: -13 * (1 + all.slice(0, at).filter((other) => Math.abs(other.y - place.y) < 3).length),
                textAnchor: at === all.length - 1 ? "end" : "middle",
                fill: "var(--ink)",
              })),
            ],
          })}
          table=${{
            columns: ["algorithm", "length", "cosine", "degrees off", "bias", "variance", "noise"],
            rows: rows.map(([, each]) => [each.name, each.length, each.cosine, each.angle, each.bias, each.variance, each.noise]),
          }} />
        <p class="small soft">Computed over all ${data.groups.toLocaleString("en-US")} groups of ${data.group_size} answers, each weighted by its probability.
          The true gradient is (${data.true_gradient.map((value) => number(value, 3)).join(", ")}).</p>`;
    }}<//>
    <details class="small"><summary>The three answers: probabilities and rewards</summary>
      <div class="knobs"><${Slider} name="pa" label="weight of answer 1" min=${0.05} max=${1} step=${0.05} value=${0.5} show=${two} />
        <${Slider} name="pb" label="weight of answer 2" min=${0.05} max=${1} step=${0.05} value=${0.3} show=${two} />
        <${Slider} name="pc" label="weight of answer 3" min=${0.05} max=${1} step=${0.05} value=${0.2} show=${two} />
        <${Slider} name="ra" label="reward of answer 1" min=${0} max=${1} step=${0.1} value=${0} show=${two} />
        <${Slider} name="rb" label="reward of answer 2" min=${0} max=${1} step=${0.1} value=${0.2} show=${two} />
        <${Slider} name="rc" label="reward of answer 3" min=${0} max=${1} step=${0.1} value=${1} show=${two} /></div>
    </details>
  <//>
  <${Only} depth="code"><${Code} slug="advantage" source="moments" /><${Code} slug="advantage" source="true_gradient" /><//>`;
}

const two = (value) => number(value, 2);

// Algorithms at the same point share a label; sorted from left to right so that neighbouring labels get different heights.
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
    <${Fetched} state=${state} height="16rem">${(rows) => html`<p>Exact values for the three answers above, over every possible group:</p>
      <${Table} label="Length and direction of group estimates"
        head=${["G", "mean only: length", "1 − 1/G", "leave-one-out: length", "with std: length", "with std: cosine"]}
        rows=${rows.map((row) => [
          row.group_size,
          percent(row.dr_grpo.length, 1),
          percent(row.expected, 1),
          percent(row.rloo.length, 1),
          percent(row.grpo.length, 1),
          html`<b data-number=${`cosine-${row.group_size}`}>${number(row.grpo.cosine, 3)}</b>`,
        ])} />
      <p>Subtracting the group's mean gives (1 − 1/G) of the true gradient: a bias that the learning rate can compensate. Leaving each answer out of its own
        mean gives the full gradient. Dividing by the std changes the direction, towards groups with a small spread. The change is largest at G = 2 and shrinks
        as G grows.</p>
      <p class="small soft">The bias is not an error: it weights prompts
        differently. <${Reported} source="DeepSeekMath 2024, arXiv:2402.03300">The paper does not call the advantage unbiased; it uses the word for the KL
          estimate.<//>
      </p>`}
    <//>
    <//>
    <${Only} depth="math">
      <${Equation} tex=${"\\mathbb E\\Big[\\tfrac1G\\textstyle\\sum_i(r_i-\\bar r)\\nabla\\log\\pi(a_i)\\Big]=\\Big(1-\\tfrac1G\\Big)\\nabla\\,\\mathbb E[r]"}
        spoken="The expectation of the group's centred estimate equals one minus one over G times the true gradient" />
      <p class="small soft">The other answers contribute (G − 1)/G of the mean. They are independent of the answer and drop out like any baseline. The
        remaining <i>r<sub>i</sub></i>/G is subtracted from the answer's own reward.</p>
    <//>
    <${Only} depth="code"><${Code} slug="advantage" source="expected_estimate" /><//>`;
}

export function BaselineSlider() {
  const b = param("b", 0.5);
  const state = useAnswer("advantage", "baseline", { ...setup(), b });
  return html`<${Play} label="Any baseline"><${Slider} name="b" label="baseline b" min=${-1} max=${2} step=${0.05} value=${0.5} show=${two} />
    <${Fetched} state=${state} height="14rem">
      ${(data) => html`<${Numbers}
        items=${[
          ["Σ p ∇log p · b", `(${data.term.map((value) => number(Math.abs(value) < 1e-12 ? 0 : value, 2)).join(", ")})`],
          ["mean of (r − b) ∇log p", `(${data.mean.map((value) => number(value, 3)).join(", ")})`],
          ["variance", data.variance, null, "baseline-variance"],
        ]} />
      <${Figure} label="Variance of the estimate by baseline" height=${170} deps=${[b, JSON.stringify(data.variances[0])]}
        build=${(Plot) => ({
          x: { label: "baseline b" },
          y: { label: "variance", grid: true, zero: true },
          marks: [
            Plot.lineY(data.variances, { x: "b", y: "variance", stroke: "var(--c1)", strokeWidth: 2 }),
            Plot.ruleX([data.value], { stroke: "var(--c3)", strokeDasharray: "3 3" }),
            Plot.dot([{ b: data.b, variance: data.variance }], { x: "b", y: "variance", r: 5, fill: "var(--accent)" }),
          ],
        })}
        legend=${[["variance", "var(--c1)"], ["the expected reward", "var(--c3)"]]}
        table=${{ columns: ["b", "variance"], rows: data.variances.map((row) => [row.b, row.variance]) }} />
      <p class="small soft">The mean does not depend on b. The variance is smallest near the expected reward, ${number(data.value, 2)}. A critic or a group's
        mean estimates that value.</p>`}
    <//>
    <//>`;
}
