import { html } from "htm/preact";
export function Findings() { return html`<p>soon</p>`; }
