// The way in: all chapters, and a newcomer's path through one recorded run.
import { html } from "htm/preact";
import { CHAPTERS, EXTRA } from "./chapters.js";
import { Link } from "./route.js";

export function Learn() {
  return html`<main class="lesson" id="main">
    <header class="lesson-head"><p class="lesson-number">Learn</p><h1>How a model learns from its own answers</h1>
      <p class="lesson-lead">Every number here is computed by the functions that train. Move something, and see.</p></header>
    <ol class="chapters">${[...CHAPTERS, EXTRA].map(({ slug, number, title, lead }) => html`<li><${Link} to=${`/learn/${slug}`}><span class="chapter-number">${number ?? "·"}</span><span><b>${title}</b><span class="soft">${lead}</span></span><//></li>`)}</ol>
  </main>`;
}
