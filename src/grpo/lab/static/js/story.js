// The story of one update.
import { html } from "htm/preact";
import { Link } from "./route.js";

export function Story() {
  return html`<main class="page narrow" id="main"><h1>Story</h1><p class="soft">The chapters tell it: <${Link} to="/learn">Learn<//>.</p></main>`;
}
