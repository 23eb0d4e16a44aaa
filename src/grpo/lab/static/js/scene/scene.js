// The landing scene: eight answers to one prompt, scored, compared, pushed; the model moves; again.
import { html } from "htm/preact";
import { useEffect } from "preact/hooks";
import { useStyle } from "../load.js";
import { Term } from "../glossary.js";
import { asQuery, changed } from "./changes.js";
import { gameOf, Prompt, randomPrompt } from "./game.js";
import { AnswerNote } from "./note.js";
import { Onward } from "./onward.js";
import { LAST_ROUND, PHASES, secondsOf, useClock, usePlayer, usePlayerKeys } from "./player.js";
import { useRound } from "./round.js";
import { FIRST, GROUP, prepare } from "./rounds.js";
import { Answer, Columns, GROUP_STYLES, Lean, Mark, Move, RewardSlider, widestOf } from "./row.js";
import { Share } from "./share.js";
import { Unloaded } from "./unloaded.js";

const NAMES = ["Sample", "Score", "Compare", "Push", "Update"];
const [SCORE, COMPARE, PUSH, UPDATE] = [1, 2, 3, 4];

export function Scene({ query }) {
  useStyle("css/scene.css", "css/scene-phases.css", ...GROUP_STYLES);
  const game = gameOf(query, FIRST);
  const player = usePlayer(query);
  const { round, phase, playing } = player;
  usePlayerKeys(player);
  const state = useRound(game, round);
  const ready = Boolean(state.group && (phase < UPDATE || state.settled));
  const isSilent = Boolean(state.advantages?.every((value) => value === 0));
  useClock(player, ready);
  // The next round plays soon.
  useEffect(() => {
    if (playing && ready && phase === UPDATE) prepare();
  }, [playing && ready && phase === UPDATE]);
  const change = (kind, row, value) => player.show({ round, phase: Math.max(phase, SCORE) }, asQuery(changed(game.changes, kind, round, row, value)));
  const another = () => player.restart({ prompt: randomPrompt(), seed: undefined, set: undefined, say: undefined });
  return html`<main class="scene-page" id="main">
    <h1 class="visually-hidden">How GRPO works</h1>
    <section class="scene" aria-label="One group">
      <div class="scene-head">
        <${Prompt} prompt=${game.prompt} solved=${phase >= SCORE} />
        <${Phases} phase=${phase} round=${round} playing=${playing && ready} onShow=${(to) => player.show({ round, phase: to })} />
        <${Share} groups=${state.groups.slice(0, phase < SCORE ? round - 1 : round)} size=${GROUP} rounds=${Math.max(3, round)} />
      </div>
      ${state.error
        ? html`<${Unloaded} error=${state.error} />`
        : html`<${Rows} state=${state} phase=${phase} round=${round} dragged=${game.changes.set[round]} change=${change} />`}
      <${Controls} player=${player} game=${game} isSilent=${isSilent} onAnother=${another} />
    </section>
    <${Onward} />
  </main>`;
}

function Phases({ phase, round, playing, onShow }) {
  return html`<ol class="scene-phases">${NAMES.map(
    (name, place) => html`<li class=${place < phase ? "done" : ""}>
      <button type="button" aria-current=${place === phase ? "step" : undefined} onClick=${() => onShow(place)}>
      ${name}
      ${place === phase && html`<i key=${`${round}/${phase}/${playing}`} class=${playing ? "filling" : ""}
        style=${{ animationDuration: `${secondsOf({ round, phase })}s` }}>
      </i>`}
    </button></li>`,
  )}</ol>`;
}

// `dragged`: the rewards that the reader gave, by row.
function Rows({ state, phase, round, dragged = {}, change }) {
  const { group, rewards, advantages, pushes, after, mean, std } = state;
  const reached = PHASES.slice(0, phase + 1).map((name) => `at-${name}`);
  if (!group) return html`<div class="scene-rows"><${Columns} />
    <ol class="loading" aria-label="Answers" role="status">${Array.from({ length: GROUP }, () => html`<li class="scene-row"></li>`)}</ol></div>`;
  const strongest = Math.max(...pushes.flat().map(Math.abs));
  const widest = widestOf(advantages);
  return html`<div class="scene-rows ${reached.join(" ")} now-${PHASES[phase]}" aria-busy=${phase === UPDATE && !state.settled}>
    <${Columns} ...${phase >= COMPARE ? { mean, std } : {}} edit drag=${phase >= SCORE} pushed=${phase === PUSH} /><ol key=${round}>${group.map(
    (completion, row) => html`<li class="scene-row ${completion.own ? "scene-own" : ""}" style=${{ "--row": row }}>
      <div class="scene-cell-answer">
        <${Answer} place=${row} completion=${completion} pushes=${phase >= PUSH ? pushes[row] : null} strongest=${strongest}
          onWrite=${(text) => change("say", row, text)} />
        <span class="scene-decoded">${completion.own && html`<b>yours</b> `}<${AnswerNote} group=${group} row=${row} /></span></div>
      <div class="scene-cell-reward"><${Mark} correct=${completion.correct} isOverruled=${row in dragged} />
        <${RewardSlider} place=${row} value=${rewards[row]} mean=${mean} onReward=${(value) => change("set", row, value)} />
        <b class="scene-reward-value num" data-number="reward-${row + 1}">${Number(rewards[row].toFixed(2))}</b></div>
      <div class="scene-cell-advantage"><${Lean} value=${advantages[row]} widest=${widest} name="advantage-${row + 1}" /></div>
      <div class="scene-cell-probability">
        <${Move} before=${completion.logprobs} after=${phase === UPDATE ? after?.[row] : null} advantage=${advantages[row]} name="probability-${row + 1}" />
      </div>
    </li>`,
  )}</ol></div>`;
}

function Controls({ player, game, isSilent, onAnother }) {
  const { round, phase, playing, play, step } = player;
  return html`<div class="scene-controls">
    <p class="scene-round">Round <b class="num" data-number="round">${round}</b>
      ${isSilent && phase >= COMPARE && html`<span class="scene-no-signal">No signal</span>`}</p>
    <div class="scene-buttons">
      <button type="button" aria-label="Back" disabled=${round === 1 && phase === 0} onClick=${() => step(-1)}>←</button>
      <button type="button" class="scene-play" aria-label=${playing ? "Pause" : "Play"} onClick=${play}>
        <span class=${playing ? "scene-pause-sign" : "scene-play-sign"}></span></button>
      <button type="button" aria-label="Next" disabled=${round === LAST_ROUND && phase === UPDATE} onClick=${() => step(1)}>→</button>
    </div>
    <p class="scene-settings">
      <button type="button" class="quiet" onClick=${onAnother}>New sum</button> <span class="faint num"><${Term} of="learning-rate">learning rate<//> ${game.lr}
      </span>
    </p>
  </div>`;
}
