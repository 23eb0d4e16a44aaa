// Chapter 5: credit and rewards.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Misconception, Numbers, Only, param, Question, Reported, Section, Table, Trial, useAnswer, useStyle, Verdict } from "../lesson.js";
import { number, percent, signed } from "../format.js";
import { Link } from "../route.js";
import { Api, Blind, Gaming, seedsOf } from "./credit-gaming.js";
import { Steps } from "./credit-steps.js";
import { SameForAll, WhichToken } from "./credit-tokens.js";

export function Chapter() {
  useStyle("/static/css/chapter-why.css");
  useStyle("/static/css/chapter-credit.css");
  return html`<${WhichToken} />
    <${Section} depth="math" id="gae" title="Generalized advantage estimation"><${Gae} /><//>
    <${Section} id="presets" title="Without a critic, tokens look alike" lead="It is sometimes said that Dr. GRPO mends this. Every preset of this program, on the same eight answers:">
      <${SameForAll} />
      <p>Dr. GRPO leaves out the division by deviation and length. That removes a preference for short right and long wrong answers; each token of an answer still gets what its neighbours get. Only a critic, or marks for steps, make a difference between tokens.</p>
      <${Only} depth="math"><p>Then “per sequence” and “per token” are the same thing said twice: with one <i>A</i> for all tokens the sum over tokens is the log-probability of the whole.</p><${Equation} tex="-\\sum_{t}A\\,\\log\\pi_\\theta(o_t\\mid q,o_{<t})=-A\\,\\log\\pi_\\theta(o\\mid q)" spoken="Minus the sum over tokens of A times log-probability equals minus A times the log-probability of the whole answer." /><//>
    <//>
    <${Steps} />
    <${Blind} />
    <${Gaming} />
    <${Section} depth="code" id="rewards" title="Rewards of your own"><${Api} /><//>
    <${Section} depth="code" title="From rewards to tokens" lead="All of the above in one function of the trainer: by completion, by step, or by a critic's values."><${Code} slug="credit" source="credit" open title="Credit" /><//>
    <${Section} id="questions" title="Predict, then run"><${Questions} /><//>
    <${Section} title="One number for the whole answer?"><${Misconception} name="m-token" claim="In GRPO the advantage belongs to the completion, always."><${PerStep} /><//><//>`;
}

function Gae() {
  const state = useAnswer("credit", "tokens", { prompt: param("prompt", "37+85+46="), seed: param("seed", 1), gamma: 1, lam: 1, sample: param("sample", "") });
  return html`<p>PPO's critic <i>V</i> says before every token what reward it still expects. One step's surprise is <i>δ</i>; GAE sums the surprises that follow, fading by γλ:</p>
    <${Equation} tex="\\delta_t=r_t+\\gamma V_{t+1}-V_t,\\qquad A_t=\\sum_{l\\ge0}(\\gamma\\lambda)^l\\,\\delta_{t+l},\\qquad R_t=A_t+V_t" spoken="The surprise is the reward plus the discounted next value less this value. The advantage sums later surprises with weights gamma lambda to the l. The return is advantage plus value." />
    <p>With <i>λ</i> = 0 only the next value counts: little noise, all of the critic's errors. With <i>λ</i> = 1 and <i>γ</i> = 1 the values between cancel and what is left is the reward itself less what was expected:</p>
    <${Equation} tex="\\lambda=1,\\;\\gamma=1:\\qquad A_t=r(q,o)-V_t" spoken="With lambda and gamma one, the advantage is the reward of the whole answer less the value before the token." />
    <${Fetched} state=${state} height="6rem">${(found) => html`<${Numbers} items=${[["reward", number(found.reward)], ["V before the first token", number(found.tokens[0].value, 3), "by the critic"], ["A of the first token", number(found.tokens[0].gae, 3), "by the function, λ = 1", "gae-one"], ["r − V", number(found.reward - found.tokens[0].value, 3), "the same"]]} />`}<//>
    <p>Put the group's mean in the place of <i>V<sub>t</sub></i>, for every <i>t</i>, and divide by the deviation: that is GRPO. It is what PPO would do with a critic that reads the prompt and nothing after it. A reward that comes with the last token is the hardest case for a critic: it has to carry that one number back over every token before it.</p>
    <p class="small soft">In this program: <code>--algorithm ppo</code>, with γ = 1 and λ = 0.95 unless set. <${Link} to="/learn/costs">What the critic costs<//> · <${Link} to="/learn/train">PPO and GRPO, trained beside each other<//></p>`;
}

