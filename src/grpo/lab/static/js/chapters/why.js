// Chapter 1: why learn from rewards.
import { html } from "htm/preact";
import { Analogy, Code, Equation, Fetched, Numbers, Only, param, Play, Reported, Section, Table, Trial, useAnswer, useStyle } from "../lesson.js";
import { number, percent } from "../format.js";
import { Term } from "../glossary.js";
import { Reward } from "../parts.js";
import { Link } from "../route.js";
import { visible } from "../text.js";
import { Asked, Bar, HowToRead } from "./answers.js";
import { Aha } from "./why-aha.js";
import { OnlyMath, Questions } from "./why-questions.js";
import { Score } from "./why-score.js";
import { Update } from "./why-update.js";

export function Chapter() {
  useStyle("css/chapter-why.css");
  return html`
    <${Section} depth="intuition math" title="In short"><${Short} /><//>
    <${Section} depth="math" title="The objective"><${Objective} /><//>
    <${Section} depth="code" title="The loop in ten lines"
      lead="One update, written with the trainer's functions. It runs on this page, and a test checks that its weights equal those of a real run.">
      <${Loop} /><//>
    <${Section} depth="intuition math" id="gap" title="It can add, but usually guesses"
      lead="A language model writes what usually comes next. Nothing in that asks whether it is right.">
      <${Gap} /><//>
    <${Section} depth="intuition math" title="Three stages"><${Stages} /><${Only} depth="intuition"><${Exam} /><//><//>
    <${Section} id="checkable" depth="math code" title="Tasks a program can check"
      lead="A run needs thousands of rewards a minute. For some tasks a few lines of code can tell right from wrong.">
      <${Checkable} /><//>
    <${Update} />
    <${Aha} />
    <${Score} />
    <${Section} id="questions" title="Predict, then run"><${Questions} /><//>
    <${Section} title="Only for mathematics?"><${OnlyMath} /><//>`;
}

function Short() {
  const state = useAnswer("why", "cards");
  return html`<p class="tldr">Ask one question several times. Let a program score the answers. Make those above the <${Term} of="group">group<//>'s average more
    likely and the others less likely. Repeat. That is <b>group relative policy optimization</b> (GRPO).</p>
    <${Only} depth="math"><p>The group's mean is the baseline, so no second network has to learn one.</p>
      <div class="headline"><${Fetched} state=${state} height="8rem">${(found) => html`<${Numbers} items=${[
      ["MATH, before and after", "46.8 → 51.7%", html`<span class="reported-source">reported: DeepSeekMath 7B, arXiv 2402.03300</span>`],
      [
        "memory saved against PPO",
        percent(found.memory_saved),
        html`computed for 7B in bfloat16: ${Math.round(found.memory.ppo / 2 ** 30)} GiB with a critic, ${Math.round(found.memory.grpo / 2 ** 30)} without;
          “half” is a common claim`,
        "memory-saved",
      ],
      [
        "answers per question",
        html`G = ${found.group_size}`,
        html`the default here. <span class="reported-source">reported: 64 in DeepSeekMath, 16 in DeepSeek-R1</span>`,
        "card-g",
      ],
      [
        "KL coefficient β", number(found.beta, 2),
        html`the default here; <span class="reported-source">reported: the same in DeepSeekMath, 0.001 in DeepSeek-R1</span>`,
      ],
    ]} />`}<//></div>
    <p class="small"><${Link} to="/learn/costs">What uses the memory<//></p><//>`;
}

