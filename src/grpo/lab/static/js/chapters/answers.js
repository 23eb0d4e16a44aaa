// Completions in chapters: text, reward and advantage.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { param } from "../lesson.js";
import { Advantage, advantageClass, Reward, strength } from "../parts.js";
import { isStatic, setQuery } from "../route.js";
import { visible } from "../text.js";

// The problem: a sum of three two-digit numbers, the task of `nano`. `seed` selects the random numbers. `recorded`: the
// problems that a page without a server has.
export function Asked({ prompt, promptName = "prompt", seedName = "seed", recorded = null }) {
  const seed = param(seedName ?? "", 1);
  const pick = () => 10 + Math.floor(90 * Math.random());
  const another = () => (recorded && isStatic() ? recorded[(recorded.indexOf(prompt) + 1) % recorded.length] : `${pick()}+${pick()}+${pick()}=`);
  return html`<div class="asked">
    <span class="asked-prompt">${prompt}</span>
    <span class="asked-buttons">
      <button type="button" onClick=${() => setQuery({ [promptName]: another() })}>Another problem</button>
      ${seedName && html`<button type="button" onClick=${() => setQuery({ [seedName]: (seed + 1) % 10000 })}>Sample again</button>`}
    </span>
  </div>`;
}

// How to read an answer with working, for a sum of three: the totals of the ones and of the tens, then the answer.
export function HowToRead({ prompt }) {
  const numbers = prompt.replace("=", "").split("+").map(Number);
  if (numbers.length !== 3 || numbers.some((one) => !Number.isInteger(one) || one > 99)) return null;
  const [ones, tens] = [numbers.map((one) => one % 10), numbers.map((one) => Math.floor(one / 10))];
  const low = ones.reduce((sum, one) => sum + one);
  const carried = Math.floor(low / 10);
  const high = tens.reduce((sum, one) => sum + one, carried);
  return html`<p class="small soft how-to-read"><code>(${low};${high})${10 * high + (low % 10)}</code> is an answer with working:
    ones ${ones.join(" + ")} = ${low}; tens ${tens.join(" + ")}${carried ? ` + ${carried} carried` : ""} = ${high}.</p>`;
}

// Tokens as small tiles; `values`, where given, colour them like advantages.
export function Tokens({ tokens, values, unit = 1, chosen, onChoose, label }) {
  return html`<span class="glyphs" role=${onChoose ? "group" : undefined} aria-label=${onChoose ? label : undefined}>${tokens.map((token, place) => {
    const value = values?.[place];
    const look = `glyph ${value === undefined || value === null ? "" : advantageClass(value)} ${place === chosen ? "chosen" : ""}`;
    const shown = token === "end" || token === "<end>" ? html`<i class="end">end</i>` : visible(token);
    return onChoose
      ? html`<button type="button" class=${look} style=${strength(value, unit)} aria-pressed=${place === chosen} onClick=${() => onChoose(place)}>${shown}
      </button>`
      : html`<span class=${look} style=${strength(value, unit)}>${shown}</span>`;
  })}</span>`;
}

// One line per answer: advantage, text, reward and an optional fourth column. `head` has their titles.
export function Answers({ rows, most = 12, label, head }) {
  const empty = (name) => rows.every((row) => row[name] === undefined || row[name] === null);
  const columns = `${empty("advantage") ? "without-advantage" : ""} ${empty("reward") ? "without-reward" : ""}`;
  const [all, setAll] = useState(false);
  const shown = all ? rows : rows.slice(0, most);
  return html`<div class="answers ${columns}">
    ${head && html`<p class="answers-head tiny" aria-hidden="true"><span>${head[0]}</span><span>${head[1]}</span><span>${head[2]}</span>
      ${head[3] && html`<span class="answer-more">${head[3]}</span>`}</p>`}
    <ol aria-label=${label}>${shown.map(
    (row) => html`<li class=${row.own ? "own" : ""}>
      <span class="answer-advantage">
        ${row.advantage === undefined || row.advantage === null ? html`<span class="faint">·</span>` : html`<${Advantage} value=${row.advantage} />`}</span>
      <span class="answer-text">
        ${row.tokens
          ? html`<${Tokens} tokens=${row.tokens} values=${row.values} unit=${row.unit} />`
          : html`<bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi>`}
        ${row.note && html`<span class="small soft answer-note">${row.note}</span>`}</span>
      <span class="answer-reward">
        ${row.reward === undefined || row.reward === null ? html`<span class="faint">·</span>` : html`<${Reward} value=${row.reward} />`}</span>
      ${row.more && html`<span class="answer-more num small">${row.more}</span>`}
    </li>`,
  )}</ol>
  ${rows.length > most && html`<button type="button" class="small" aria-expanded=${all} onClick=${() => setAll(!all)}>
    ${all ? "Show fewer" : `Show all ${rows.length}`}</button>`}
    </div>`;
}

// Steps a value of the address by one at an interval, up to the last.
export function usePlaying(name, now, last, pause) {
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return;
    if (now >= last) return setPlaying(false);
    const timer = setTimeout(() => setQuery({ [name]: now + 1 }), pause);
    return () => clearTimeout(timer);
  }, [playing, now]);
  const toggle = () => {
    if (!playing && now >= last) setQuery({ [name]: undefined });
    setPlaying(!playing);
  };
  return [playing, toggle];
}

export function PlayButton({ playing, toggle, again }) {
  return html`<button type="button" class="primary" aria-pressed=${playing} onClick=${toggle}>${playing ? "❚❚ Pause" : again ? "↺ Play again" : "▶ Play"}
    </button>`;
}

// A bar; `share` is its length relative to the longest.
export function Bar({ share, kind = "" }) {
  return html`<span class="lab-bar ${kind}" aria-hidden="true"><i style=${{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }}></i></span>`;
}
