// Comparisons: every number in them is computed; and when to use what.
import { html } from "htm/preact";
import { exact, number, percent } from "../format.js";
import { Code, Equation, Fetched, Only, param, Play, Section, Slider, Table, useAnswer, useDepth } from "../lesson.js";
import { Link } from "../route.js";
import { gib, tera, together } from "./costs-memory.js";

export function Comparison() {
  const memory = useAnswer("costs", "memory", { size: 7, judge: "model" });
  const rule = useAnswer("costs", "memory", { size: 7 });
  const compute = useAnswer("costs", "compute", { size: 7 });
  return html`<${Section} title="PPO and GRPO side by side" id="comparison" depth="intuition math">
    <${Fetched} state=${together(memory, rule, compute)} height="24rem">${([judged, ruled, operations]) => {
      const [grpo, ppo] = ruled.rows;
      const count = (row) => row.models.filter((model) => model.there).length;
      return html`<${Table} label="PPO and GRPO, row by row" head=${["", "PPO", "GRPO"]} rows=${[
        ["models in memory", `${count(judged.rows[1])} with a reward model: policy, reference, critic, reward`, `${count(grpo)} with a rule as reward: policy and reference; 1 where β = 0`],
        ["models that learn", "2: policy and critic", "1: the policy"],
        ["critic", "needed, usually of the policy's size", "none"],
        ["advantage", "of each token, by GAE over the critic's guesses", "of each answer, by its group's mean and deviation"],
        ["answers per prompt", "1, usually", "G: 8 to 64"],
        ["memory at the peak, 7B in bfloat16", html`<span class="num" data-number="table-ppo">${gib(ppo.total)}</span>`, html`<span class="num" data-number="table-grpo">${gib(grpo.total)}</span> <span class="soft">${percent(ruled.saved)} less</span>`],
        ["operations of a step, 16 × 8 answers", `${tera(operations.rows[2].all)} · 10¹²`, `${tera(operations.rows[0].all)} · 10¹²`],
        ["settings of its own", "γ, λ, the critic's learning rate, clip and warm-up, ε, β", "G, ε, β"],
        ["suits", "rewards from a model of preferences; credit within an answer", "answers that a program can check"],
      ]} foot="Memory and operations by the planner, with a rule as reward." />`;
    }}<//>
    <h3>What state, reward and baseline are</h3>
    <${Table} label="State, reward and baseline" head=${["", "PPO", "GRPO"]} rows=${[
      ["state", "the text so far: a new one after every token", "the prompt"],
      ["reward", "at the last token; a KL price at each", "one for the answer, or one for each step where a task marks them"],
      ["baseline", "learned; lags behind the policy, differs from token to token", "the group's mean: fresh, the same for all tokens, and with the answer itself in it"],
    ]} foot="The mean is sometimes called exact. It is an estimate from G answers, and since it contains the answer it judges, the gradient comes out smaller by 1 − 1/G: chapter 3 computes it." />
  <//>`;
}

export function Steps() {
  const depth = useDepth();
  const steps = [
    ["Write one answer to each prompt", "grpo.rollout.builtin:Engine.sample", "the same, but G answers"],
    ["Mark it", "grpo.rewards:Scorer.score", "the same"],
    ["Ask the critic what it expected before every token", "grpo.model.critic:Critic.values", "not there"],
    ["Turn surprises into advantages by GAE, with γ and λ", "grpo.core.gae:gae", "grpo.core.advantage:group_advantages", "compare with the group instead"],
    ["Update the policy with the clipped loss, and the critic with its own", "grpo.training.gradient:accumulate_gradients", "the policy alone"],
  ];
  return html`<${Section} title="PPO in five steps" id="ppo-steps" depth="intuition code" lead="And which of them GRPO drops. Both are presets of one engine, so the right column is literally the difference.">
    <${Table} label="PPO step by step" head=${["step", ...(depth === "code" ? ["in PPO, by"] : []), "in GRPO"]} rows=${steps.map(([step, by, grpo, words], place) => [`${place + 1}. ${step}`, ...(depth === "code" ? [html`<code>${by}</code>`] : []), depth === "code" && grpo.startsWith("grpo.") ? html`<code>${grpo}</code>` : (words ?? grpo)])} foot="Step 3 is the costly one: a second network reads every answer, and is trained on every answer." />
  <//>`;
}

