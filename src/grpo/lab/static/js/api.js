// Requests to the server. While a new answer loads, the last one stays visible.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

const kept = new Map();
const MOST_KEPT = 80;

export async function get(url, signal) {
  const answer = await fetch(url, { signal, headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `the server returned status ${answer.status}`);
  return body;
}

// `version` changes when a live run has grown: then the same URL has a new answer.
export function useApi(url, version = 0) {
  const [state, setState] = useState({ url: null, data: undefined, error: null });
  const key = `${version} ${url}`;
  useEffect(() => {
    if (!url) return;
    if (kept.has(key)) {
      setState({ url, data: kept.get(key), error: null });
      return;
    }
    const abort = new AbortController();
    get(url, abort.signal).then(
      (data) => {
        kept.set(key, data);
        if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
        setState({ url, data, error: null });
      },
      (error) => {
        if (error.name === "AbortError") return;
        setState((last) => ({ url, data: last.data, error: error instanceof TypeError ? UNREACHABLE : error }));
      },
    );
    return () => abort.abort();
  }, [key]);
  return { data: state.data, error: state.error, loading: !state.error && state.url !== url };
}

const UNREACHABLE = new Error("The lab does not answer. Start `grpo lab` again and reload this page.");

// The live state of a run: its last step and status.
export function useLive(run, active) {
  const [head, setHead] = useState(null);
  useEffect(() => {
    setHead(null);
    if (!run || !active) return;
    const source = new EventSource(`/api/runs/${encodeURIComponent(run)}/events`);
    let latest = null;
    let timer = null;
    source.onmessage = (event) => {
      latest = JSON.parse(event.data);
      if (latest.status !== "running") source.close();
      // At most one redraw a second.
      timer ??= setTimeout(() => {
        timer = null;
        setHead(latest);
      }, 1000);
    };
    return () => {
      clearTimeout(timer);
      source.close();
    };
  }, [run, active]);
  return head;
}

export const definitions = signal(null);
get("/api/metrics").then((tables) => (definitions.value = tables), () => {});
