// Play the group: write one of eight answers, or grade all eight; update nano; end with a card.
import { html } from "htm/preact";
import { useStyle } from "../load.js";
import { Segmented } from "../parts.js";
import { setQuery } from "../route.js";
import { asQuery, changed, changesOf } from "../scene/changes.js";
import { Prompt, randomPrompt } from "../scene/game.js";
import { useRound } from "../scene/round.js";
import { GROUP_STYLES } from "../scene/row.js";
import { Unloaded } from "../scene/unloaded.js";
import { CardPage } from "./cardpage.js";
import { playOf, READER, ROUNDS } from "./part.js";
import { GroupRows } from "./rows.js";
import { Moved, Verdict } from "./verdict.js";
import { WriteForm } from "./write.js";

const ROLES = [["answer", "Write an answer"], ["grader", "Be the grader"]];
const START = { round: undefined, step: undefined };
const FRESH = { set: undefined, say: undefined, ...START };

export function Play({ query }) {
  useStyle("css/scene.css", ...GROUP_STYLES, "css/game.css");
  const play = playOf(query);
  const { game, role, round, step } = play;
  const go = (changes) => setQuery(changes, { replace: false });
  // A grader's rewards and a writer's answers stay in the address while the reader plays the other part.
  function change(kind, row, value) {
    const kept = asQuery(changed({ set: {}, say: {}, [kind]: changesOf(query)[kind] }, kind, round, row, value))[kind];
    setQuery({ [kind]: kept, step: kind === "set" ? step : value && "compare" }, { replace: kind === "set" });
  }
  return html`<main class="page game" id="main">
    <div class="game-head">
      <div><h1>Play the group</h1><${Prompt} prompt=${game.prompt} solved=${step !== "write"} /></div>
      <div class="game-role">
        <${Segmented} label="Your part" options=${ROLES} value=${role} onChange=${(as) => go({ ...START, as: as === "answer" ? undefined : as })} />
        <button type="button" onClick=${() => go({ ...FRESH, prompt: randomPrompt(), seed: undefined })}>New sum</button>
      </div>
    </div>
    ${step === "card"
      ? html`<${CardPage} play=${play} onAgain=${() => go(FRESH)} />`
      : html`<${Round} key=${round} play=${play} onChange=${change} onStep=${go} />`}
  </main>`;
}

function Round({ play, onChange, onStep }) {
  const { game, role, round, step } = play;
  const state = useRound(game, round);
  if (state.error) return html`<${Unloaded} error=${state.error} />`;
  const own = role === "answer" ? READER : null;
  const rewrite = () => onChange("say", READER, undefined);
  return html`<section class="game-round" aria-label=${`Round ${round}`}>
    <p class="game-count">Round <b class="num" data-number="round">${round}</b> <span class="faint">of ${ROUNDS}</span></p>
    ${step === "write"
      ? html`<${WriteForm} last=${game.changes.say[round - 1]?.[READER] ?? ""} onWrite=${(text) => onChange("say", READER, text)} />`
      : html`<${GroupRows} state=${state} step=${step} grader=${role === "grader"} own=${own} onReward=${(row, value) => onChange("set", row, value)} />
        <div class="game-say" aria-live="polite">
          ${state.group &&
            (step === "compare" ? html`<${Verdict} state=${state} own=${own} />` : html`<${Moved} state=${state} own=${own} isLast=${round === ROUNDS} />`)}
        </div>
        <div class="game-buttons">${
          step === "compare"
            ? html`<button type="button" class="primary" disabled=${!state.group} onClick=${() => onStep({ step: "update" })}>Update</button>
                ${own !== null && html`<button type="button" onClick=${rewrite}>Write another</button>`}`
            : html`${round < ROUNDS && html`<button type="button" class="primary" onClick=${() => onStep({ step: undefined, round: round + 1 })}>Next
              round</button>`}
                <button type="button" class=${round < ROUNDS ? "" : "primary"} onClick=${() => onStep({ step: "card" })}>Finish</button>`
        }</div>`}
  </section>`;
}
