// A game: the prompt, seed, learning rate and changes from which all its rounds follow. The address names it.
import { html } from "htm/preact";
import { changesOf } from "./changes.js";
import { FIRST } from "./rounds.js";

const PROMPTS = /^[1-9]\d\+[1-9]\d\+[1-9]\d=$/;

// `first`: the prompt and seed where the address names none.
export function gameOf(query, first) {
  const prompt = query.get("prompt") ?? "";
  const seed = Number(query.get("seed") ?? first.seed);
  const isSeed = Number.isInteger(seed) && seed >= 0 && seed < 10000;
  return { prompt: PROMPTS.test(prompt) ? prompt : first.prompt, seed: isSeed ? seed : first.seed, lr: FIRST.lr, changes: changesOf(query) };
}

export function randomPrompt() {
  const numbers = [0, 1, 2].map(() => 10 + Math.floor(90 * Math.random()));
  return `${numbers.join("+")}=`;
}

export const sumOf = (prompt) => prompt.slice(0, -1).split("+").reduce((total, each) => total + Number(each), 0);

export const Prompt = ({ prompt, solved }) =>
  html`<p class="scene-prompt mono">
    <span>${prompt.slice(0, -1).replaceAll("+", " + ")} =</span> <b class=${solved ? "solved" : ""}>${solved ? sumOf(prompt) : "?"}</b></p>`;
