// One answer of the group: its tokens, reward, advantage and probability.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { chance, number, signed } from "../format.js";
import { Explained, Term } from "../glossary.js";
import { advantageClass } from "../parts.js";
import { visible } from "../text.js";
import { LONGEST_ANSWER } from "./changes.js";
import { MoveNote, wayOf } from "./note.js";
import { END, known, prepare, probability } from "./rounds.js";

export const GROUP_STYLES = ["css/scene-rows.css", "css/scene-answer.css", "css/scene-numbers.css"];

const PROBABILITY = "How likely the model writes exactly this answer. The length of a bar is the square root, so that small probabilities show.";

// The end of the scale of advantages: the largest of the group, or 1.75.
export const widestOf = (advantages) => Math.max(1.75, ...advantages.map(Math.abs));

export function Tokens({ tokens, pushes, strongest }) {
  return tokens.map((token, place) => {
    const push = pushes && strongest ? pushes[place] / strongest : 0;
    const style = { "--place": place, "--up": Math.max(0, push).toFixed(3), "--down": Math.max(0, -push).toFixed(3) };
    return html`<span class="scene-token ${token === END ? "scene-token-end" : ""} ${advantageClass(push)}" style=${style}
      title=${token === END ? "end of the answer" : undefined}>
      ${token === END ? null : visible(token)}</span>`;
  });
}

// The answer's tokens; a click turns them into a text field.
export function Answer({ place, completion, pushes, strongest, onWrite }) {
  const [text, setText] = useState(null);
  const [problem, setProblem] = useState("");
  const field = useRef(null);
  const opener = useRef(null);
  const left = useRef(false);
  useEffect(() => () => (left.current = true), []);
  useEffect(() => {
    field.current?.focus();
    field.current?.select();
  }, [text === null]);
  function close() {
    setText(null);
    setProblem("");
    requestAnimationFrame(() => opener.current?.focus());
  }
  async function keep(event) {
    event.preventDefault();
    if (text === completion.text || !text) return close();
    try {
      await known(text);
    } catch (error) {
      // border: typed by the reader
      return left.current || setProblem(error.message.replace(/^text: /, ""));
    }
    if (left.current) return; // for another round
    close();
    onWrite(text);
  }
  function open() {
    prepare();
    setText(completion.text);
  }
  if (text !== null) {
    return html`<form class="scene-answer-form" onSubmit=${keep}>
      <input ref=${field} type="text" class="mono" value=${text} maxlength=${LONGEST_ANSWER} spellcheck=${false} autocomplete="off"
        aria-label=${`Answer ${place + 1}`} aria-invalid=${Boolean(problem)}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && close()} />
      <button type="submit" aria-label="Keep">✓</button>
      ${problem && html`<p class="scene-answer-problem" role="alert">${problem}</p>`}
    </form>`;
  }
  return html`<button type="button" class="scene-answer" ref=${opener} aria-label=${`Edit answer ${place + 1}: ${completion.text}`} onClick=${open}>
    <${Tokens} tokens=${completion.tokens} pushes=${pushes} strongest=${strongest} />
  </button>`;
}

// The names of the columns; `mean`, `std`: of the group's rewards, once they are known. `edit`, `drag`: what a reader may change.
export const Columns = ({ mean = null, std = null, edit = false, drag = false, pushed = false }) => html`<div class="scene-row scene-columns">
  <span>${pushed ? html`<${Term} of="push">Push per token<//>` : html`<${Term} of="completion">Answers<//>${edit && html` <i>edit</i>`}`}</span>
  <span><${Term} of="reward">Reward<//>${drag && html` <i>drag</i>`}
    ${mean !== null && html`<span class="scene-mean">mean <b class="num" data-number="mean">${mean.toFixed(2)}</b></span>`}</span>
  <span><${Term} of="advantage">Advantage<//>
    ${std !== null && html`<span class="scene-mean">std <b class="num" data-number="std">${std.toFixed(2)}</b></span>`}</span>
  <span><${Explained} title="Probability" text=${PROBABILITY}>Probability<//></span></div>`;

// The checker's verdict; none where the reader gave the reward.
export const Mark = ({ correct, isOverruled = false }) =>
  isOverruled
    ? html`<span class="scene-mark"></span>`
    : html`<span class="scene-mark ${correct ? "right" : "wrong"}"><span aria-hidden="true">${correct ? "✓" : "✗"}</span>
      <span class="visually-hidden">${correct ? "right" : "wrong"}</span></span>`;

export function RewardSlider({ place, value, mean, onReward }) {
  return html`<span class="scene-reward-slider" style=${{ "--mean": mean }}>
    <input type="range" min="0" max="1" step="0.05" value=${value} aria-label=${`Reward of answer ${place + 1}`} aria-valuetext=${number(value, 2)}
      onInput=${(event) => onReward(Number(event.target.value))} />
  </span>`;
}

// The advantage as a bar from the group's mean: right is above, left below.
export function Lean({ value, widest, name }) {
  return html`<span class="scene-lean" aria-hidden="true"><i class=${advantageClass(value)} style=${{ "--size": (Math.abs(value) / widest).toFixed(4) }}></i>
    </span>
    <b class="scene-lean-value num ${advantageClass(value)}" data-number=${name}>${signed(value)}</b>`;
}

// The probability of the whole answer, before and after the update, as bars on a square-root scale from 0 to 100%.
export function Move({ before, after, advantage, name }) {
  const [from, to] = [probability(before), after ? probability(after) : probability(before)];
  const way = advantageClass(after ? wayOf(before, after) : 0);
  const ends = { "--from": Math.sqrt(from).toFixed(4), "--to": Math.sqrt(to).toFixed(4) };
  return html`<span class="scene-move ${way}" aria-hidden="true" style=${ends}><i></i><s></s></span>
    <span class="scene-move-value num"><span data-number="${name}-before" data-exact=${from}>${chance(from)}</span>
      <span class="scene-move-after"> → <b data-number="${name}-after" data-exact=${to}>${after ? chance(to) : "…"}</b></span></span>
    <${MoveNote} before=${before} after=${after} advantage=${advantage} />`;
}
