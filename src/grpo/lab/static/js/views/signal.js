import { html } from "htm/preact";
export function Signal() { return html`<p>soon</p>`; }
