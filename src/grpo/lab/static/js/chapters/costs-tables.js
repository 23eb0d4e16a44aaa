// Comparisons with computed numbers, and when to use which method.
import { html } from "htm/preact";
import { exact, number, percent } from "../format.js";
import { Code, Equation, Fetched, Only, param, Play, Section, Slider, Table, useAnswer } from "../lesson.js";
import { Link } from "../route.js";
import { gib, tera, together } from "./costs-memory.js";

export function Comparison() {
  const memory = useAnswer("costs", "memory", { size: 7, judge: "model" });
  const rule = useAnswer("costs", "memory", { size: 7 });
  const compute = useAnswer("costs", "compute", { size: 7 });
  return html`<${Section} title="PPO and GRPO side by side" id="comparison" depth="math">
    <${Fetched} state=${together(memory, rule, compute)} height="24rem">${([judged, ruled, operations]) => {
      const [grpo, ppo] = ruled.rows;
      const count = (row) => row.models.filter((model) => model.there).length;
      return html`<${Table} label="PPO and GRPO, row by row" head=${["", "PPO", "GRPO"]} rows=${[
        [
          "models in memory",
          `${count(judged.rows[1])} with a reward model: policy, reference, critic, reward model`,
          `${count(grpo)} with a checker: policy and reference; 1 with β = 0`,
        ],
        ["trainable models", "2: policy and critic", "1: the policy"],
        ["critic", "needed, usually of the policy's size", "none"],
        ["advantage", "per token, by GAE from the critic's values", "per answer, from its group's mean and standard deviation"],
        ["answers per prompt", "usually 1", "G: 8 to 64"],
        [
          "peak memory, 7B in bfloat16",
          html`<span class="num" data-number="table-ppo">${gib(ppo.total)}</span>`,
          html`<span class="num" data-number="table-grpo">${gib(grpo.total)}</span> <span class="soft">${percent(ruled.saved)} less</span>`,
        ],
        ["FLOPs of a step, 16 × 8 answers", `${tera(operations.rows[2].all)} · 10¹²`, `${tera(operations.rows[0].all)} · 10¹²`],
        ["settings", "γ, λ, the critic's learning rate, clip and warmup, ε, β", "G, ε, β"],
        ["suits", "reward models; credit within an answer", "answers that a program can check"],
      ]} foot="Memory and FLOPs from the planner, with a checker as reward." />`;
    }}<//>
    <h3>State, reward and baseline</h3>
    <${Table} label="State, reward and baseline" head=${["", "PPO", "GRPO"]} rows=${[
      ["state", "the text so far: a new one after every token", "the prompt"],
      ["reward", "at the last token; a KL penalty at each token", "one per answer, or one per step with process rewards"],
      ["baseline", "learned; lags behind the policy, one per token", "the group's mean: always current, the same for all tokens, includes the answer itself"],
    ]}
    foot=${"The mean is sometimes called exact. It is an estimate from G answers. Since it includes the answer itself, the gradient is scaled by 1 − 1/G: " +
      "see chapter 3."} />
  <//>`;
}

export function Steps() {
  const steps = [
    ["Sample one answer per prompt", "grpo.rollout.builtin:Engine.sample", "the same, with G answers"],
    ["Score it", "grpo.rewards:Scorer.score", "the same"],
    ["Compute the critic's value before every token", "grpo.model.critic:Critic.values", "omitted"],
    ["Compute advantages by GAE, with γ and λ", "grpo.core.gae:gae", html`<code>grpo.core.advantage:group_advantages</code>`],
    ["Update the policy with the clipped loss, and the critic with its own loss", "grpo.training.gradient:accumulate_gradients", "the policy only"],
  ];
  return html`<${Section} title="PPO in five steps" id="ppo-steps" depth="code"
    lead="The five steps of PPO and what GRPO changes in each. Both are presets of one trainer, so the right column is the actual difference.">
    <${Table} label="PPO step by step" head=${["step", "function in PPO", "in GRPO"]}
      rows=${steps.map(([step, by, grpo], place) => [`${place + 1}. ${step}`, html`<code>${by}</code>`, grpo])}
      foot="Step 3 is the most expensive: a second network reads every answer and is trained on it." />
  <//>`;
}

