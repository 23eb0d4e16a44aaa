// Chapter 1: why learn from rewards.
import { html } from "htm/preact";
import { Analogy, Code, Equation, Fetched, Misconception, Numbers, Only, param, Play, Question, Reported, Section, Slider, Table, Trial, useAnswer, useStyle, Verdict } from "../lesson.js";
import { number, percent } from "../format.js";
import { Reward } from "../parts.js";
import { address, Link } from "../route.js";
import { visible } from "../text.js";
import { Asked, Bar } from "./answers.js";
import { Aha } from "./why-aha.js";
import { Score } from "./why-score.js";
import { Update } from "./why-update.js";

export function Chapter({ depth }) {
  useStyle("/static/css/chapter-why.css");
  return html`
    <${Section} depth="intuition" title="In short"><${Short} /><//>
    <${Section} depth="math" title="What is maximised"><${Objective} /><//>
    <${Section} depth="code" title="The loop in ten lines" lead="One update, written with the trainer's own functions. It runs on this page, and a test holds its weights equal to those of a real run."><${Loop} /><//>
    <${Section} depth="intuition math" id="gap" title="Likely is not right" lead="A model trained on text knows what usually comes next. Whether it is right was never asked."><${Gap} /><//>
    <${Section} depth="intuition" title="Three stages"><${Stages} /><//>
    <${Section} depth="intuition code" title="What can be checked" lead="A reward needs somebody who can tell right from wrong, thousands of times a minute. For some questions that is a few lines of program."><${Checkable} /><//>
    <${Section} depth="intuition" title="In everyday terms"><${Exam} /><//>
    <${Update} />
    <${Aha} />
    <${Score} />
    <${Section} id="questions" title="Predict, then run"><${Questions} /><//>
    <${Section} title="For mathematics alone?"><${OnlyMath} depth=${depth} /><//>`;
}

function Short() {
  const state = useAnswer("why", "cards");
  return html`<p class="tldr">Ask the model the same question several times. Let a program mark the answers. Make those that did better than their siblings likelier, the others less likely. Repeat. That is <b>group relative policy optimization</b>: the group itself says what was to be expected, so no second network has to learn it.</p>
    <div class="headline"><${Fetched} state=${state} height="8rem">${(found) => html`<${Numbers} items=${[
      ["MATH, before and after", "46.8 → 51.7%", html`<span class="reported-source">reported: DeepSeekMath 7B, arXiv 2402.03300</span>`],
      ["memory saved against PPO", percent(found.memory_saved), html`computed for 7B in bfloat16: ${Math.round(found.memory.ppo / 2 ** 30)} GiB with a critic, ${Math.round(found.memory.grpo / 2 ** 30)} without; “half” is often told`, "memory-saved"],
      ["answers per question", html`G = ${found.group_size}`, html`here, by default. <span class="reported-source">reported: 64 in DeepSeekMath, 16 in DeepSeek-R1</span>`, "card-g"],
      ["leash β", number(found.beta, 2), html`here, by default; <span class="reported-source">reported: the same in DeepSeekMath, 0.001 in DeepSeek-R1</span>`],
    ]} />`}<//></div>
    <p class="small"><${Link} to="/learn/costs">What the memory is spent on<//></p>`;
}

