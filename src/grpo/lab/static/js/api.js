// Requests to the server; without one, to offline/answers.js. While a new answer loads, the last one stays visible.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { isStatic } from "./route.js";

// The latest answer of each URL. It is shown at once when a page comes back, and asked for again unless it never changes.
const kept = new Map();
const MOST_KEPT = 80;
const neverChanges = (url) => isStatic() || url.startsWith("/api/chapters/");

export async function get(url, signal) {
  if (isStatic()) return (await import("./offline/answers.js")).answer(url);
  const answer = await fetch(url, { signal, headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `the server returned status ${answer.status}`);
  return body;
}

export async function post(url, body) {
  const pageToken = document.querySelector("meta[name=page-token]").content;
  const answer = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Page-Token": pageToken },
    body: JSON.stringify(body ?? {}),
  });
  const text = await answer.text();
  let reply = null;
  try {
    reply = JSON.parse(text);
  } catch {
    reply = { error: text };
  }
  if (!answer.ok) throw Object.assign(new Error(reply.error), { running: reply.running });
  return reply;
}

// Calls `heard` with every event of a stream; returns the function that ends it.
export function listen(url, heard) {
  const source = new EventSource(url);
  source.onmessage = (event) => heard(JSON.parse(event.data));
  return () => source.close();
}

// `version` changes when a live run has grown: then the URL is asked again.
export function useApi(url, version = 0) {
  const [state, setState] = useState({ url: null, data: undefined, error: null });
  useEffect(() => {
    if (!url) return;
    if (kept.has(url)) {
      setState({ url, data: kept.get(url), error: null });
      if (neverChanges(url)) return;
    }
    // Without a server no request can be aborted: a late answer must not replace a newer one.
    let wanted = true;
    const abort = new AbortController();
    get(url, abort.signal).then(
      (data) => {
        kept.set(url, data);
        if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
        if (wanted) setState({ url, data, error: null });
      },
      (error) => {
        if (!wanted) return;
        setState((last) => ({ url, data: last.data, error: error instanceof TypeError ? UNREACHABLE : error }));
      },
    );
    return () => {
      wanted = false;
      abort.abort();
    };
  }, [url, version]);
  return { data: state.data, error: state.error, loading: !state.error && state.url !== url };
}

const UNREACHABLE = new Error("The lab does not answer. Start `grpo lab` again and reload this page.");

// The live state of a run: its last step and status.
export function useLive(run, active) {
  const [head, setHead] = useState(null);
  useEffect(() => {
    setHead(null);
    if (!run || !active || isStatic()) return;
    let latest = null;
    let timer = null;
    const close = listen(`/api/runs/${encodeURIComponent(run)}/events`, (now) => {
      latest = now;
      if (latest.status !== "running") close();
      // At most one redraw a second.
      timer ??= setTimeout(() => {
        timer = null;
        setHead(latest);
      }, 1000);
    });
    return () => {
      clearTimeout(timer);
      close();
    };
  }, [run, active]);
  return head;
}

export const definitions = signal(null);
get("/api/metrics").then((tables) => (definitions.value = tables), () => {});
