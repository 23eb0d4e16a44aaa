import { html } from "htm/preact";
export function Compare() { return html`<main class="page" id="main"><h1>Compare</h1></main>`; }