function Objective() {
  return html`<p>The policy <i>π</i> is to earn as much as possible on the questions <i>q</i> it is asked. The reward <i>r</i> is given, not differentiated: only the chance of each answer can be.</p>
    <${Equation} tex="J(\\theta)=\\mathbb{E}_{q}\\;\\mathbb{E}_{o\\sim\\pi_\\theta(\\cdot|q)}\\big[r(q,o)\\big],\\qquad \\nabla J=\\mathbb{E}\\big[(r-b)\\,\\nabla\\log\\pi_\\theta(o|q)\\big]" spoken="The objective is the expected reward over questions and answers. Its gradient is the expectation of reward minus baseline times the gradient of the log-probability of the answer." />
    <p>Any baseline <i>b</i> that does not depend on the answer leaves the expectation as it is. GRPO takes the mean of all answers to the same question for <i>b</i> (this one among them, which shortens the gradient by 1 − 1/G), divides by their deviation, and keeps PPO's clip and a leash to the starting model:</p>
    <${Equation} tex="J_{\\text{GRPO}}=\\mathbb{E}\\Big[\\tfrac1G\\sum_{i=1}^{G}\\tfrac1{|o_i|}\\sum_{t}\\min\\big(\\rho_{i,t}A_i,\\;\\mathrm{clip}(\\rho_{i,t},1-\\varepsilon,1+\\varepsilon)A_i\\big)\\Big]-\\beta\\,\\mathrm{KL}(\\pi_\\theta\\,\\|\\,\\pi_{\\text{ref}})" spoken="The objective of GRPO is the mean over the group and over each answer's tokens of the smaller of ratio times advantage and clipped ratio times advantage, less beta times the divergence from the reference." />
    <p class="small soft"><${Link} to="/learn/advantage?depth=math">Where A comes from, and what dividing by the deviation does to the gradient<//> · <${Link} to="/learn/loss?depth=math">Ratio, clip and KL<//></p>`;
}

function Loop() {
  return html`<${Code} slug="why" source="one_update" open title="Sample, score, compare, loss, update" />
    <p>A run repeats it, and records, evaluates and saves in between. This is the whole of that loop:</p>
    <${Code} slug="why" source="loop" title="The trainer's loop" />
    <p class="small soft">The lines call, in order:</p>
    ${[["sample", "Sample"], ["score", "Score"], ["credit", "Compare"], ["accumulate_gradients", "Loss and gradient"], ["policy_loss", "The loss itself"], ["descend", "Update"]].map(([source, title]) => html`<${Code} slug="why" source=${source} title=${title} key=${source} />`)}`;
}

function Gap() {
  const prompt = param("asked", "29+60+75=");
  const state = useAnswer("why", "gap", { prompt });
  const measured = useAnswer("why", "stages");
  return html`<${Play} label="What the model says, the likeliest first">
    <${Asked} prompt=${prompt} promptName="asked" seedName=${null} />
    <${Fetched} state=${state} height="22rem">${(found) => html`
      <p class="small soft">${found.samples} answers of the fine-tuned model before any reward; the likeliest first. Right is ${found.answer}.</p>
      <ul class="said" aria-label="Answers by probability">${found.rows.slice(0, 8).map((row) => html`<li><bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi><${Bar} share=${Math.exp(row.logprob) / Math.exp(found.rows[0].logprob)} kind=${row.reward ? "right" : ""} /><span class="num small">${percent(Math.exp(row.logprob), 1)}</span><${Reward} value=${row.reward} /></li>`)}</ul>
      <${Numbers} items=${[
        ["right when it works the sum out", found.right_by_style.worked === undefined ? "–" : percent(found.right_by_style.worked)],
        ["right when it answers at once", found.right_by_style.direct === undefined ? "–" : percent(found.right_by_style.direct)],
        ["works it out", percent(found.worked), "of the time", "gap-worked"],
      ]} />`}<//>
  <//>
  <${Fetched} state=${measured} height="3rem">${(found) => html`<p>It can add, and seldom bothers to: its teachers mostly wrote the answer down at once. Taking the likeliest token every time, it is right on <b>${percent(found.fine_tuned.greedy_accuracy)}</b> of ${found.heldout} problems it never saw; left to chance, on <b>${percent(found.fine_tuned.accuracy)}</b>. More imitation would copy the same habit more faithfully. A reward asks for something else.</p>`}<//>
  <${Only} depth="math"><${Equation} tex="\\underbrace{\\max_\\theta\\;\\mathbb{E}_{o\\sim\\text{text}}\\log\\pi_\\theta(o|q)}_{\\text{imitate what was written}}\\qquad\\text{and}\\qquad\\underbrace{\\max_\\theta\\;\\mathbb{E}_{o\\sim\\pi_\\theta}\\,r(q,o)}_{\\text{earn with what one writes}}" spoken="Imitation maximises the log-probability of given texts. Reward maximises the expected reward of the policy's own texts." /><//>`;
}

