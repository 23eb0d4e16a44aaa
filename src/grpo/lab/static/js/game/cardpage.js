// The end of a game: a card as a picture, and the address that reproduces it.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { plural } from "../format.js";
import { Loading } from "../parts.js";
import { sumOf } from "../scene/game.js";
import { useRound } from "../scene/round.js";
import { likelihood, probability } from "../scene/rounds.js";
import { Unloaded } from "../scene/unloaded.js";
import { CARD, drawCard } from "./card.js";
import { READER } from "./part.js";
import { change, odds } from "./verdict.js";

export function CardPage({ play, onAgain }) {
  const { game, role, round } = play;
  const last = useRound(game, round);
  const [chances, setChances] = useState(null);
  const [error, setError] = useState(null);
  const canvas = useRef(null);
  // The answer that the card follows: the reader's, or the one with the grader's highest reward.
  const place = role === "answer" ? READER : (last.rewards?.indexOf(Math.max(...last.rewards)) ?? 0);
  const answer = last.group?.[place];
  useEffect(() => {
    if (!answer) return;
    let here = true;
    Promise.all([1, round + 1].map((each) => likelihood(game, each, answer.ids))).then(
      (found) => here && setChances(found.map(probability)),
      (problem) => here && setError(problem),
    );
    return () => (here = false);
  }, [answer]);
  // Of nano's answers, in the first and the last round.
  const nanos = last.groups.map((group) => group.filter(({ own }) => !own));
  const right = nanos.map((group) => group.filter(({ correct }) => correct).length);
  const isReady = Boolean(answer && chances);
  useEffect(() => {
    if (isReady) drawCard(canvas.current, cardOf(play, { last, chances, place, right: right.map((count) => `${count}/${nanos[0].length}`) }));
  }, [isReady]);
  if (last.error ?? error) return html`<${Unloaded} error=${last.error ?? error} />`;
  if (!isReady) return html`<${Loading} height="24rem" />`;
  const [before, after] = chances.map(odds);
  const over = `over ${plural(round, "round")}`;
  return html`<section class="game-card" aria-label="Card">
    <canvas ref=${canvas} width=${CARD.width} height=${CARD.height} role="img" aria-label=${`${game.prompt} ${answer.text}: ${change(...chances)} ${over}`}>
    </canvas>
    <dl class="game-numbers">
      <div><dt>${role === "answer" ? "Your answer" : last.advantages.some(Boolean) ? "Your favourite" : "First answer"}</dt><dd class="mono">${answer.text}</dd>
      </div>
      <div><dt>Probability ${over}</dt>
        <dd class="num">
          <span data-number="before" data-exact=${chances[0]}>${before === after ? "stays" : `${before} →`}
          </span> <b data-number="after" data-exact=${chances[1]}>${after}</b>
        </dd>
      </div>
      <div><dt>Right answers of nano's ${nanos[0].length}</dt>
        <dd class="num">${round > 1 && `${right[0]} in round 1, `}<b data-number="right">${right.at(-1)}</b> in round ${round}</dd>
      </div>
    </dl>
    <${Sharing} canvas=${canvas} onAgain=${onAgain} />
  </section>`;
}

const cardOf = ({ game, role, round }, { last, chances, place, right }) => ({
  prompt: game.prompt,
  sum: sumOf(game.prompt),
  role,
  rounds: round,
  text: last.group[place].text,
  advantage: last.advantages[place],
  chances: chances.map(odds),
  way: Math.sign(chances[1] - chances[0]),
  right,
  rows: last.group.map(({ text, correct }, row) => ({ text, correct, advantage: last.advantages[row], chosen: row === place })),
});

function Sharing({ canvas, onAgain }) {
  const [copied, setCopied] = useState(false);
  function save() {
    canvas.current.toBlob((picture) => {
      const url = URL.createObjectURL(picture);
      Object.assign(document.createElement("a"), { href: url, download: "grpo-group.png" }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    });
  }
  const copy = () => navigator.clipboard.writeText(location.href).then(() => setCopied(true));
  return html`<div class="game-sharing">
    <button type="button" class="primary" onClick=${save}>Download picture</button>
    <label class="game-link"><span class="visually-hidden">Link to this card</span>
      <input type="text" readonly value=${location.href} onFocus=${(event) => event.target.select()} /></label>
    ${navigator.clipboard && html`<button type="button" onClick=${copy}>${copied ? "Copied" : "Copy link"}</button>`}
    <button type="button" onClick=${onAgain}>Play again</button>
  </div>`;
}
