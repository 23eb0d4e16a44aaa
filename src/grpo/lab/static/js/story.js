// The five-minute story: one update of GRPO, one idea a screen. The address holds the screen.
import { html } from "htm/preact";
import { useEffect, useRef } from "preact/hooks";
import { Fetched, param, useAnswer, useStyle } from "./lesson.js";
import { setQuery } from "./route.js";
import { SCREENS } from "./story/screens.js";

// A sum that a person reads at once, and a group with four right answers of eight.
const ASKED = { phase: 4, prompt: "24+31+18=", g: 8, seed: 1, lr: 0.0003 };

export function Story() {
  useStyle("css/story.css", "css/chapter-why.css");
  const last = SCREENS.length - 1;
  const at = Math.max(0, Math.min(last, Math.round(param("s", 1)) - 1));
  const state = useAnswer("why", "update", ASKED);
  const heading = useRef(null);
  const show = (to) => {
    setQuery({ s: to ? to + 1 : undefined }, { replace: false });
    scrollTo(0, 0);
    heading.current?.focus({ preventScroll: true });
  };
  useEffect(() => {
    const press = (event) => {
      if (event.target.closest?.("input, textarea, select, [role=radiogroup]") || event.metaKey || event.ctrlKey || event.altKey) return;
      if (event.key === "ArrowLeft" && at > 0) show(at - 1);
      else if (event.key === "ArrowRight" && at < last) show(at + 1);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [at]);
  const { title, words, Demo } = SCREENS[at];
  return html`<main class="story" id="main">
    <h1 class="visually-hidden">GRPO in five minutes</h1>
    <ol class="story-path" aria-label="Screens">
      ${SCREENS.map((screen, place) => html`<li>
        <button type="button" aria-label=${`${place + 1}: ${screen.title}`} aria-current=${place === at ? "step" : undefined} class=${place < at ? "seen" : ""}
          onClick=${() => show(place)}>
        </button>
      </li>`)}
    </ol>
    <section class="story-screen" aria-labelledby="story-title" key=${at}>
      <h2 id="story-title" tabIndex="-1" ref=${heading}>${title}</h2>
      <${Fetched} state=${state} height="26rem">${(found) => html`<p class="story-words">${words(found)}</p><${Demo} found=${found} />`}<//>
    </section>
    <div class="story-turn"><button type="button" disabled=${at === 0} onClick=${() => show(at - 1)}>← Back</button>
      ${at < last && html`<button type="button" class="primary" onClick=${() => show(at + 1)}>Next →</button>`}</div>
  </main>`;
}
