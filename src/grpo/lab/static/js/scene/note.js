// Notes beside an answer: what it is, and why its probability moved against its advantage.
import { html } from "htm/preact";
import { Explained } from "../glossary.js";
import { probability } from "./rounds.js";

// Recorded and computed log-probabilities of one answer differ by less.
const ROUNDING = 1e-4;
const SAME = "Equal answers are one answer to the model: their pushes add up.";
export const MOVED = "All answers share one network and their probabilities add up to 1, so each is also moved by the pushes on the others.";

// (14;16)164 is work: the ones add up to 14, the tens and the carried 1 to 16.
function decoded(text) {
  const [, ones, tens, sum] = /^\((\d+);(\d+)\)(\d+)$/.exec(text) ?? [];
  if (!ones) return /^\d+$/.test(text) ? "guess" : "";
  const isCarried = ones >= 10 && Number(sum) === 10 * tens + (ones % 10);
  return `ones ${ones}, tens ${tens}${isCarried ? " with the carry" : ""}`;
}

// `row`: its place in the group.
export function AnswerNote({ group, row }) {
  const { text } = group[row];
  const first = group.findIndex((each) => each.text === text);
  return first < row ? html`<${Explained} title="Same answer" text=${SAME}>same as row ${first + 1}<//>` : decoded(text);
}

// +1, −1, or 0 where the probability of a completion stays.
export function wayOf(before, after) {
  const [from, to] = [probability(before), probability(after)];
  return Math.abs(to - from) > ROUNDING * from ? Math.sign(to - from) : 0;
}

export const isAgainst = (before, after, advantage) => wayOf(before, after) * advantage < 0;

export const MoveNote = ({ before, after, advantage }) =>
  after &&
  isAgainst(before, after, advantage) &&
  html`<small class="scene-note"><${Explained} title="Moved by others" text=${MOVED}>moved by others<//></small>`;
