import { html } from "htm/preact";
export function WhatIf() { return html`<p>soon</p>`; }
