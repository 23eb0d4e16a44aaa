import { html } from "htm/preact";
export function Difficulty() { return html`<p>soon</p>`; }
