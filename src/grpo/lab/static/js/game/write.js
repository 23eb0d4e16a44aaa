// The reader writes an answer, in nano's characters.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { LONGEST_ANSWER } from "../scene/changes.js";
import { known } from "../scene/rounds.js";

export function WriteForm({ last, onWrite }) {
  const [text, setText] = useState(last);
  const [problem, setProblem] = useState("");
  const field = useRef(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), []);
  async function join(event) {
    event.preventDefault();
    if (!text) return setProblem("Write an answer first.");
    try {
      await known(text);
    } catch (error) {
      // border: typed by the reader
      return setProblem(error.message.replace(/^text: /, ""));
    }
    onWrite(text);
  }
  return html`<form class="game-write" onSubmit=${join}>
    <label><span class="soft">Your answer</span>
      <input ref=${field} type="text" class="mono" name="answer" value=${text} maxlength=${LONGEST_ANSWER} spellcheck=${false} autocomplete="off"
        aria-invalid=${Boolean(problem)} aria-describedby="write-note" onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit" class="primary">Join the group</button>
    ${problem && html`<p class="game-problem" role="alert">${problem}</p>`}
    <p class="soft small" id="write-note">Seven answers of the model nano join yours. Only the final number is checked. nano guesses a number, or
      works it out, as in <code>(12;10)102</code> for 35 + 31 + 36: the ones add up to 12, the tens with the carry to 10.</p>
  </form>`;
}
