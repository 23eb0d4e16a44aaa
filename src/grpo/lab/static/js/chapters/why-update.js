// One update, paused between its phases: the server runs the trainer's functions up to the requested phase.
import { html } from "htm/preact";
import { among, Code, Equation, Fetched, Numbers, Only, param, Play, Section, Slider, Table, useAnswer } from "../lesson.js";
import { number, percent, signed } from "../format.js";
import { setQuery } from "../route.js";
import { Answers, Asked, PlayButton, Tokens, usePlaying } from "./answers.js";

const PHASES = [
  ["Sample", "G answers", "The policy answers the same problem several times. Each token is sampled from the model's distribution. The number on the right is the log-probability of the whole answer."],
  ["Score", "a reward each", "A checker compares each final answer with the right one and gives a reward of 1 or 0. It ignores the working."],
  ["Compare", "an advantage each", "Every reward is compared with the group's mean: the advantage is positive above it and negative below. Nothing outside this group is used."],
  ["Loss", "a push per token", "The advantage becomes a push on the log-probability of every token, divided by the answer's length. The weights have not changed yet, so the ratio is 1 and the loss is 0. Its gradient is not 0."],
  ["Update", "new weights", "One step of Adam. Answers that were pushed up should now be more likely, the others less likely: see the last column. Training repeats this with new problems."],
];
const RATES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3];

export function Update() {
  const phase = Math.max(0, Math.min(4, param("phase", 0)));
  const asked = { phase, prompt: param("prompt", "29+60+75="), g: param("g", 8), seed: param("seed", 1), lr: among(RATES, param("rate", 2), 2) };
  const state = useAnswer("why", "update", asked);
  const [playing, toggle] = usePlaying("phase", phase, 4, 2200);
  const go = (to) => setQuery({ phase: to || undefined });
  return html`<${Section} id="update" title="One update in five phases" lead="GRPO's update has five phases. Stop after each and inspect its results. This page runs the trainer's functions on a model of 100,000 weights.">
    <${Play} label="One update, phase by phase">
      <${Asked} prompt=${asked.prompt} />
      <ol class="phases" aria-label="Phases">${PHASES.map(([name, what], place) => html`<li><button type="button" class=${place < phase ? "done" : ""} aria-current=${place === phase ? "step" : undefined} onClick=${() => go(place)}><span>${place + 1} ${name}</span><span class="tiny">${what}</span></button></li>`)}</ol>
      <div class="play-bar"><${PlayButton} playing=${playing} toggle=${toggle} again=${phase === 4} />
        <button type="button" disabled=${phase === 0} onClick=${() => go(phase - 1)}>← Back</button><button type="button" disabled=${phase === 4} onClick=${() => go(phase + 1)}>Next →</button></div>
      <p class="phase-words">${PHASES[phase][2]}</p>
      <${Fetched} state=${state} height="24rem">${(found) => html`<${Held} found=${found} phase=${PHASES.findIndex(([name]) => name.toLowerCase() === found.phase)} />`}<//>
      <div class="knobs"><${Slider} name="g" label="Group size G" min=${2} max=${32} step=${1} value=${8} />
        <${Slider} name="rate" label="Learning rate" min=${0} max=${4} step=${1} value=${2} show=${(place) => among(RATES, place, 2).toExponential().replace("-", "−")} /></div>
      <${Only} depth="math"><${Worked} state=${state} /><//>
      <${Only} depth="code"><${Code} slug="why" source="one_update" title="The function that runs here" /><//>
    <//>
    <p class="soft small">Try the largest learning rate and see the last phase. One step of Adam moves every weight by about the learning rate. At 10⁻³ the model learns the style but forgets how to add. Real runs use warmup and smaller learning rates.</p>
  <//>`;
}

