// Outcome rewards and process rewards. The reader can flip the reward of any step.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Only, param, Play, Question, Section, Trial, useAnswer, Verdict } from "../lesson.js";
import { percent, signed } from "../format.js";
import { Advantage, Reward, Segmented } from "../parts.js";
import { setQuery } from "../route.js";
import { PROBLEMS } from "../offline/problems.js";
import { Asked, Tokens } from "./answers.js";

export function Steps() {
  const turned = param("turned", "");
  const asked = { prompt: param("step-prompt", "37+85+46="), seed: param("step-seed", 1), turned };
  const state = useAnswer("credit", "steps", asked);
  const mode = param("mode", "outcome");
  const turn = (id) => {
    const now = new Set(turned.split(",").filter(Boolean));
    now.has(id) ? now.delete(id) : now.add(id);
    setQuery({ turned: [...now].join(",") || undefined });
  };
  return html`<${Section} id="steps" title="Outcome and process rewards"
    lead="An outcome reward scores the final answer, a process reward each step of the working. Flip a step’s reward and see which tokens change.">
    <${Play} label="Outcome and process rewards on one group">
      <${Asked} prompt=${asked.prompt} promptName="step-prompt" seedName="step-seed" recorded=${PROBLEMS} />
      <div class="play-bar">
        <${Segmented} label="Reward" options=${[["outcome", "outcome"], ["process", "process"]]} value=${mode}
          onChange=${(key) => setQuery({ mode: key === "outcome" ? undefined : key })} />
        <button type="button" disabled=${!turned} onClick=${() => setQuery({ turned: undefined })}>Reset</button></div>
      <${Fetched} state=${state} height="24rem">
        ${(found) => html`<ol class="step-rows ${mode}" aria-label="The group">${distinct(found.completions).map(({ done, count }) => html`<li>
        <span class="answer-advantage">${mode === "outcome" ? html`<${Advantage} value=${done.outcome} />` : null}</span>
        <span class="step-list">${done.steps.map((step, place) => html`<span class="step-part">
            <${Tokens} tokens=${done.tokens.slice(step.begin, step.end + 1)}
              values=${done.tokens.slice(step.begin, step.end + 1).map((_, at) => (mode === "outcome" ? done.outcome : done.process[step.begin + at]))} />
            <button type="button" class="mark ${step.turned ? "turned" : ""}" aria-pressed=${step.turned} onClick=${() => turn(step.id)}>
              <${Reward} value=${step.reward} />
              <span class="visually-hidden"> for ${place === done.steps.length - 1 ? "the answer" : `step ${place + 1}`} of ${done.text}; flip it</span>
            </button>
            <span class="tiny num soft">${signed(mode === "outcome" ? done.outcome : done.process[step.begin])}</span>
          </span>`)}</span>
        ${count > 1 && html`<span class="tiny faint num">×${count}</span>`}
      </li>`)}</ol>
      <p class="small soft">
        ${mode === "outcome" ? "Only the answer’s reward counts; all tokens share its advantage." : "A token is credited with its own step and all later ones."}
      </p>
      <${Only} depth="math">
        <${Equation}
          tex="z_j=\\frac{r_j-\\mathrm{mean}(\\mathbf r)}{\\mathrm{std}(\\mathbf r)+10^{-4}},\\qquad A_{i,t}=\\sum_{j:\\,\\mathrm{end}_i(j)\\ge t} z_{i,j}"
          spoken="All step rewards of a group are normalised together. A token's advantage is the sum over the steps that end at it or after it." />
        <${Example} found=${found} /><//>`}<//>
      <${Only} depth="code"><${Code} slug="credit" source="process_advantages" /><${Code} slug="credit" source="marks" title="How this task scores its steps" />
        <${Code} slug="credit" source="score_steps" title="From text positions to tokens" /><//>
    <//>
    <${Only} depth="math code">
      <p>Process rewards need a source. Here a program knows the right working; elsewhere a trained model judges it and can be wrong. They also reward every
        step that is present, so a longer answer collects more: with all steps right, the first tokens get the largest sum.</p>
      <${Question} name="q-light" ask="Add process rewards, and then a small critic, one more output of the policy network. How does that change learning here?"
        options=${[["more", "It learns faster"], ["same", "About the same"], ["less", "It learns slower"]]}>
        ${(picked) => html`<${Light} picked=${picked} />`}<//>
    <//>
  <//>`;
}

function Light({ picked }) {
  return html`<${Trial} name="outcome-and-process">${(outcome) => {
    const curve = outcome.arms.map((arm) => [arm.label, arm.accuracy?.after.mean ?? null, arm.accuracy?.after.std ?? null]);
    if (curve.some(([, mean]) => mean === null)) return null;
    const [, steps, critic] = curve.map(([, mean]) => mean);
    const noise = Math.max(...curve.map(([, , std]) => std ?? 0));
    const right = critic - steps > noise ? "more" : steps - critic > noise ? "less" : "same";
    return html`<${Verdict} picked=${picked} right=${right}>
      <p>
        ${curve.map(([label, mean, std], place) => html`${place ? ", " : ""}${label}: <b>${percent(mean, 1)}</b>
          ${std === null ? "" : ` ± ${percent(std, 1)}`}`)} of
        held-out problems right after training. Process rewards add nothing here, because the working is right whenever it is written. They matter where answers
        go wrong in the middle. A critic that shares the policy network needs almost no memory, but until it is trained its credit is noise.</p>
      <//>`;
  }}<//>`;
}

function Example({ found }) {
  const marks = found.completions.flatMap((done) => done.steps.map((step) => step.reward));
  const first = found.completions.find((done) => done.steps.length > 1) ?? found.completions[0];
  return html`<p class="small soft">The group has ${marks.length} step rewards, ${marks.filter(Boolean).length} of them 1. In <code>${first.text}</code> the
    first token's advantage is ${signed(first.process[0], 3)}, the last token's ${signed(first.process.at(-1), 3)}.</p>`;
}

// Equal answers share one row, unless the reader flipped a reward of one of them.
function distinct(completions) {
  const rows = new Map();
  for (const done of completions) {
    const key = done.steps.some((step) => step.turned) ? done.steps[0].id : `${done.text} ${done.process[0]}`;
    rows.set(key, { done: rows.get(key)?.done ?? done, count: (rows.get(key)?.count ?? 0) + 1 });
  }
  return [...rows.values()];
}
