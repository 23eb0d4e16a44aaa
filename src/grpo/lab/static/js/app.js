// The app: header, and the page for the current address.
import { render } from "preact";
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { chapterOf } from "./chapters.js";
import { Learn } from "./learn.js";
import { ChapterPage } from "./lesson.js";
import { Link, route, staticFile } from "./route.js";
import { Story } from "./story.js";
import { Compare } from "./views/compare.js";
import { Metrics } from "./views/metrics.js";
import { RunPage } from "./views/run.js";
import { Runs } from "./views/runs.js";

const PLACES = [
  ["/story", "Story"],
  ["/learn", "Learn"],
  ["/runs", "Runs"],
  ["/compare", "Compare"],
  ["/metrics", "Metrics"],
];

function ThemeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const [isDark, setDark] = useState(dark());
  function turn() {
    const theme = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    setDark(!isDark);
  }
  return html`<button type="button" class="quiet" onClick=${turn} aria-label=${isDark ? "Light theme" : "Dark theme"}>${isDark ? "☀" : "☾"}</button>`;
}

function Page({ path, query }) {
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  if (!parts.length || (parts[0] === "runs" && parts.length === 1)) return html`<${Runs} />`;
  if (parts[0] === "runs" && parts.length <= 3) return html`<${RunPage} id=${parts[1]} view=${parts[2] ?? "overview"} query=${query} />`;
  if (parts[0] === "story" && parts.length === 1) return html`<${Story} />`;
  if (parts[0] === "learn" && parts.length === 1) return html`<${Learn} />`;
  if (parts[0] === "learn" && parts.length === 2 && chapterOf(parts[1])) return html`<${ChapterPage} slug=${parts[1]} query=${query} />`;
  if (parts[0] === "compare") return html`<${Compare} query=${query} />`;
  if (parts[0] === "metrics") return html`<${Metrics} />`;
  return html`<main class="page narrow" id="main"><h1>Page not found</h1><p class="soft">The lab has no page at this address. <${Link} to="/runs">All runs<//></p></main>`;
}

function App() {
  const { path, query } = route.value;
  useEffect(() => {
    const heading = document.querySelector("h1")?.textContent;
    document.title = heading ? `${heading} · grpo lab` : "grpo lab";
  });
  const section = path === "/" ? "/runs" : `/${path.split("/")[1]}`;
  return html`<${Link} to="#main" class="skip">Skip to content<//>
    <header class="top">
      <${Link} to="/runs" class="brand"><img src=${staticFile("icon.svg")} alt="" width="22" height="22" /> grpo lab<//>
      <nav aria-label="Main">${PLACES.map(([to, name]) => html`<${Link} to=${to} aria-current=${section === to ? "page" : undefined}>${name}<//>`)}</nav>
      <${ThemeButton} />
    </header>
    <${Page} path=${path} query=${query} />`;
}

render(html`<${App} />`, document.getElementById("app"));