function Held({ found, phase }) {
  const after = found.after;
  const before = (row) => row.logprobs.reduce((sum, value) => sum + value, 0);
  const chosen = Math.min(param("look", 0), found.completions.length - 1);
  const largest = Math.max(1e-9, ...found.completions.flatMap((row) => (row.push ?? []).map(Math.abs)));
  const rows = found.completions.map((row, place) => ({
    tokens: row.tokens,
    values: row.push,
    unit: largest / 2,
    reward: row.reward,
    advantage: row.advantage,
    more: after ? html`${signed(after.logprobs[place].reduce((sum, value) => sum + value, 0) - before(row), 3)}` : html`${number(before(row), 2)}`,
  }));
  const fell = after ? found.completions.filter((row, place) => after.logprobs[place].reduce((sum, value) => sum + value, 0) < before(row)) : [];
  const fallen = fell.find((row) => row.reward === 1)?.text;
  const m = found.measured;
  return html`<${Answers} rows=${rows} label="The group: advantage, answer, reward, log-probability" head=${[phase >= 2 ? "advantage" : "", "answer", phase >= 1 ? "reward" : "", after ? "Δ log p" : "log p"]} />
    ${phase >= 2 && html`<${Numbers} items=${[
      phase >= 2 && ["mean reward", m.reward_mean, "", "update-mean"],
      phase >= 2 && ["standard deviation", m.reward_std, "sample std, over G − 1", "update-std"],
      phase >= 3 && ["loss", Math.abs(m.loss) < 5e-7 ? "0" : number(m.loss, 4), "before the update", "update-loss"],
      phase >= 3 && ["tokens with gradient", percent(m.gradient_tokens)],
      phase >= 4 && ["gradient norm", m.grad_norm, "", "update-norm"],
      after && ["right", html`${percent(after.right[0], 1)} → ${percent(after.right[1], 1)}`, `of ${after.looks} new samples`],
      after && ["with working", html`${percent(after.worked[0], 1)} → ${percent(after.worked[1], 1)}`, "in parentheses"],
    ].filter(Boolean)} />`}
    ${fallen && fell.length === found.completions.length && html`<p class="small warn">All of them are less likely now, even those that were pushed up. The step was so large that the model now writes something else.</p>`}
    ${fallen && fell.length < found.completions.length && html`<p class="small soft">${fallen} was right and was pushed up, but is less likely now. It shares tokens with wrong answers, and those were pushed down more.</p>`}
    <details class="inspect"><summary>All token values of one answer</summary>
      <div class="knobs"><${Slider} name="look" label="Answer" min=${0} max=${found.completions.length - 1} step=${1} value=${0} show=${(place) => found.completions[Math.min(place, found.completions.length - 1)].text} /></div>
      <${Table} label="Tokens of one answer" head=${["token", "probability", "log-probability", phase >= 3 && "push", after && "after the update"].filter(Boolean)}
        rows=${found.completions[chosen].tokens.map((token, place) => {
          const row = found.completions[chosen];
          return [html`<${Tokens} tokens=${[token]} />`, number(Math.exp(row.logprobs[place]), 4), number(row.logprobs[place], 4), ...(phase >= 3 ? [signed(row.push[place], 5)] : []), ...(after ? [number(after.logprobs[chosen][place], 4)] : [])];
        })} /></details>`;
}

function Worked({ state }) {
  const found = state.data;
  const row = found?.completions[Math.min(param("look", 0), found.completions.length - 1)];
  if (!row || row.advantage === null) return html`<p class="small soft">Go to phase 3, Compare, to see the calculation here.</p>`;
  const { reward_mean: mean, reward_std: std } = found.measured;
  return html`<${Equation} tex=${`A=\\frac{r-\\bar r}{s+10^{-4}}=\\frac{${row.reward}-${mean.toFixed(3)}}{${std.toFixed(4)}+10^{-4}}=${row.advantage.toFixed(3)}`} spoken="The advantage is the reward minus the group mean, divided by the group's standard deviation." />
    ${row.push && html`<${Equation} tex=${`-\\frac{\\partial L}{\\partial \\log\\pi(o_t)}=\\frac{A}{|o|\\,G}=\\frac{${row.advantage.toFixed(3)}}{${row.tokens.length}\\cdot ${found.group_size}}=${row.push[0].toFixed(5)}`} spoken="The push on a token is the advantage divided by the length of the answer and by the group size." />`}`;
}
