import { html } from "htm/preact";
export function Tokens() { return html`<p>soon</p>`; }
