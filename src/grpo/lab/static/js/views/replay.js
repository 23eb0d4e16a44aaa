import { html } from "htm/preact";
export function Replay() { return html`<p>soon</p>`; }