export function Methods() {
  const params = { size: param("size", 7), g: param("mg", 8), lift: param("lift", 0) };
  const state = useAnswer("costs", "methods", params);
  return html`<${Section} title="PPO, GRPO, REINFORCE, DPO" id="methods" depth="math code" lead="Memory and operations by the planner for 16 × G answers; noise measured over four thousand groups on a policy over twelve answers.">
    <${Play} label="Methods"><div class="knobs"><${Slider} name="mg" label="group size" min=${2} max=${64} step=${1} value=${8} /><${Slider} name="lift" label="added to every reward" min=${0} max=${10} step=${0.5} value=${0} /></div>
      <${Fetched} state=${state} height="26rem">${(data) => html`<${Table} label="Methods compared" head=${["method", "critic", "reference", "memory", "10¹² operations", "samples while training"]} rows=${data.rows.map((row) => [row.method, row.critic ? "needed" : "none", row.reference ? "yes" : "no", gib(row.peak), tera(row.flops), row.samples ? "yes" : "no: it reads pairs"])} />
        <${Table} label="Noise of one group's gradient" head=${["estimate of the gradient", "length of its mean, in true gradients", "noise beside that mean"]} rows=${data.estimators.map((row) => [row.name, row.along, html`<span class="num" data-noise=${row.name.split(",")[0]}>${number(row.noise, 3)}</span>`])} foot="Noise: root mean square of what is not the mean, over the mean's length. Without a baseline, a constant added to every reward drowns the signal; with one it changes nothing. GRPO's mean is longer because it is divided by the deviation, which is another direction as well: chapter 3." />`}<//>
    <//>
    <p>“Stable” and “simple” are often given as columns of such a table. Stability depends on more than the estimator: <${Link} to="/learn/train">chapter 7<//> trains PPO and GRPO beside each other, several seeds each. In settings of one's own GRPO has three (G, ε, β), PPO two of those and five more.</p>
    <${Only} depth="code"><${Code} slug="costs" source="group_estimates" /><//>
  <//>
  <${OneStep} />`;
}

function OneStep() {
  const state = useAnswer("costs", "one-step", { max_kl: param("max_kl", 0.05), beta: param("dpo_beta", 0.5) });
  const names = { start: "before", trpo: "one step of TRPO", gradient: "one step of plain gradient, rate 1", dpo: "where DPO ends" };
  return html`<${Section} title="One step, three ways" id="one-step" depth="math code" lead="TRPO takes the longest step that a KL distance allows, with second derivatives; PPO and GRPO clip instead and use first derivatives only; DPO goes where preferences between pairs lead.">
    <${Table} label="TRPO, PPO and GRPO" head=${["", "TRPO", "PPO", "GRPO"]} rows=${[["what holds the step", "a hard limit on KL(old ‖ new)", "a clip", "a clip, and a KL price"], ["derivatives", "second, by conjugate gradients", "first, with Adam", "first, with Adam"], ["critic", "yes", "yes", "no"], ["known for", "a bound on how much worse it can get", "working nearly everywhere", "reasoning and fine-tuning of language models"]]} />
    <${Play} label="One step"><div class="knobs"><${Slider} name="max_kl" label="TRPO's limit on the KL" min=${0.005} max=${0.5} step=${0.005} value=${0.05} /><${Slider} name="dpo_beta" label="DPO's β" min=${0.1} max=${3} step=${0.1} value=${0.5} show=${(v) => number(v, 1)} /></div>
      <${Fetched} state=${state} height="14rem">${(data) => html`<${Table} label="After one step" head=${["", "expected reward", "KL(before ‖ after)"]} rows=${Object.entries(data.rows).map(([key, row]) => [names[key], html`<span class="num" data-step=${key}>${exact(row.reward, 4)}</span>`, exact(row.kl, 3)])} foot=${`Twelve answers, one right, all expectations exact. DPO's loss has no slope left there (${exact(data.dpo_slope, 1)}): its optimum is the reference times e to the reward over β.`} />`}<//>
    <//>
    <${Equation} tex="\\text{TRPO:}\\ \\max_\\theta\\mathbb E[\\rho A]\\ \\text{with}\\ \\text{KL}(\\pi_{\\text{old}}\\|\\pi_\\theta)\\le\\delta\\qquad\\text{DPO:}\\ \\pi^*\\propto\\pi_{\\text{ref}}\\,e^{r/\\beta}" spoken="TRPO maximises the expected ratio times advantage while the KL from old to new is at most delta; DPO's optimum is proportional to the reference times e to the reward over beta" />
    <${Only} depth="code"><${Code} slug="costs" source="trpo_step" /><${Code} slug="costs" source="dpo_loss" /><//>
  <//>`;
}