export function Methods() {
  const params = { size: param("size", 7), g: param("mg", 8), lift: param("lift", 0) };
  const state = useAnswer("costs", "methods", params);
  return html`<${Section} title="PPO, GRPO, REINFORCE, DPO" id="methods" depth="math code"
    lead="Memory and FLOPs come from the planner, for 16 × G answers. Noise is measured over 4,000 groups on a policy over twelve answers.">
    <${Play} label="Methods">
      <div class="knobs"><${Slider} name="mg" label="group size" min=${2} max=${64} step=${1} value=${8} />
        <${Slider} name="lift" label="constant added to every reward" min=${0} max=${10} step=${0.5} value=${0} /></div>
      <${Fetched} state=${state} height="26rem">
        ${(data) => html`<${Table} label="Methods compared" head=${["method", "critic", "reference", "memory", "10¹² FLOPs", "samples during training"]}
          rows=${data.rows.map((row) => [
            row.method, row.critic ? "yes" : "no", row.reference ? "yes" : "no", gib(row.peak), tera(row.flops),
            row.samples ? "yes" : "no: it uses given pairs",
          ])} />
        <${Table} label="Noise of one group's gradient" head=${["estimate of the gradient", "length of its mean ÷ true gradient", "noise ÷ mean"]}
          rows=${data.estimators.map((row) => [
            row.name,
            row.along,
            html`<span class="num" data-noise=${row.name.split(",")[0]}>${number(row.noise, 3)}</span>`,
          ])}
          foot=${"Noise: root mean square deviation from the mean, divided by the mean's length. Without a baseline, a constant added to every reward adds " +
            "noise; with one it has no effect. GRPO's mean is longer because it is divided by the standard deviation, which also changes its direction: " +
            "chapter 3."} />`}
      <//>
    <//>
    <p>Such tables often have columns “stable” and “simple”. Stability depends on more than the estimator: <${Link} to="/learn/train">chapter 7<//> trains PPO
      and GRPO with several seeds each. GRPO has three settings (G, ε, β); PPO has two of those and five more.</p>
    <${Only} depth="code"><${Code} slug="costs" source="group_estimates" /><//>
  <//>
  <${OneStep} />`;
}

function OneStep() {
  const state = useAnswer("costs", "one-step", { max_kl: param("max_kl", 0.05), beta: param("dpo_beta", 0.5) });
  const names = { start: "before", trpo: "one step of TRPO", gradient: "one gradient step, learning rate 1", dpo: "DPO's optimum" };
  return html`<${Section} title="One step of TRPO, gradient descent and DPO" id="one-step" depth="math code"
    lead=${"TRPO takes the largest step within a KL bound and needs second derivatives. PPO and GRPO clip instead and use first derivatives only. DPO learns " +
      "from preferences between pairs."}>
    <${Table} label="TRPO, PPO and GRPO" head=${["", "TRPO", "PPO", "GRPO"]}
      rows=${[
        ["limit on the step", "a bound on KL(old ‖ new)", "a clip", "a clip and a KL penalty"],
        ["derivatives", "second, by conjugate gradients", "first, with Adam", "first, with Adam"],
        ["critic", "yes", "yes", "no"],
        ["known for", "a bound on how much an update can lower the objective", "general use", "reasoning and fine-tuning of language models"],
      ]} />
    <${Play} label="One step">
      <div class="knobs"><${Slider} name="max_kl" label="TRPO's KL bound δ" min=${0.005} max=${0.5} step=${0.005} value=${0.05} />
        <${Slider} name="dpo_beta" label="DPO's β" min=${0.1} max=${3} step=${0.1} value=${0.5} show=${(v) => number(v, 1)} /></div>
      <${Fetched} state=${state} height="14rem">
        ${(data) => html`<${Table} label="After one step" head=${["", "expected reward", "KL(before ‖ after)"]}
          rows=${Object.entries(data.rows).map(([key, row]) => [
            names[key],
            html`<span class="num" data-step=${key}>${exact(row.reward, 4)}</span>`,
            exact(row.kl, 3),
          ])}
          foot=${`Twelve answers, one right, all expectations exact. The gradient of DPO's loss at its optimum is ${exact(
            data.dpo_slope, 1,
          )}; the optimum is the reference times e to the reward over β.`} />`}
      <//>
    <//>
    <${Equation}
      tex=${"\\text{TRPO:}\\ \\max_\\theta\\mathbb E[\\rho A]\\ \\text{with}\\ \\text{KL}(\\pi_{\\text{old}}\\|\\pi_\\theta)\\le\\delta\\qquad\\text{DPO:}\\ " +
        "\\pi^*\\propto\\pi_{\\text{ref}}\\,e^{r/\\beta}"}
      spoken=${"TRPO maximises the expected ratio times advantage while the KL from old to new is at most delta; DPO's optimum is proportional to the " +
        "reference times e to the reward over beta"} />
    <${Only} depth="code"><${Code} slug="costs" source="trpo_step" /><${Code} slug="costs" source="dpo_loss" /><//>
  <//>`;
}

