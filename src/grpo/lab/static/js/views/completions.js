import { html } from "htm/preact";
export function Completions() { return html`<p>soon</p>`; }
