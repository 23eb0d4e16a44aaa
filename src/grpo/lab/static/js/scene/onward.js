// Below the scene: where to go on.
import { html } from "htm/preact";
import { useStyle } from "../load.js";
import { Link } from "../route.js";

const PLACES = [
  ["/story", "Story", "How it works, in five minutes."],
  ["/play", "Play", "Write an answer or be the grader, and move the model."],
  ["/learn", "Learn", "Eight chapters, from the idea to the code."],
];

export function Onward() {
  useStyle("css/onward.css");
  return html`<section class="onward" aria-label="Go on">
    ${PLACES.map(([to, name, text]) => html`<${Link} to=${to} class="onward-link"><b>${name}</b><span class="soft">${text}</span><//>`)}
    <div class="onward-link"><b>Your own run</b><pre class="command">pip install "grpo-lab[lab]"${"\n"}grpo train</pre></div>
  </section>`;
}