function Stages() {
  const state = useAnswer("why", "stages");
  return html`<ol class="stages">
      <li><span class="stage-number">1 Pretraining</span><h3>Read everything</h3><p>Predict the next token of a great deal of text. The small model here read 200,000 made-up sums, nearly all worked out. <${Reported} source="Llama 3, arXiv 2407.21783">Large ones read 15 trillion tokens<//>.</p></li>
      <li><span class="stage-number">2 Fine-tuning</span><h3>Be shown how</h3><p>Imitate chosen questions and answers: the form, the manner. Here 8,000 sums, two thirds of them answered at once.${state.data && html` After it: <b class="num">${percent(state.data.fine_tuned.accuracy)}</b> right.`}</p></li>
      <li><span class="stage-number">3 Reward</span><h3>Try, and be marked</h3><p>Answer, be told right or wrong, do more of what worked. This is where GRPO lives, and what the trial below does.</p></li>
    </ol>
    <${Trial} name="first-run" note="Three seeds; the band is one standard deviation." />
    <p>Only right answers are paid. That working a sum out pays is for the model to find, and the second curve shows it finding it. <${Link} to="/runs/~tiny-arithmetic/overview">The same in a larger recorded run<//>, with every completion.</p>`;
}

function Checkable() {
  const state = useAnswer("why", "verifiable");
  return html`<${Fetched} state=${state} height="20rem">${(rows) => html`<${Table} label="Questions that a program can mark" head=${["a program can mark", "an answer", "another", "marked by"]}
      rows=${rows.map((row) => [html`<b>${row.kind}</b><span class="question-text">${row.question}</span>`, ...row.answers.map((answer) => html`<span class="marked"><${Reward} value=${answer.reward} /><bdi class="untrusted small" dir="ltr">${visible(answer.text)}</bdi></span>`), html`<code class="tiny">${row.by.split(":")[1]}</code>`])}
      foot="Marked just now, by the functions named. Programs are marked by running their tests, in a sandbox." />`}<//>
    <div class="cards-2"><div><h3>Hard to mark</h3><ul><li>a story, a poem: taste</li><li>an open conversation: preference</li><li>tone and style: the reader's own</li><li>a proof in words: needs a reader who can follow</li></ul></div>
      <div><h3>What one does instead</h3><p>Ask a model that was trained on people's choices, or a language model as judge. Both can be named as the reward of a run. Both are wrong sometimes, and in ways a policy can learn: <${Link} to="/learn/credit">what happens then<//>.</p></div></div>`;
}

function Exam() {
  return html`<${Analogy} title="Practice exams">
    <p>Pretraining is reading the whole library. Fine-tuning is watching a tutor solve a few problems. Neither is sitting an exam.</p>
    <p>Learning from rewards is the practice exam, with one peculiarity: the pupil answers each question eight times, and nobody says how good an answer should have been. The eight are marked and compared. What the better ones did is done more often. A tutor who predicts the mark beforehand, which is what PPO employs, is not needed.</p>
  <//>`;
}

function Questions() {
  return html`<${Question} name="q-open" ask="The reward is no longer right or wrong, but a judge's grade with some error in it. Eight drafts of one prompt are in truth equally good. How large are the advantages they get?" options=${[["zero", "Zero"], ["small", "As small as the judge's error"], ["full", "As large as ever"]]}>${(picked) => html`<${OpenEnded} picked=${picked} />`}<//>
    <${Question} name="q-sft" ask="Can rewards alone teach a model that was never shown how? It meets a task on which it is right once in a thousand tries." options=${[["yes", "Yes, it only takes longer"], ["no", "Hardly: there is next to nothing to learn from"]]}>${(picked) => html`<${NeverShown} picked=${picked} />`}<//>`;
}