function Questions() {
  return html`<${Question} name="q-imperfect" ask="A reward can be gamed. Is a stronger leash to the starting model, a larger β, enough to prevent it?" options=${[["yes", "Yes, with β large enough"], ["slows", "It slows it down"], ["no", "It makes no difference"]]}>${(picked) => html`<${Leash} picked=${picked} />`}<//>
    <${Question} name="q-light" ask="Could GRPO be joined with a small critic and marks for steps? One more output on the policy's own network, say. What does it gain here?" options=${[["more", "It learns faster"], ["same", "About the same"], ["less", "It learns slower"]]}>${(picked) => html`<${Light} picked=${picked} />`}<//>
    <${Question} name="q-better" ask="Is GRPO better than PPO in all cases? An answer has eleven tokens, and one of them decided. Who finds it?" options=${[["grpo", "GRPO"], ["ppo", "PPO's critic"], ["neither", "Neither"]]}>${(picked) => html`<${Better} picked=${picked} />`}<//>`;
}

function Leash({ picked }) {
  return html`<${Verdict} picked=${picked} right="slows"><${Trial} name="gamed" charts=${false}>${(outcome) => html`<${Table} label="Truly right, before and after, by seed" head=${["check", "truly right before", "after"]} rows=${outcome.arms.filter((arm) => arm.evals.length).map((arm) => [arm.label, ...seedsOf(arm, "right_share")])} /><p>The leash holds back good changes as well as bad ones, and where its pull and the reward balance, the model still earns by guessing. A reward that means what it says is worth more than any β.</p>`}<//><//>`;
}

function Light({ picked }) {
  return html`<${Trial} name="outcome-and-process" charts=${false}>${(outcome) => {
    const curve = outcome.arms.map((arm) => [arm.label, arm.accuracy?.after.mean ?? null, arm.accuracy?.after.std ?? null]);
    const [, steps, critic] = curve.map(([, mean]) => mean);
    const noise = Math.max(...curve.map(([, , std]) => std ?? 0));
    const right = critic - steps > noise ? "more" : steps - critic > noise ? "less" : "same";
    return html`<${Verdict} picked=${picked} right=${right}><p>${curve.map(([label, mean, std], place) => html`${place ? ", " : ""}${label}: <b>${percent(mean, 1)}</b>${std === null ? "" : ` ± ${percent(std, 1)}`}`)} of held-out problems right afterwards. A critic on the policy's own network costs next to nothing in memory and gives each token its own credit; it has to be learned first, and while it knows little its credit is noise. It pays where answers are long and go wrong in the middle.</p><//>`;
  }}<//>`;
}

const two = (value) => (Math.abs(value) < 0.005 ? "0.00" : signed(value));

function Better({ picked }) {
  const state = useAnswer("credit", "tokens", { prompt: "37+85+46=", seed: 1 });
  return html`<${Verdict} picked=${picked} right="ppo"><${Fetched} state=${state} height="8rem">${(found) => html`<${Table} label="Credit of each token" head=${["token", ...found.tokens.map((token) => token.text)]} rows=${[["GRPO", ...found.tokens.map((token) => two(token.grpo))], ["critic, GAE", ...found.tokens.map((token) => two(token.gae))], ["truth", ...found.tokens.map((token) => two(token.true_gain))]]} />`}<//>
    <p>A critic that has been trained well sees it. That takes a second network, and time to learn before it is any use; on short answers GRPO's many samples make up for it. <${Link} to="/learn/train">Trained beside each other, over several seeds<//>. <${Reported} source="DeepSeekMath, arXiv 2402.03300">GRPO was chosen there to save the critic's memory and computation<//>.</p><//>`;
}

function PerStep() {
  const state = useAnswer("credit", "steps");
  return html`<p>With outcome rewards, yes. With <code>--loss.credit process</code> the same algorithm gives tokens of one answer different advantages:</p>
    <${Fetched} state=${state} height="8rem">${(found) => {
      const done = found.completions.find((one) => one.steps.length > 1);
      return html`<${Table} label="Advantages of the tokens of one answer" head=${["token", ...done.tokens]} rows=${[["outcome", ...done.tokens.map(() => signed(done.outcome))], ["every step", ...done.process.map((value) => signed(value))]]} />`;
    }}<//>`;
}
