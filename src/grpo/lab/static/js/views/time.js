import { html } from "htm/preact";
export function Time() { return html`<p>soon</p>`; }
