// Recorded answers, written by `grpo lab build` and `grpo lab export`. A chunk is gzip in base64, of
// {keys: {key: place}, answers: [answer]}.
// `grpoIndex` maps the start of a path to the chunk that has all its answers; a script puts a chunk into `grpoChunks`.
import { loadScript } from "../load.js";
import { staticFile } from "../route.js";

// The key of a request: the order of its parameters does not matter. Equal to `grpo.lab.site.record:key`.
function keyOf(url) {
  const { path, params } = split(url);
  const text = [...params].map(([name, value]) => `${name}=${value}`).sort().join("&");
  return text ? `${path}?${text}` : path;
}

export function split(url) {
  const [path, query = ""] = url.split("?");
  return { path: decodeURIComponent(path), params: new URLSearchParams(query) };
}

const opened = new Map();

async function unpack(name) {
  if (!window.grpoChunks?.[name]) await loadScript(staticFile(`data/${name}.js`));
  const bytes = Uint8Array.from(atob(window.grpoChunks[name]), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// The recorded answer; undefined if there is none.
export async function recorded(url) {
  for (let start = split(url).path; start; start = start.slice(0, start.lastIndexOf("/"))) {
    const name = window.grpoIndex?.[start];
    if (name === undefined) continue;
    if (!opened.has(name)) opened.set(name, unpack(name));
    const { keys, answers } = await opened.get(name);
    return answers[keys[keyOf(url)]];
  }
  return undefined;
}
