// Untrusted text. It reaches the page only as text nodes; invisible and direction-changing characters are
// shown as their code.
import { html } from "htm/preact";

// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;

function name(character) {
  const code = character.codePointAt(0);
  if (code === 0x1b) return "ESC";
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

export function visible(text) {
  if (!HIDDEN.test(text)) return text;
  const parts = [];
  let plain = "";
  for (const character of text) {
    if (!HIDDEN.test(character)) {
      plain += character;
      continue;
    }
    if (plain) parts.push(plain);
    plain = "";
    parts.push(html`<span class="control">${name(character)}</span>`);
  }
  return plain ? [...parts, plain] : parts;
}

export function Untrusted({ text, class: extra = "" }) {
  if (!text) return html`<span class="faint">(nothing)</span>`;
  return html`<bdi class="untrusted ${extra}" dir="ltr">${visible(text)}</bdi>`;
}