export function When() {
  return html`<${Section} title="When to use GRPO" id="when" depth="intuition">
    <div class="when">
      <div><h3>GRPO fits when</h3>
        <ul><li><b>answers can be checked</b> by a test, a rule or a known answer</li>
          <li><b>a prompt can be sampled again</b>: easy for text, not for a robot</li><li><b>a second model does not fit</b></li>
          <li><b>the model is sometimes right already</b></li></ul>
      </div>
      <div><h3>Another method fits when</h3>
        <ul><li><b>the model is never right</b>: fine-tune first</li>
          <li><b>every step has its own reward</b>: a critic or process rewards (<${Link} to="/learn/credit">chapter 5<//>)</li>
          <li><b>only preferences between pairs exist</b>: DPO</li><li><b>one answer per prompt is all you can afford</b>: PPO</li></ul>
      </div>
    </div>
  <//>`;
}

export function Verifiable() {
  return html`<${Section} title="Which tasks can be checked" id="verifiable" depth="code" lead="Tasks with easy and hard rewards, and the module for each.">
    <${Table} label="Verifiability" head=${["task", "how it is checked", "module or flag"]} rows=${[
      ["mathematics", "compare with the known answer", html`<code>grpo.tasks.checkers.answers</code>`],
      ["programs", "run the tests, in a sandbox", html`<code>grpo.tasks.checkers.sandbox</code>`],
      ["facts", "compare with the known answer, including its wording", html`<code>grpo.tasks.checkers.answers</code>`],
      ["games and puzzles", "apply the rules", html`<code>grpo.tasks.countdown</code>`],
      ["a required format", "parse it", html`<code>grpo.rewards.format</code>`],
      ["creative writing", "human raters, or a reward model", html`<code>--reward model:…</code>`],
      ["open conversation", "preferences between answers", html`<code>--reward model:…</code>`],
      ["style and tone", "subjective; a judge with a rubric at best", html`<code>--reward</code> with your own function`],
    ]} foot="A program checks the first five. A model that can be wrong scores the last three: the question on noisy judges below computes the effect." />
  <//>`;
}

export function Limits() {
  return html`<${Section} title="Limits and extensions" id="limits" depth="math">
    <${Table} label="Limitations and extensions" head=${["limitation", "effect", "extensions"]} rows=${[
      ["many answers per prompt", "sampling cost grows with G", "RLOO and REINFORCE++ work with fewer answers; a shared prompt cache makes groups cheaper"],
      [
        "one advantage per answer", "filler tokens get as much credit as the deciding step",
        "process rewards: one advantage per step, with loss.credit process",
      ],
      ["groups without signal", "too easy or too hard: no gradient", "DAPO's dynamic sampling; curricula"],
      [
        "division by length and standard deviation", "long wrong answers are pushed down less per token; rare successes weigh more",
        "Dr. GRPO; DAPO's mean over tokens",
      ],
      ["hard clip", "clipped tokens get no gradient", "CISPO, SAPO; GSPO clips whole answers"],
      [
        "needs access to the weights",
        "impossible with an API model",
        "Training-Free GRPO stores lessons of a group as text in the prompt (reported: arXiv 2510.08191)",
      ],
      ["little theory", "a heuristic clip, a biased scale", "analyses of the estimator: chapter 3 has exact ones"],
    ]} />
  <//>`;
}

export function Checklist() {
  const rows = [
    ["Does the summary say “no critic, compare within a group”?", "first section of this chapter, and chapters 1 to 3"],
    ["Are prerequisites listed and linked?", html`<${Link} to="/learn/notation">Notation and prerequisites<//>`],
    ["Is the comparison of PPO and GRPO right?", "“PPO and GRPO side by side”: numbers from the planner, compared with a GPU above"],
    ["Are there versions for intuition, mathematics and code?", "the switch at the top of every chapter"],
    ["Are demonstrations interactive, and about groups?", "everything in a frame is computed by the trainer's functions on demand"],
    ["Do chapters link both ways?", "“See also” at the end of each"],
    ["Is notation consistent?", "one page of symbols, with each symbol's name in the code"],
    ["Is there pseudocode and code that runs?", "chapter 1 has the loop in ten lines; chapter 4 has the loss in fifty lines and compares it with the trainer"],
    ["Do questions test the idea of the group?", "the questions above, each answered by a computation"],
  ];
  return html`<${Section} title="A checklist for explanations like this one" id="checklist" depth="code"
    lead="What a good explanation needs, and where this lab has it.">
    <${Table} label="Checklist" head=${["criterion", "where"]} rows=${rows} /><//>`;
}
