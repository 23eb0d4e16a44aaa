// The app: header, and the page for the current address.
import { render } from "preact";
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { useApi } from "./api.js";
import { chapterOf } from "./chapters.js";
import { Failed, Loading } from "./parts.js";
import { isStatic, Link, partsOf, route, staticFile } from "./route.js";
import { Scene } from "./scene/scene.js";
import { ThemeButton } from "./theme-button.js";

// A page whose modules are loaded when it is opened: the first page loads quickly.
function opened(load, name) {
  return function Opened(properties) {
    const [found, setFound] = useState({});
    useEffect(() => {
      load().then((module) => setFound({ Part: module[name] }), (error) => setFound({ error }));
    }, []);
    if (found.Part) return html`<${found.Part} ...${properties} />`;
    return html`<main id="main">${found.error ? html`<${Failed} error=${found.error} />` : html`<${Loading} height="80vh" />`}</main>`;
  };
}

const ChapterPage = opened(() => import("./chapter-page.js"), "ChapterPage");
const Compare = opened(() => import("./views/compare.js"), "Compare");
const Learn = opened(() => import("./learn.js"), "Learn");
const Metrics = opened(() => import("./views/metrics.js"), "Metrics");
const Play = opened(() => import("./game/play.js"), "Play");
const RunPage = opened(() => import("./views/run.js"), "RunPage");
const Runs = opened(() => import("./views/runs.js"), "Runs");
const Story = opened(() => import("./story.js"), "Story");

const PLACES = [
  ["/scene", "Start"],
  ["/story", "Story"],
  ["/play", "Play"],
  ["/learn", "Learn"],
  ["/runs", "Runs"],
  ["/compare", "Compare"],
  ["/metrics", "Metrics"],
];

// The page at "/": the runs of a user who has some, or the scene; "" until that is known.
function useHome(path) {
  const { data, error } = useApi(path === "/" && !isStatic() ? "/api/runs" : null);
  if (isStatic() || error) return "/scene";
  return data ? (data.runs.some((run) => !run.example) ? "/runs" : "/scene") : "";
}

function Page({ path, query }) {
  const parts = partsOf(path);
  if (!parts.length) return html`<main id="main"><${Loading} height="80vh" /></main>`;
  if (parts[0] === "scene" && parts.length === 1) return html`<${Scene} query=${query} />`;
  if (parts[0] === "play" && parts.length === 1) return html`<${Play} query=${query} />`;
  if (parts[0] === "runs" && parts.length === 1) return html`<${Runs} />`;
  if (parts[0] === "runs" && parts.length <= 3) return html`<${RunPage} id=${parts[1]} view=${parts[2] ?? "overview"} query=${query} />`;
  if (parts[0] === "story" && parts.length === 1) return html`<${Story} />`;
  if (parts[0] === "learn" && parts.length === 1) return html`<${Learn} />`;
  if (parts[0] === "learn" && parts.length === 2 && chapterOf(parts[1])) return html`<${ChapterPage} slug=${parts[1]} query=${query} />`;
  if (parts[0] === "compare") return html`<${Compare} query=${query} />`;
  if (parts[0] === "metrics") return html`<${Metrics} />`;
  return html`<main class="page narrow" id="main"><h1>Page not found</h1>
    <p class="soft">The lab has no page at this address. <${Link} to="/runs">All runs<//></p></main>`;
}

function App() {
  const { path: asked, query } = route.value;
  const home = useHome(asked);
  const path = asked === "/" ? home : asked;
  useEffect(() => {
    const heading = document.querySelector("h1")?.textContent;
    document.title = heading ? `${heading} · grpo lab` : "grpo lab";
  });
  const section = `/${path.split("/")[1]}`;
  return html`<${Link} to="#main" class="skip">Skip to content<//>
    <header class="top">
      <${Link} to="/scene" class="brand"><img src=${staticFile("icon.svg")} alt="" width="22" height="22" /> <span>grpo lab</span><//>
      <nav aria-label="Main">${PLACES.map(([to, name]) => html`<${Link} to=${to} aria-current=${section === to ? "page" : undefined}>${name}<//>`)}</nav>
      <${ThemeButton} />
    </header>
    <${Page} path=${path} query=${query} />`;
}

render(html`<${App} />`, document.getElementById("app"));