function Objective() {
  return html`<p>The policy <i>π</i> maximises its expected reward over questions <i>q</i>. The reward <i>r</i> is not differentiable. The log-probability of
    each answer is.</p>
    <${Equation}
      tex=${"J(\\theta)=\\mathbb{E}_{q}\\;\\mathbb{E}_{o\\sim\\pi_\\theta(\\cdot|q)}\\big[r(q,o)\\big],\\qquad \\nabla " +
        "J=\\mathbb{E}\\big[(r-b)\\,\\nabla\\log\\pi_\\theta(o|q)\\big]"}
      spoken=${"The objective is the expected reward over questions and answers. Its gradient is the expectation of reward minus baseline times the gradient " +
        "of the log-probability of the answer."} />
    <p>A baseline <i>b</i> that does not depend on the answer leaves the expectation unchanged. GRPO uses the mean reward of the group as <i>b</i> (it includes
      the answer itself, which scales the gradient by 1 − 1/G), divides by the group's standard deviation, and keeps PPO's clip and a KL penalty to the starting
      model:</p>
    <${Equation}
      tex=${"J_{\\text{GRPO}}=\\mathbb{E}\\Big[\\tfrac1G\\sum_{i=1}^{G}\\tfrac1{|o_i|}\\sum_{t}\\min\\big(\\rho_{i,t}A_i,\\;\\mathrm{clip}(\\rho_{i,t},1-" +
        "\\varepsilon,1+\\varepsilon)A_i\\big)\\Big]-\\beta\\,\\mathrm{KL}(\\pi_\\theta\\,\\|\\,\\pi_{\\text{ref}})"}
      spoken=${"The objective of GRPO is the mean over the group and over each answer's tokens of the smaller of ratio times advantage and clipped ratio " +
        "times advantage, less beta times the divergence from the reference."} />
    <p class="small soft">
      <${Link} to="/learn/advantage?depth=math">Where A comes from, and what dividing by the standard deviation does to the
        gradient<//> · <${Link} to="/learn/loss?depth=math">Ratio, clip and KL<//>
    </p>`;
}

function Loop() {
  return html`<${Code} slug="why" source="one_update" open title="Sample, score, compare, loss, update" />
    <p>A run repeats this update, and records, evaluates and saves checkpoints in between. The whole training loop:</p>
    <${Code} slug="why" source="loop" title="The trainer's loop" />
    <p class="small soft">It calls these functions, in order:</p>
    ${[
      ["sample", "Sample"],
      ["score", "Score"],
      ["credit", "Compare"],
      ["accumulate_gradients", "Loss and gradient"],
      ["policy_loss", "The loss itself"],
      ["descend", "Update"],
    ].map(([source, title]) => html`<${Code} slug="why" source=${source} title=${title} key=${source} />`)}`;
}

function Gap() {
  const prompt = param("asked", "29+60+75=");
  const state = useAnswer("why", "gap", { prompt });
  const measured = useAnswer("why", "stages");
  return html`<${Play} label="The model's answers, most likely first">
    <${Asked} prompt=${prompt} promptName="asked" seedName=${null} />
    <${Fetched} state=${state} height="22rem">${(found) => html`
      <p class="small soft">Answers of a small model before any reward, most likely first. Bars compare with the first. Right: ${found.answer}.</p>
      <ul class="said" aria-label="Answers by probability">
        ${found.rows.slice(0, 8).map((row) => html`<li><bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi>
          <${Bar} share=${Math.exp(row.logprob) / Math.exp(found.rows[0].logprob)} kind=${row.reward ? "right" : ""} />
          <span class="num small">${percent(Math.exp(row.logprob), 1)}</span><${Reward} value=${row.reward} /></li>`)}
      </ul>
      <${Numbers} items=${[
        ["right with working", found.right_by_style.worked === undefined ? "–" : percent(found.right_by_style.worked)],
        ["right without working", found.right_by_style.direct === undefined ? "–" : percent(found.right_by_style.direct)],
        ["answers with working", percent(found.worked), "of all samples", "gap-worked"],
        ["right in all", percent(found.right), "of all samples", "gap-right"],
      ]} />
      <${HowToRead} prompt=${prompt} />`}<//>
  <//>
  <p>One worked answer is likelier than any guess, but all guesses together are likelier: most of its examples skipped the working. More imitation copies that
    habit. A <${Term} of="reward">reward<//> does not: it favours right answers.</p>
  <${Only} depth="math">
    <${Fetched} state=${measured} height="3rem">
      ${(found) => html`<p>With greedy decoding it is right on <b>${percent(found.fine_tuned.greedy_accuracy)}</b> of ${found.heldout} held-out problems; with
        sampling at temperature 1, on <b>${percent(found.fine_tuned.accuracy)}</b>.</p>`}
    <//>
  <//>
  <${Only} depth="math">
    <${Equation}
      tex=${"\\underbrace{\\max_\\theta\\;\\mathbb{E}_{o\\sim\\text{text}}\\log\\pi_\\theta(o|q)}_{\\text{imitate given " +
        "texts}}\\qquad\\text{and}\\qquad\\underbrace{\\max_\\theta\\;\\mathbb{E}_{o\\sim\\pi_\\theta}\\,r(q,o)}_{\\text{earn reward with own texts}}"}
      spoken="Imitation maximises the log-probability of given texts. Reward maximises the expected reward of the policy's own texts." />
  <//>`;
}

