// The group of the story: eight answers, each with what the screen has come to: reward, advantage, push, probability.
import { html } from "htm/preact";
import { Tokens } from "../chapters/answers.js";
import { chance, signed } from "../format.js";
import { Advantage, advantageClass, Reward } from "../parts.js";
import { probability } from "../scene/rounds.js";

const HEAD = { reward: "reward", advantage: "advantage", push: "push per token", moved: "before → after" };

// `columns` names what is shown beside the answers; `rewards` and `advantages` replace those of the group.
export function Rows({ found, columns = [], rewards, advantages, onReward }) {
  const given = found.completions.map((row, place) => ({ ...row, reward: rewards?.[place] ?? row.reward, advantage: advantages?.[place] ?? row.advantage }));
  const largest = Math.max(...given.map((row) => Math.abs(row.push[0])));
  const far = Math.max(1, ...given.map((row) => Math.abs(row.advantage)));
  const tinted = columns.includes("push");
  return html`<div class="story-group">
    <p class="story-head tiny" aria-hidden="true"><span>answer</span>${columns.map((name) => html`<span class=${`story-${name}`}>${HEAD[name]}</span>`)}</p>
    <ol aria-label="The group">${given.map((row, place) => html`<li key=${place}>
      <span class="story-text"><${Tokens} tokens=${row.tokens.slice(0, tinted ? undefined : -1)} values=${tinted ? row.push : undefined} unit=${largest / 2} />
      </span>
      ${columns.map((name) => html`<span class=${`story-${name}`}>${CELLS[name]({ row, place, far, found, onReward })}</span>`)}</li>`)}</ol></div>`;
}

const CELLS = {
  reward: ({ row, place, onReward }) => html`${onReward && html`<input type="range" min="0" max="1" step="0.1" value=${row.reward}
    aria-label=${`Reward of answer ${place + 1}`} onInput=${(event) => onReward(place, Number(event.target.value))} />`}
    <${Reward} value=${row.reward} />`,
  advantage: ({ row, far, place }) => html`<span class="story-bar" aria-hidden="true">
    <i class=${advantageClass(row.advantage)} style=${{ [row.advantage >= 0 ? "left" : "right"]: "50%", width: `${(50 * Math.abs(row.advantage)) / far}%` }}>
    </i>
  </span>
    <span data-number=${`story-advantage-${place}`}><${Advantage} value=${row.advantage} /></span>`,
  push: ({ row, place }) => html`<b class="num ${advantageClass(row.push[0])}" data-number=${`story-push-${place}`}>${signed(1000 * row.push[0], 0)}
  </b>`,
  moved: ({ row, place, found }) => {
    const [before, after] = [row.logprobs, found.after.logprobs[place]].map(probability);
    const way = advantageClass(after - before);
    return html`<span class="num">${chance(before)} → <b class=${way} data-number=${`story-after-${place}`}>${chance(after)}</b></span>`;
  },
};