function OpenEnded({ picked }) {
  const level = useAnswer("why", "judge", { spread: 0, noise: param("noise", 0.1) });
  const state = useAnswer("why", "judge", { spread: param("spread", 0.2), noise: param("noise", 0.1) });
  return html`<${Verdict} picked=${picked} right="full">
    <${Fetched} state=${level} height="3rem">${(found) => html`<p>The advantages have a deviation of <b class="num">${number(found.advantage_std, 2)}</b>, whatever the judge's error. Dividing by the group's own deviation makes noise as loud as a real difference. With right and wrong such a group is level and silent.</p>`}<//>
    <div class="knobs"><${Slider} name="spread" label="True differences between drafts" min=${0} max=${1} step=${0.05} value=${0.2} show=${(value) => number(value, 2)} /><${Slider} name="noise" label="The judge's error" min=${0} max=${0.5} step=${0.01} value=${0.1} show=${(value) => number(value, 2)} /></div>
    <${Fetched} state=${state} height="5rem">${(found) => html`<${Numbers} items=${[["pushed the wrong way", found.wrong_sign === null ? "–" : percent(found.wrong_sign), `of drafts, ${number(found.groups)} groups of 8`, "judge-wrong"], ["agreement with the truth", found.agreement === null ? "–" : number(found.agreement, 2), "correlation", "judge-agreement"]]} />`}<//>
    <p class="small">So it works for open-ended tasks as far as the judge tells drafts apart. Not dividing (<code>--loss.scale none</code>) keeps noise small. DAPO is sometimes named here as a leave-one-out method of Alibaba's. <${Reported} source="arXiv 2503.14476">It is by ByteDance and Tsinghua<//>${state.data && html`, and this program's preset of it has the baseline <code>${state.data.dapo.baseline}</code>; what it adds is to replace level groups, up to ${state.data.dapo.dynamic_sampling} times as many being drawn`}.</p>
  <//>`;
}

function NeverShown({ picked }) {
  const state = useAnswer("why", "scratch", { logp: param("logp", -3), g: param("scratch-g", 8) });
  return html`<${Verdict} picked=${picked} right="no">
    <div class="knobs"><${Slider} name="logp" label="Chance of a right answer" min=${-5} max=${0} step=${0.25} value=${-3} show=${(value) => `${number(100 * 10 ** value, 3)}%`} /><${Slider} name="scratch-g" label="Group size G" min=${2} max=${64} step=${1} value=${8} /></div>
    <${Fetched} state=${state} height="5rem">${(found) => html`<${Numbers} items=${[["groups with anything to teach", percent(found.signal, 2), "", "scratch-signal"], ["answers until one", found.completions_until_signal === null ? "never" : number(found.completions_until_signal, 0), "on average"]]} />`}<//>
    <p>Below, <code>nano</code> trains on sums of three, which it was shown, and on sums of four and products, which it was not. In the one case it has the method and lacks the habit. In the other it hardly ever hits a right answer: next to no group has any spread, and nothing moves.</p>
    <${Trial} name="never-shown" />
    <p class="small"><${Reported} source="arXiv 2501.12948">DeepSeek-R1-Zero did without fine-tuning, and mixed languages and formats<//>: a large model has been shown nearly everything in pretraining, so its chance is not one in a thousand. The usual order stays: pretrain, fine-tune, then reward.</p>
  <//>`;
}

function OnlyMath() {
  return html`<${Misconception} name="m-math" claim="GRPO only works for mathematics."><${Anything} /><//>`;
}

function Anything() {
  const state = useAnswer("why", "score", { gold: "Paris", group: "The answer is Paris.\nLyon\nParis\nIt is Rome, I believe." });
  return html`<p>It needs a reward that differs within a group; what the reward is about does not enter any formula. Here the question is a capital:</p>
    <${Fetched} state=${state} height="8rem">${(found) => html`<${Table} label="A group of words" head=${["answer", "reward", "advantage"]} rows=${found.rows.map((row) => [row.text, row.reward, number(row.advantage, 3)])} />`}<//>
    <p>Code, puzzles, JSON of a given form and facts are marked in <a href=${address("/learn/why", {})}>the table above</a>. Mathematics came first because its answers are easily checked.</p>`;
}
