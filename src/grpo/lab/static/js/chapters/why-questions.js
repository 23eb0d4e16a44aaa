// Questions about rewards: open-ended tasks, tasks never shown, and other subjects.
import { html } from "htm/preact";
import { Fetched, Misconception, Numbers, Only, param, Question, Reported, Slider, Table, Trial, useAnswer, Verdict } from "../lesson.js";
import { number, percent } from "../format.js";
import { Link } from "../route.js";

export function Questions() {
  return html`<${Question} name="q-open" ask="A judge grades eight equally good drafts, with small random errors. How hard does the update push them?"
    options=${[["zero", "Not at all"], ["small", "As little as the errors"], ["full", "As hard as for real differences"]]}>
    ${(picked) => html`<${OpenEnded} picked=${picked} />`}<//>
    <${Question} name="q-sft" ask="Can rewards alone teach a task that the model gets right once in a thousand tries?"
      options=${[["yes", "Yes, it only takes longer"], ["no", "Hardly: nearly every group is all wrong"]]}>
      ${(picked) => html`<${NeverShown} picked=${picked} />`}<//>`;
}

function OpenEnded({ picked }) {
  const level = useAnswer("why", "judge", { spread: 0, noise: param("noise", 0.1) });
  const state = useAnswer("why", "judge", { spread: param("spread", 0.2), noise: param("noise", 0.1) });
  return html`<${Verdict} picked=${picked} right="full">
    <${Fetched} state=${level} height="3rem">
      ${(found) => html`<p>The advantages have a standard deviation of <b class="num">${number(found.advantage_std, 2)}</b>, for any size of the judge's error.
        Dividing by the group's standard deviation makes noise as large as a real difference. With rewards of 0 and 1, such a group would have equal rewards and
        advantages of 0.</p>`}
    <//>
    <div class="knobs">
      <${Slider} name="spread" label="True differences between drafts" min=${0} max=${1} step=${0.05} value=${0.2} show=${(value) => number(value, 2)} />
      <${Slider} name="noise" label="The judge's error" min=${0} max=${0.5} step=${0.01} value=${0.1} show=${(value) => number(value, 2)} /></div>
    <${Fetched} state=${state} height="5rem">
      ${(found) => html`<${Numbers}
        items=${[
          [
            "pushed the wrong way",
            found.wrong_sign === null ? "–" : percent(found.wrong_sign),
            `of drafts, ${number(found.groups)} groups of 8`,
            "judge-wrong",
          ],
          ["agreement with true quality", found.agreement === null ? "–" : number(found.agreement, 2), "correlation", "judge-agreement"],
        ]} />`}
    <//>
    <p class="small">GRPO works on open-ended tasks if the judge can tell drafts apart. Without the division (<code>--loss.scale none</code>) noise stays small.
      <${Only} depth="math code">DAPO is sometimes described as a leave-one-out method by
        Alibaba. <${Reported} source="arXiv 2503.14476">It is by ByteDance and Tsinghua<//>
        ${state.data && html`, and its preset here has the baseline <code>${state.data.dapo.baseline}</code>; it adds dynamic sampling, which replaces groups
          without signal by sampling up to ${state.data.dapo.dynamic_sampling} times as many`}.<//></p>
  <//>`;
}

function NeverShown({ picked }) {
  const state = useAnswer("why", "scratch", { logp: param("logp", -3), g: param("scratch-g", 8) });
  return html`<${Verdict} picked=${picked} right="no">
    <div class="knobs">
      <${Slider} name="logp" label="Probability of a right answer" min=${-5} max=${0} step=${0.25} value=${-3}
        show=${(value) => `${number(100 * 10 ** value, 3)}%`} />
      <${Slider} name="scratch-g" label="Group size G" min=${2} max=${64} step=${1} value=${8} /></div>
    <${Fetched} state=${state} height="5rem">
      ${(found) => html`<${Numbers}
        items=${[
          ["groups with signal", percent(found.signal, 2), "", "scratch-signal"],
          ["answers until the first one", found.completions_until_signal === null ? "never" : number(found.completions_until_signal, 0), "on average"],
        ]} />`}
    <//>
    <p>Below, <code>nano</code> trains on sums of three numbers, which its training examples contain, and on sums of four and products, which they do not. On
      the first task it knows the method but rarely uses it. On the second it almost never samples a right answer, so almost no group has any signal and
      accuracy stays flat.</p>
    <${Trial} name="never-shown" />
    <p class="small"><${Reported} source="arXiv 2501.12948">DeepSeek-R1-Zero skipped fine-tuning, and its answers mixed languages and formats<//>. A large model
      has seen nearly every kind of task in pretraining, so it is right more than once in a thousand tries. The usual order is still pretraining, fine-tuning,
      then rewards.</p>
  <//>`;
}

export function OnlyMath() {
  return html`<${Misconception} name="m-math" claim="GRPO only works for mathematics."><${Anything} /><//>`;
}

function Anything() {
  const state = useAnswer("why", "score", { gold: "Paris", group: "The answer is Paris.\nLyon\nParis\nIt is Rome, I believe." });
  return html`<p>GRPO needs rewards that differ within a group. The subject of the task does not appear in any formula. Here the question asks for a
    capital:</p>
    <${Fetched} state=${state} height="8rem">
      ${(found) => html`<${Table} label="A group of words" head=${["answer", "reward", "advantage"]}
        rows=${found.rows.map((row) => [row.text, row.reward, number(row.advantage, 3)])} />`}
    <//>
    <p><${Link} to="/learn/why?depth=math#checkable">A table at depth Math<//> checks code, puzzles, JSON against a schema, and facts. Mathematics came first
      because its answers are easy to check.</p>`;
}
