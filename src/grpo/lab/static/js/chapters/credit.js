// Chapter 5: credit and rewards.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Misconception, Numbers, Only, param, Section, Table, useAnswer, useStyle } from "../lesson.js";
import { number, signed } from "../format.js";
import { Link } from "../route.js";
import { CriticLearns } from "./credit-critic.js";
import { Api, Blind, Gaming } from "./credit-gaming.js";
import { Steps } from "./credit-steps.js";
import { SameForAll, WhichToken } from "./credit-tokens.js";

export function Chapter() {
  useStyle("css/chapter-why.css", "css/chapter-credit.css");
  return html`<${WhichToken} />
    <${CriticLearns} />
    <${Section} depth="math" id="gae" title="Generalized advantage estimation"><${Gae} /><//>
    <${Section} depth="math code" id="presets" title="Without a critic, all tokens get the same credit"
      lead="Dr. GRPO is sometimes said to fix this. Here is every preset on the same eight answers:">
      <${SameForAll} />
      <p>Dr. GRPO omits the division by standard deviation and length. That removes a preference for short right and long wrong answers, but all tokens of an
        answer still get the same advantage. Only a critic or process rewards distinguish tokens.</p>
      <${Only} depth="math">
        <p>Then “per sequence” and “per token” mean the same: with one <i>A</i> for all tokens, the sum over tokens is the log-probability of the whole
          answer.</p>
        <${Equation} tex="-\\sum_{t}A\\,\\log\\pi_\\theta(o_t\\mid q,o_{<t})=-A\\,\\log\\pi_\\theta(o\\mid q)"
          spoken="Minus the sum over tokens of A times log-probability equals minus A times the log-probability of the whole answer." />
      <//>
    <//>
    <${Steps} />
    <${Blind} />
    <${Gaming} />
    <${Section} depth="code" id="rewards" title="Your own reward functions"><${Api} /><//>
    <${Section} depth="code" title="From rewards to tokens"
      lead="One function of the trainer computes all of the above: credit per completion, per step, or from a critic's values.">
      <${Code} slug="credit" source="credit" open title="Credit" /><//>
    <${Section} depth="math code" title="One advantage for the whole answer?">
      <${Misconception} name="m-token" claim="In GRPO all tokens of a completion always share one advantage."><${PerStep} /><//><//>`;
}

function Gae() {
  const state = useAnswer("credit", "tokens", { prompt: param("prompt", "37+85+46="), seed: param("seed", 1), gamma: 1, lam: 1, sample: param("sample", "") });
  return html`<p>Before every token PPO's critic predicts the expected final reward, <i>V</i>. The TD error of one token is <i>δ</i>. GAE sums the TD errors of
    this token and all later ones, discounted by γλ:</p>
    <${Equation} tex="\\delta_t=r_t+\\gamma V_{t+1}-V_t,\\qquad A_t=\\sum_{l\\ge0}(\\gamma\\lambda)^l\\,\\delta_{t+l},\\qquad R_t=A_t+V_t"
      spoken=${"The TD error is the reward plus the discounted next value minus this value. The advantage sums later TD errors with weights gamma lambda to " +
        "the l. The return is advantage plus value."} />
    <p>With <i>λ</i> = 0 only the next value counts: low variance, but the critic's full bias. With <i>λ</i> = 1 and <i>γ</i> = 1 the intermediate values
      cancel, which leaves the reward minus the value:</p>
    <${Equation} tex="\\lambda=1,\\;\\gamma=1:\\qquad A_t=r(q,o)-V_t"
      spoken="With lambda and gamma one, the advantage is the reward of the whole answer minus the value before the token." />
    <${Fetched} state=${state} height="6rem">
      ${(found) => html`<${Numbers}
        items=${[
          ["reward", number(found.reward)],
          ["V before the first token", number(found.tokens[0].value, 3), "from the critic"],
          ["A of the first token", number(found.tokens[0].gae, 3), "from the gae function, λ = 1", "gae-one"],
          ["r − V", number(found.reward - found.tokens[0].value, 3), "the same number"],
        ]} />`}
    <//>
    <p>Replace <i>V<sub>t</sub></i> by the group's mean for every <i>t</i>, and divide by the standard deviation: that is GRPO. It equals PPO with a critic that
      sees only the prompt. A single reward at the last token is the hardest case for a critic, which must propagate it back over all earlier tokens.</p>
    <p class="small soft">Use <code>--algorithm ppo</code>; its defaults are γ = 1 and λ =
      0.95. <${Link} to="/learn/costs">What the critic costs<//> · <${Link} to="/learn/train">PPO and GRPO compared<//></p>`;
}

function PerStep() {
  const state = useAnswer("credit", "steps");
  return html`<p>With outcome rewards, yes. With <code>--loss.credit process</code> the same algorithm gives tokens of one answer different advantages:</p>
    <${Fetched} state=${state} height="8rem">${(found) => {
      const done = found.completions.find((one) => one.steps.length > 1);
      return html`<${Table} label="Advantages of the tokens of one answer" head=${["token", ...done.tokens]}
        rows=${[["outcome", ...done.tokens.map(() => signed(done.outcome))], ["process", ...done.process.map((value) => signed(value))]]} />`;
    }}<//>`;
}
