// An episode as a strip of turns: what the model wrote, coloured by advantage, and what it read, grey.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { number, plural } from "./format.js";
import { advantageClass, Hint, strength } from "./parts.js";
import { Untrusted, visible } from "./text.js";

export const WHY_NO_GRADIENT =
  "These tokens were read, not sampled: the policy did not choose them, so their probabilities are not part of the loss and they have no gradient.";

const FAULTS = { error: "error", timeout: "timed out", crash: "crashed", failure: "failed" };

// A text; of a long one, its beginning and end, until the reader opens it.
export function LongText({ text }) {
  const [whole, setWhole] = useState(false);
  if (text.length <= 600) return html`<${Untrusted} text=${text} />`;
  return html`<${Untrusted} text=${whole ? text : `${text.slice(0, 400)} … ${text.slice(-200)}`} />
    <button type="button" class="small" onClick=${() => setWhole(!whole)}>${whole ? "Shorten" : `Show all ${number(text.length)} characters`}</button>`;
}

const SHORT = 24; // characters

// In one row where all texts are short.
export function Strip({ turns, advantage, label = "Turns of the episode" }) {
  let count = 0;
  const short = turns.every((turn) => turn.text.length <= SHORT && !turn.calls?.length);
  return html`<ol class="strip ${short ? "short" : ""}" aria-label=${label}>
    ${turns.map((turn) => (turn.who === "model"
      ? html`<${Written} turn=${turn} number=${++count} advantage=${turn.advantage ?? advantage} />`
      : html`<${Read} turn=${turn} />`))}
    </ol>`;
}

function Written({ turn, number: place, advantage }) {
  return html`<li class="written ${advantageClass(advantage)}" style=${strength(advantage)}>
    <p class="strip-head tiny"><b>Turn ${place}</b>${turn.tokens !== undefined && html`<span class="num">${plural(turn.tokens, "token")}</span>`}
      ${typeof turn.reward === "number" && html`<span class="num">reward ${number(turn.reward, 2)}</span>`}<${Fault} of=${turn} />${turn.note}</p>
    <${LongText} text=${turn.text} />
  </li>`;
}

function Read({ turn }) {
  const calls = turn.calls ?? [];
  return html`<li class="read">
    <p class="strip-head tiny"><b>${calls.length ? plural(calls.length, "tool call") : turn.who === "tool" ? "Tool" : "Reply"}</b>
      ${!calls.length && html`<${Fault} of=${turn} />`}<${Hint} label="Why has it no gradient?" text=${WHY_NO_GRADIENT} /></p>
    ${calls.length
      ? html`<ul class="calls">
        ${calls.map((call) => html`<li>
          <p class="call"><${Untrusted} text=${call.name || "not a call"} /> <${Untrusted} text=${call.arguments} class="soft" /> <${Fault} of=${call} /></p>
          <${LongText} text=${call.answer} /></li>`)}
      </ul>`
      : html`<${LongText} text=${turn.text} />`}
  </li>`;
}

function Fault({ of }) {
  return of.fault ? html`<span class="warn">${FAULTS[of.fault] ?? of.fault}</span>` : null;
}

// The same in one line.
export function Line({ turns }) {
  return html`<bdi class="untrusted clip episode-line" dir="ltr">
    ${turns.map((turn) => html`<span class=${turn.who === "model" ? "written" : "read"}>${visible(turn.text)}</span> `)}</bdi>`;
}
