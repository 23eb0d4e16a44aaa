// The eight answers of the game, with reward, advantage and probability.
import { html } from "htm/preact";
import { AnswerNote } from "../scene/note.js";
import { GROUP } from "../scene/rounds.js";
import { Columns, Lean, Mark, Move, RewardSlider, Tokens, widestOf } from "../scene/row.js";

const REACHED = { compare: "at-sample at-score at-compare", update: "at-sample at-score at-compare at-push at-update now-update" };

export function GroupRows({ state, step, grader, own, onReward }) {
  const { group, rewards, advantages, pushes, after, mean, std } = state;
  if (!group) return html`<div class="scene-rows"><${Columns} />
    <ol class="loading" role="status" aria-label="Answers">${Array.from({ length: GROUP }, () => html`<li class="scene-row"></li>`)}</ol></div>`;
  const strongest = Math.max(...pushes.flat().map(Math.abs));
  const widest = widestOf(advantages);
  const moving = step === "update";
  return html`<div class="scene-rows ${REACHED[step]}" aria-busy=${moving && !state.settled}>
    <${Columns} mean=${mean} std=${std} drag=${grader && !moving} pushed=${moving} /><ol>${group.map(
    (completion, row) => html`<li class="scene-row ${row === own ? "scene-own" : ""}">
      <div class="scene-cell-answer">
        <span class="scene-answer"><${Tokens} tokens=${completion.tokens} pushes=${moving ? pushes[row] : null} strongest=${strongest} /></span>
        <span class="scene-decoded">${row === own ? html`<b>yours</b> ` : null}<${AnswerNote} group=${group} row=${row} /></span></div>
      <div class="scene-cell-reward">${!grader && html`<${Mark} correct=${completion.correct} />`}
        ${grader && !moving ? html`<${RewardSlider} place=${row} value=${rewards[row]} mean=${mean} onReward=${(value) => onReward(row, value)} />` : null}
        <b class="scene-reward-value num" data-number="reward-${row + 1}">${Number(rewards[row].toFixed(2))}</b></div>
      <div class="scene-cell-advantage"><${Lean} value=${advantages[row]} widest=${widest} name="advantage-${row + 1}" /></div>
      <div class="scene-cell-probability">
        <${Move} before=${completion.logprobs} after=${moving ? after?.[row] : null} advantage=${advantages[row]} name="probability-${row + 1}" /></div>
    </li>`,
  )}</ol></div>`;
}
