// A critic must learn before its values are right; the group's mean is an average of rewards from the first step.
import { html } from "htm/preact";
import { among, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, useAnswer, Verdict } from "../lesson.js";
import { number, signed } from "../format.js";
import { Term } from "../glossary.js";

export function CriticLearns() {
  const state = useAnswer("credit", "bootstrapping", {});
  return html`<${Section} id="bootstrapping" title="A critic must learn first"
    lead=${html`A critic predicts the <${Term} of="value">expected reward<//>. It starts at 0 and learns partly from its own later predictions, which are wrong
      too: the bootstrapping problem. The group’s mean is made of real <${Term} of="reward">rewards<//>.`}>
    <${Play} label="A critic while it learns"><${Fetched} state=${state} height="26rem">${(found) => html`<${Learning} found=${found} />`}<//><//>
    <${Question} name="q-better" ask="After 40 steps of training, which is nearer to the truth?"
      options=${[["grpo", "The group’s mean"], ["ppo", "The critic"], ["same", "Both alike"]]}>
      ${(picked) => html`<${Fetched} state=${state} height="10rem">${(found) => html`<${Nearer} found=${found} picked=${picked} />`}<//>`}<//>
    <${Only} depth="math">
      <${Equation} tex="R_t=A_t+V_t=(1-\\lambda)\\sum_{l\\ge1}\\lambda^{l-1}V_{t+l}+\\dots"
        spoken="The target of the critic at a token is its advantage plus its value: for lambda below one it contains the critic's own later values." />
      <p>The critic’s target is <i>R<sub>t</sub></i>. With <i>λ</i> = 0 it is the next value: while all values are 0, the reward reaches one more token with
        each update. With <i>λ</i> = 1 it is the reward alone, without bootstrapping and with more noise. The group’s mean has no target to wait for. Its error
        is that of an average of G rewards.</p>
    <//>
    <${Only} depth="code"><${Code} slug="credit" source="bootstrapping" /><${Code} slug="credit" source="value_loss" title="The critic’s loss" /><//>
  <//>`;
}

function Learning({ found }) {
  const places = found.critic.map((_, place) => place);
  const now = among(found.critic, param("learned", 0), 0);
  const rows = found.tokens.map((label, place) => ({ place, label, true: found.true_values[place], critic: now.values[place] }));
  return html`<div class="knobs">
    <${Slider} name="learned" label="The critic has trained for" min=${0} max=${places.at(-1)} step=${1} value=${0}
      show=${(place) => `${among(found.critic, place, 0).steps} steps`} />
    </div>
    <p class="small soft">One right answer to <code>${found.prompt}</code>:</p>
    <${Figure} label="Expected reward before each token: the truth, the critic, the group's mean" height=${210} deps=${[now.steps]}
      legend=${[["truth", "var(--c4)"], ["critic", "var(--c2)"], ["group’s mean", "var(--c1)"]]}
      build=${(Plot) => ({
        x: { label: "token", ticks: rows.map((row) => row.place), tickFormat: (place) => rows[place]?.label ?? "" },
        y: { grid: true, label: "expected reward", domain: [-0.1, 1.15], ticks: [0, 0.2, 0.4, 0.6, 0.8, 1] },
        marks: [
          Plot.ruleY([0], { stroke: "var(--line-strong)" }),
          Plot.ruleY([found.group_mean], { stroke: "var(--c1)", strokeWidth: 2, strokeDasharray: "5 3" }),
          ...[["true", "var(--c4)"], ["critic", "var(--c2)"]].flatMap(([y, stroke]) => [
            Plot.lineY(rows, { x: "place", y, stroke, strokeWidth: 2 }),
            Plot.dot(rows, { x: "place", y, fill: stroke, r: 3 }),
          ]),
        ],
      })}
      table=${{ columns: ["token", "truth", "critic", "group's mean"], rows: rows.map((row) => [row.label, row.true, row.critic, found.group_mean]) }} />
    <${Numbers} items=${[
      ["critic’s error before the first token", number(now.distance, 2), `mean of ${found.problems} problems`, "critic-distance"],
      ["error of the group’s mean", number(found.group_distance, 2), "the same problems", "group-distance"],
      [html`critic’s advantage of the wrong <code>${found.wrong}</code>`, signed(now.wrong), "", "critic-wrong"],
      ["GRPO’s", signed(found.grpo.wrong), "", "grpo-wrong"],
    ]} />
    <p class="small soft">
      ${now.steps === 0
        ? html`An untrained critic expects nothing, so a wrong answer surprises it by nothing: advantage ${signed(now.wrong)}, no push.`
        : html`This critic has seen ${(now.steps * found.answers_per_step).toLocaleString("en")} answers.`}
    </p>`;
}

function Nearer({ found, picked }) {
  const after = found.critic.find((row) => row.steps === 40);
  const right = after.distance < 0.9 * found.group_distance ? "ppo" : after.distance > 1.1 * found.group_distance ? "grpo" : "same";
  return html`<${Verdict} picked=${picked} right=${right}>
    <${Table} label="Mean distance to the true value" head=${["steps of the critic", ...found.critic.map((row) => String(row.steps))]}
      rows=${[["critic", ...found.critic.map((row) => number(row.distance, 2))], ["group’s mean", ...found.critic.map(() => number(found.group_distance, 2))]]}
      foot=${`Before the first token of ${found.problems} problems; the truth is the share of right answers among ${found.restarts}.`} />
    <p>So GRPO is not better in all cases. Once trained, the critic averages over all problems it has seen; the group only over its eight answers. The critic
      costs a second network and time to learn, and it must follow the policy as that changes.</p>
    <//>`;
}
