// One update, paused between its phases: the server runs the trainer's functions up to the requested phase.
import { html } from "htm/preact";
import { among, Code, Equation, Fetched, Numbers, Only, param, Play, Section, Slider, Table, useAnswer, useDepth } from "../lesson.js";
import { chance, number, percent, signed } from "../format.js";
import { Term } from "../glossary.js";
import { setQuery } from "../route.js";
import { Answers, Asked, PlayButton, Tokens, usePlaying } from "./answers.js";

const PHASES = [
  ["Sample", "eight answers", "The model answers the same problem eight times. On the right: how likely each answer was."],
  ["Score", "a reward each", "A program compares the final number with the right one: reward 1 or 0. It ignores the working."],
  ["Compare", "an advantage each", html`The <${Term} of="advantage">advantage<//>: how far a reward is above or below the group's average.`],
  [
    "Loss",
    "a push per token",
    html`The advantage is shared out over the answer's <${Term} of="token">tokens<//> as a <${Term} of="push">push<//>, up or down.`,
  ],
  ["Update", "new weights", "The weights move. The last column shows how likely each answer is now."],
];
const RATES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3];

export function Update() {
  const phase = Math.max(0, Math.min(4, param("phase", 0)));
  const asked = { phase, prompt: param("prompt", "29+60+75="), g: param("g", 8), seed: param("seed", 1), lr: among(RATES, param("rate", 2), 2) };
  const state = useAnswer("why", "update", asked);
  const [playing, toggle] = usePlaying("phase", phase, 4, 2200);
  const go = (to) => setQuery({ phase: to || undefined });
  return html`<${Section} id="update" title="One update in five phases"
    lead="Stop after each phase and look. The model is small, 100,000 weights; the update is real.">
    <${Play} label="One update, phase by phase">
      <${Asked} prompt=${asked.prompt} />
      <ol class="phases" aria-label="Phases">
        ${PHASES.map(([name, what], place) => html`<li>
          <button type="button" class=${place < phase ? "done" : ""} aria-current=${place === phase ? "step" : undefined} onClick=${() => go(place)}>
            <span>${place + 1} ${name}</span><span class="tiny">${what}</span></button>
        </li>`)}
      </ol>
      <div class="play-bar"><${PlayButton} playing=${playing} toggle=${toggle} again=${phase === 4} />
        <button type="button" disabled=${phase === 0} onClick=${() => go(phase - 1)}>← Back</button>
        <button type="button" disabled=${phase === 4} onClick=${() => go(phase + 1)}>Next →</button></div>
      <p class="phase-words">${PHASES[phase][2]}</p>
      <${Fetched} state=${state} height="24rem">
        ${(found) => html`<${Held} found=${found} phase=${PHASES.findIndex(([name]) => name.toLowerCase() === found.phase)} />`}<//>
      <div class="knobs"><${Slider} name="g" label="Answers" min=${2} max=${32} step=${1} value=${8} />
        <${Slider} name="rate" label="Learning rate" min=${0} max=${4} step=${1} value=${2}
          show=${(place) => among(RATES, place, 2).toExponential().replace("-", "−")} />
      </div>
      <${Only} depth="math"><${Worked} state=${state} /><//>
      <${Only} depth="code"><${Code} slug="why" source="one_update" title="The function that runs here" /><//>
    <//>
    <${Only} depth="math code">
      <p class="soft small">At the first update the ratio is 1 and the loss is 0; its gradient is not. Try the largest learning rate and see the last phase. One
        step of Adam moves every weight by about the learning rate. At 10⁻³ the model learns the style but forgets how to add. Real runs use warmup and smaller
        learning rates.</p>
    <//>
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
    more: move(before(row), after && after.logprobs[place].reduce((sum, value) => sum + value, 0)),
  }));
  const fell = after ? found.completions.filter((row, place) => after.logprobs[place].reduce((sum, value) => sum + value, 0) < before(row)) : [];
  const fallen = fell.find((row) => row.reward === 1)?.text;
  const m = found.measured;
  const exactly = useDepth() !== "intuition";
  return html`<${Answers} rows=${rows} label="The group: advantage, answer, reward, probability"
    head=${[phase >= 2 ? "advantage" : "", "answer", phase >= 1 ? "reward" : "", after ? "before → after" : "probability"]} />
    ${phase >= 2 && html`<${Numbers} items=${[
      phase >= 2 && ["mean reward", m.reward_mean, "", "update-mean"],
      exactly && phase >= 2 && ["standard deviation", m.reward_std, "sample std, over G − 1", "update-std"],
      exactly && phase >= 3 && ["loss", Math.abs(m.loss) < 5e-7 ? "0" : number(m.loss, 4), "before the update", "update-loss"],
      exactly && phase >= 3 && ["tokens with gradient", percent(m.gradient_tokens)],
      exactly && phase >= 4 && ["gradient norm", m.grad_norm, "", "update-norm"],
      after && ["right", html`${percent(after.right[0], 1)} → ${percent(after.right[1], 1)}`, `of ${after.looks} new samples`],
      after && ["with working", html`${percent(after.worked[0], 1)} → ${percent(after.worked[1], 1)}`, "in parentheses"],
    ].filter(Boolean)} />`}
    ${fallen && fell.length === found.completions.length && html`<p class="small warn">All of them are less likely now, even those that were pushed up. The step
      was so large that the model now writes something else.</p>`}
    ${fallen && fell.length < found.completions.length && html`<p class="small soft">${fallen} was right and was pushed up, but is less likely now. It shares
      tokens with wrong answers, and those were pushed down more.</p>`}
    <${Only} depth="math code"><details class="inspect"><summary>All token values of one answer</summary>
      <div class="knobs">
        <${Slider} name="look" label="Answer" min=${0} max=${found.completions.length - 1} step=${1} value=${0}
          show=${(place) => found.completions[Math.min(place, found.completions.length - 1)].text} />
      </div>
      <${Table} label="Tokens of one answer"
        head=${["token", "probability", "log-probability", phase >= 3 && "push", after && "after the update"].filter(Boolean)}
        rows=${found.completions[chosen].tokens.map((token, place) => {
          const row = found.completions[chosen];
          return [
            html`<${Tokens} tokens=${[token]} />`,
            number(Math.exp(row.logprobs[place]), 4),
            number(row.logprobs[place], 4),
            ...(phase >= 3 ? [signed(row.push[place], 5)] : []),
            ...(after ? [number(after.logprobs[chosen][place], 4)] : []),
          ];
        })} /></details><//>`;
}

const move = (before, after) => html`${chance(Math.exp(before))}${after !== undefined && html` → <b>${chance(Math.exp(after))}</b>`}`;

function Worked({ state }) {
  const found = state.data;
  const row = found?.completions[Math.min(param("look", 0), found.completions.length - 1)];
  if (!row || row.advantage === null) return html`<p class="small soft">Go to phase 3, Compare, to see the calculation here.</p>`;
  const { reward_mean: mean, reward_std: std } = found.measured;
  return html`<${Equation}
    tex=${`A=\\frac{r-\\bar r}{s+10^{-4}}=\\frac{${row.reward}-${mean.toFixed(3)}}{${std.toFixed(4)}+10^{-4}}=${row.advantage.toFixed(3)}`}
    spoken="The advantage is the reward minus the group mean, divided by the group's standard deviation." />
    ${row.push && html`<${Equation}
      tex=${`-\\frac{\\partial L}{\\partial \\log\\pi(o_t)}=\\frac{A}{|o|\\,G}=\\frac{${row.advantage.toFixed(
        3,
      )}}{${row.tokens.length}\\cdot ${found.group_size}}=${row.push[0].toFixed(5)}`}
      spoken="The push on a token is the advantage divided by the length of the answer and by the group size." />`}`;
}
