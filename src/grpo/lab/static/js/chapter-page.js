// The page of a chapter: its number, depth, sections and links to other chapters.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { chapterOf, CHAPTERS, EXTRA, seeAlso } from "./chapters.js";
import { Depth } from "./lesson.js";
import { centreCurrent, Failed, Segmented } from "./parts.js";
import { address, Link, route, setQuery } from "./route.js";

const DEPTHS = [["intuition", "Intuition"], ["math", "Math"], ["code", "Code"]];
const depthOf = (query) => (DEPTHS.some(([key]) => key === query.get("depth")) ? query.get("depth") : "intuition");

// The frame of a chapter: its number, depth, and links to other chapters.
function Lesson({ slug, depth, children }) {
  const about = chapterOf(slug);
  const place = CHAPTERS.indexOf(about);
  const [before, after] = place < 0 ? [] : [CHAPTERS[place - 1], CHAPTERS[place + 1]];
  return html`<main class="lesson" id="main">
    <${ChapterList} here=${slug} depth=${depth} />
    <header class="lesson-head">
      <p class="lesson-number">${about.number ? `Chapter ${about.number}` : "Reference"}</p>
      <h1>${about.title}</h1>
      <p class="lesson-lead">${about.lead}</p>
      <${Segmented} label="Depth" options=${DEPTHS} value=${depth} onChange=${(key) => setQuery({ depth: key === "intuition" ? undefined : key })} />
    </header>
    <${Depth.Provider} value=${depth}>${children}<//>
    <footer class="lesson-foot">
      <${Done} about=${about} depth=${depth} before=${before} after=${after} />
      <nav aria-label="See also"><h2>See also</h2>
        <ul>
          ${seeAlso(slug).map(([to, why]) => html`<li>
            <${Link} to=${chapterAddress(to, depth)}>${why}<//> <span class="soft small">${chapterOf(to).title === why ? "" : chapterOf(to).title}</span>
          </li>`)}
        </ul>
      </nav>
    </footer>
  </main>`;
}

// The end of a depth: what the chapter showed, the next chapter, and the same chapter one depth further.
function Done({ about, depth, before, after }) {
  const deeper = DEPTHS[DEPTHS.findIndex(([key]) => key === depth) + 1];
  return html`<nav class="done-here" aria-labelledby="done-here"><h2 id="done-here">You are done here</h2>
    ${about.gist && html`<p>${about.gist}</p>`}
    <div class="done-steps">
      ${after
        ? html`<${Link} to=${chapterAddress(after.slug, depth)} rel="next" class="next-step"><span class="small">Next</span>${after.title}<//>`
        : html`<${Link} to="/runs" rel="next" class="next-step"><span class="small">Next</span>Your own runs<//>`}
      ${deeper && html`<${Link} to=${chapterAddress(about.slug, deeper[0])}><span class="small soft">Deeper</span>This chapter in ${deeper[1]}<//>`}
      ${before
        ? html`<${Link} to=${chapterAddress(before.slug, depth)} rel="prev"><span class="small soft">Previous</span>${before.title}<//>`
        : html`<${Link} to="/learn"><span class="small soft">Back to</span>All chapters<//>`}
    </div></nav>`;
}

const chapterAddress = (slug, depth) => address(`/learn/${slug}`, { depth: depth === "intuition" ? undefined : depth });

function ChapterList({ here, depth }) {
  useEffect(() => {
    centreCurrent(document.querySelector(".chapter-list"));
  }, [here]);
  return html`<nav class="chapter-list" aria-label="Chapters"><${Link} to="/learn">All<//>${[...CHAPTERS, EXTRA].map(
    ({ slug, number: place, short, title }) => html`<${Link} to=${chapterAddress(slug, depth)} title=${title}
      aria-current=${slug === here ? "page" : undefined}>
      ${place ? html`<span class="faint">${place}</span> ` : null}${short}<//>`,
  )}</nav>`;
}

// Loads a chapter's module when it is opened.
export function ChapterPage({ slug, query }) {
  const [found, setFound] = useState({ slug: null });
  useEffect(() => {
    let here = true;
    import(`./chapters/${slug}.js`).then(
      ({ Chapter }) => here && setFound({ slug, Chapter }),
      () => here && setFound({ slug, error: new Error("This chapter could not be loaded. Start `grpo lab` again and reload this page.") }),
    );
    return () => (here = false);
  }, [slug]);
  useEffect(() => {
    const { id } = route.value;
    if (found.slug !== slug || !id) return;
    // Once at first, and once more after the content above has loaded.
    const show = () => document.getElementById(id)?.scrollIntoView();
    const timers = [setTimeout(show, 50), setTimeout(show, 800)];
    return () => timers.forEach(clearTimeout);
  }, [found.slug]);
  const depth = depthOf(query);
  const { Chapter, error } = found.slug === slug ? found : {};
  return html`<${Lesson} slug=${slug} depth=${depth} key=${slug}>${
    error
      ? html`<${Failed} error=${error} />`
      : Chapter
        ? html`<${Chapter} depth=${depth} query=${query} />`
        : html`<div class="loading" role="status"><span class="visually-hidden">Loading</span></div>`
  }<//>`;
}
