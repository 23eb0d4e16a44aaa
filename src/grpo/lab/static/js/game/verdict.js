// What the reader's part did, in a sentence: the advantage before the update, the change after it.
import { html } from "htm/preact";
import { deviation } from "../core/advantage.js";
import { chance, exact, number, plural, signed } from "../format.js";
import { Advantage } from "../parts.js";
import { isAgainst, MOVED } from "../scene/note.js";
import { probability } from "../scene/rounds.js";

const NoSignal = () => html`<p class="game-verdict"><b>No signal.</b> All eight have the same reward, so every advantage is 0 and the update changes
  nothing.</p>`;

// "5.7%", or "1 in 3,200" where percents say little.
export function odds(value) {
  if (value >= 0.00095) return chance(value);
  return value > 1e-9 ? `1 in ${Number((1 / value).toPrecision(2)).toLocaleString("en-US")}` : "nearly 0";
}

// "5.7% → 8.0%", "stays nearly 0".
export const change = (from, to) => (odds(from) === odds(to) ? `stays ${odds(to)}` : `${odds(from)} → ${odds(to)}`);

export function Verdict({ state, own }) {
  const { rewards, advantages, mean } = state;
  const isSilent = advantages.every((value) => value === 0);
  if (own === null)
    return html`<p class="game-verdict">
      ${isSilent ? "Drag the rewards." : html`The mean is ${number(mean, 2)}: answers above it are pushed up, answers below it down.`}</p>
      ${isSilent && html`<p class="soft small">Equal rewards carry no signal: every advantage is 0.</p>`}`;
  if (isSilent) return html`<${NoSignal} />`;
  const [reward, side] = [number(rewards[own], 2), rewards[own] > mean ? "above" : "below"];
  return html`<p class="game-verdict">Your answer: <${Advantage} value=${advantages[own]} />, because its reward, ${reward}, is ${side} the group's
    mean, ${exact(mean)}.</p>
    <p class="soft small num">(${reward} − ${exact(mean)}) ÷ ${number(deviation(rewards), 4)} = ${signed(advantages[own])}: the distance from the mean in
      standard deviations of the eight rewards.</p>`;
}

export function Moved({ state, own, isLast }) {
  const { group, advantages, after, settled } = state;
  if (!settled) return html`<p class="soft">nano is learning …</p>`;
  if (advantages.every((value) => value === 0)) return html`<${NoSignal} />`;
  const moves = group.map(({ logprobs }, row) => [probability(logprobs), probability(after[row])]);
  const isMovedByOthers = (row) => isAgainst(group[row].logprobs, after[row], advantages[row]);
  if (own === null) {
    const against = group.filter((_, row) => isMovedByOthers(row)).length;
    return html`<p class="game-verdict">${moves.filter(([from, to]) => to > from).length} of 8 became
      likelier.${isLast ? "" : " The next round samples from the model you trained."}</p>
      ${against > 0 && html`<p class="soft small">${plural(against, "answer")} moved against ${against === 1 ? "its" : "their"} advantage. ${MOVED}</p>`}`;
  }
  const [from, to] = moves[own];
  return html`<p class="game-verdict">
    ${odds(from) === odds(to)
      ? `Your answer's probability ${change(from, to)}.`
      : html`Your answer became ${to > from ? "likelier" : "less likely"}: ${odds(from)} → <b>${odds(to)}</b>.`}
    </p>
    ${isMovedByOthers(own) && html`<p class="soft small">That is against its advantage. ${MOVED}</p>`}`;
}
