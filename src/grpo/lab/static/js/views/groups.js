import { html } from "htm/preact";
export function Groups() { return html`<p>soon</p>`; }
