// Scripts, style sheets and workers, loaded by the first page that needs them.
import { useEffect } from "preact/hooks";
import { isExport, isStatic, staticFile } from "./route.js";

// The content security policy allows scripts of this origin only, and asks code to name what makes their addresses.
const policy = globalThis.trustedTypes?.createPolicy("grpo-lab", { createScriptURL: (url) => url });
const trusted = (url) => (policy ? policy.createScriptURL(url) : url);

const asked = new Map();
const once = (key, load) => {
  if (!asked.has(key)) {
    const loading = load();
    asked.set(key, loading);
    loading.catch(() => asked.delete(key)); // who asks next tries again
  }
  return asked.get(key);
};

function element(node, where) {
  return new Promise((resolve, reject) => {
    node.onload = resolve;
    node.onerror = () => reject(new Error("A file of the lab could not be loaded. Reload this page."));
    where(node);
  });
}

// A classic script at a URL of this site.
export const loadScript = (url) =>
  once(url, () => element(Object.assign(document.createElement("script"), { src: trusted(url) }), (node) => document.head.append(node)));

// A vendored library, which defines the global `name`. An export has it in its page.
const library = (name, path) => (window[name] ? Promise.resolve() : loadScript(staticFile(path)));

// A style sheet of static/. A static site has them all in one file, except for KaTeX's; an export has all in its page.
// `first`: before the lab's own, which may override it.
const loadStyle = (path, { first = false } = {}) =>
  once(path, () =>
    element(Object.assign(document.createElement("link"), { rel: "stylesheet", href: staticFile(path) }), (node) =>
      first ? document.head.prepend(node) : document.head.append(node),
    ),
  );

// Loads style sheets of a part: useStyle("css/chapter-why.css").
export function useStyle(...paths) {
  useEffect(() => {
    if (!isStatic()) paths.forEach((path) => loadStyle(path));
  }, paths);
}

export const loadPlot = () =>
  once("Plot", () => library("d3", "vendor/d3/dist/d3.min.js").then(() => library(
    "Plot", "vendor/@observablehq/plot/dist/plot.umd.min.js",
  )).then(() => window.Plot));

export const loadKatex = () =>
  once("katex", () =>
    Promise.all([
      library("katex", "vendor/katex/dist/katex.min.js"),
      isExport() || loadStyle("vendor/katex/dist/katex.min.css", { first: true }),
    ]).then(() => window.katex),
  );

// Starts the module js/PATH as a worker. Without a server its linked source is a text (`grpoWorkers`), because a page
// from a file may not start a worker from another file. A worker has no import map: it imports by relative path.
export async function openWorker(path) {
  if (!isStatic()) return new Worker(trusted(staticFile(`js/${path}`)), { type: "module" });
  if (!window.grpoWorkers?.[path]) await loadScript(staticFile(`workers/${path}`));
  return new Worker(trusted(URL.createObjectURL(new Blob([window.grpoWorkers[path]], { type: "text/javascript" }))));
}