export function When() {
  return html`<${Section} title="When to use it, and when not" id="when" depth="intuition">
    <div class="when"><div><h3>GRPO fits when</h3><ul><li><b>answers can be checked</b>: by a test, a rule, a gold answer</li><li><b>the same prompt can be asked again</b>: trivial for text, not for a robot</li><li><b>a second model of this size is too dear</b></li><li><b>rewards are sparse</b>: among G answers one may be right, and one is enough to learn from</li><li><b>the model is already right now and then</b>: see the question on starting from nothing below</li></ul></div>
      <div><h3>Something else fits when</h3><ul><li><b>there is no reward yet</b>: pretraining and imitation come first</li><li><b>every step has a reward of its own</b>: a critic, or process rewards (<${Link} to="/learn/credit">chapter 5<//>)</li><li><b>only preferences between pairs are to be had</b>: DPO, or a reward model first</li><li><b>the model must learn from each event as it comes</b>: this works in batches</li><li><b>all answers to a prompt come out alike</b>: nothing to compare</li></ul></div></div>
    <p class="small soft">Two things one reads elsewhere do not hold. Short answers are no obstacle: a group's statistics are over answers, not tokens, and the models of this lab write at most about thirty. And “less sensitive to settings” is not something we found measured; chapter 7 lets you try.</p>
    <h3>PPO rather than GRPO?</h3><p>Where credit within long answers matters and memory is there, a critic tells tokens apart. Where sampling is the dear part, one answer per prompt goes further. Otherwise the group is simpler, and there is no second network that has to learn first.</p>
  <//>`;
}

export function Verifiable() {
  return html`<${Section} title="Can it be checked?" id="verifiable" depth="intuition" lead="The line between easy and hard rewards, and what the engine offers on either side.">
    <${Table} label="Verifiability" head=${["task", "how it is checked", "in the engine"]} rows=${[
      ["mathematics", "compare with the known answer", html`<code>grpo.tasks.checkers.answers</code>`],
      ["programs", "run the tests, in a sandbox", html`<code>grpo.tasks.checkers.sandbox</code>`],
      ["facts", "look them up; wording has to be met", html`<code>grpo.tasks.checkers.answers</code>`],
      ["games and puzzles", "apply the rules", html`<code>grpo.tasks.countdown</code>`],
      ["a required form", "parse it", html`<code>grpo.rewards.format</code>`],
      ["creative writing", "taste: people, or a model of them", html`<code>--reward model:…</code>`],
      ["open conversation", "preferences between answers", html`<code>--reward model:…</code>`],
      ["style and tone", "personal; a judge with a rubric at best", html`<code>--reward</code> with a function of one's own`],
    ]} foot="The first five are marked by a program, the last three by a model that can be wrong: the question on open-ended tasks below computes what that does." />
  <//>`;
}

export function Limits() {
  return html`<${Section} title="Where it ends, and what was built on" id="limits" depth="intuition math">
    <${Table} label="Limitations and extensions" head=${["limitation", "what it looks like", "what extends it"]} rows=${[
      ["needs many answers per prompt", "sampling grows with G; memory does not fall as far as one hopes", "RLOO and REINFORCE++ make more of few; shared prompts in the cache make a group cheap"],
      ["one advantage for a whole answer", "filler earns as much as the deciding step", "process rewards: an advantage per step, the same engine with loss.credit process"],
      ["groups without spread", "too easy or too hard: no gradient", "DAPO draws such groups again; curricula"],
      ["length and deviation tilt the push", "long wrong answers are punished less per token; rare successes weigh more", "Dr. GRPO, and the token mean of DAPO"],
      ["hard clip", "tokens beyond it learn nothing in that batch", "CISPO, SAPO; GSPO clips whole answers"],
      ["needs weights to train at all", "no access, or no budget", "Training-Free GRPO keeps what a group taught as text in the prompt (reported: arXiv 2510.08191)"],
      ["little theory", "a heuristic clip, a biased scale", "analyses of the estimator: chapter 3 runs the exact ones"],
    ]} />
  <//>`;
}

export function Checklist() {
  const rows = [
    ["Does the summary say “no critic, compare within a group”?", "first section of this chapter, and chapters 1 to 3"],
    ["Are prerequisites named and linked?", html`<${Link} to="/learn/notation">Notation and prerequisites<//>`],
    ["Is the comparison of PPO and GRPO right?", "“PPO and GRPO side by side”: numbers by the planner, checked against a GPU above"],
    ["Are there layers for intuition, mathematics and code?", "the switch at the top of every chapter"],
    ["Are demonstrations about groups, and alive?", "everything in a frame is computed by the engine when you touch it"],
    ["Do chapters link both ways?", "“See also” at the end of each"],
    ["Is notation the same throughout?", "one page of symbols, with the name each has in the code"],
    ["Is there pseudocode and code that runs?", "chapter 1 has the loop in ten lines; chapter 4 has the loss in fifty and checks it against the trainer"],
    ["Do questions go to the idea of the group?", "the questions above, each answered by a computation"],
  ];
  return html`<${Section} title="A checklist for explanations like this one" id="checklist" depth="code" lead="What a careful reader should demand, and where this lab meets it."><${Table} label="Checklist" head=${["demand", "where"]} rows=${rows} /><//>`;
}