function Stages() {
  const state = useAnswer("why", "stages");
  return html`<ol class="stages">
      <li><span class="stage-number">1 Pretraining</span><h3>Predict text</h3><p>This small model read 200,000 sums, nearly all with working.</p></li>
      <li><span class="stage-number">2 <${Term} of="sft">Fine-tuning<//></span><h3>Imitate examples</h3>
        <p>8,000 sums, two thirds without working.${state.data && html` Right afterwards: <b class="num">${percent(state.data.fine_tuned.accuracy)}</b>.`}</p>
      </li>
      <li><span class="stage-number">3 Reward</span><h3>Sample and score</h3><p>GRPO's stage: better answers become more likely.</p></li>
    </ol>
    <${Only} depth="intuition"><${Trial} name="first-run" plain=${{ charts: { reward_mean: "right answers", worked_share: "answers with working" } }} /><//>
    <${Only} depth="math code"><${Trial} name="first-run" /><//>
    <p>Only the final answer is rewarded. Nobody tells the model that working helps. It finds out: see the second curve.</p>
    <${Only} depth="math">
      <p class="small">
        <${Reported} source="Llama 3, arXiv 2407.21783">Large models read 15 trillion tokens in
          pretraining<//>. <${Link} to="/runs/~tiny-arithmetic/overview">The third stage in a larger recorded run<//>,
        with every completion.</p>
    <//>`;
}

function Checkable() {
  const state = useAnswer("why", "verifiable");
  return html`<${Fetched} state=${state} height="20rem">
    ${(rows) => html`<${Table} label="Tasks a program can check" head=${["task", "a right answer", "a wrong answer", "checked by"]}
      rows=${rows.map((row) => [
        html`<b>${row.kind}</b><span class="question-text">${row.question}</span>`,
        ...row.answers.map((answer) => html`<span class="marked"><${Reward} value=${answer.reward} />
          <bdi class="untrusted small" dir="ltr">${visible(answer.text)}</bdi></span>`),
        html`<code class="tiny">${row.by.split(":")[1]}</code>`,
      ])}
      foot="Scored when this page loaded, by the functions in the last column. Programs are checked by running tests in a sandbox." />`}<//>
    <div class="cards-2">
      <div><h3>Hard to check</h3>
        <ul><li>a story or a poem: a matter of taste</li><li>an open conversation: a matter of preference</li><li>tone and style: readers differ</li>
          <li>a proof in words: needs an expert reader</li></ul>
      </div>
      <div><h3>What to use instead</h3>
        <p>A reward model trained on human preferences, or a language model as judge. Either can be the reward of a run. Both make errors, and a policy can
          learn to exploit them: <${Link} to="/learn/credit">reward hacking<//>.</p>
      </div>
    </div>`;
}

function Exam() {
  return html`<${Analogy} title="Practice exams">
    <p>Pretraining reads the library. Fine-tuning watches a tutor. Rewards are a practice exam: the student answers each question eight times and does more of
      what the better answers did.</p>
  <//>`;
}

