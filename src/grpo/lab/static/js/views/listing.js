// The list of runs: fetched again while the page is seen, filtered by words and tag, sorted by a column.
import { useEffect, useState } from "preact/hooks";
import { useApi } from "../api.js";
import { isStatic } from "../route.js";

const SECONDS = 3;

export function useListing() {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    if (isStatic()) return;
    const timer = setInterval(() => document.hidden || setVersion((now) => now + 1), 1000 * SECONDS);
    return () => clearInterval(timer);
  }, []);
  return { ...useApi("/api/runs", version), refresh: () => setVersion((now) => now + 1) };
}

// Columns: key, title, the value to sort by.
export const COLUMNS = [
  ["name", "Run", (run) => run.name],
  ["status", "Status", (run) => run.status],
  ["model", "Model and task", (run) => `${run.model} ${run.task}`],
  ["algorithm", "Algorithm", (run) => run.algorithm],
  ["steps", "Steps", (run) => run.steps],
  ["reward", "Reward", (run) => run.reward_mean],
  ["accuracy", "Held-out accuracy", (run) => run.accuracy?.at(-1)],
  ["created", "Started", (run) => run.created],
];

const words = (run) => [run.name, run.status, run.model, run.task, run.algorithm, run.kind, run.note, ...run.tags].join(" ").toLowerCase();

export function filtered(runs, text, tag) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => (!tag || run.tags.includes(tag)) && wanted.every((word) => words(run).includes(word)));
}

// `order` is a column's key; with a minus sign, from high to low. Runs without a value come last either way.
export function sorted(runs, order) {
  const down = order.startsWith("-");
  const value = COLUMNS.find(([key]) => key === order.replace(/^-/, ""))?.[2];
  if (!value) return runs;
  const missing = (run) => value(run) === null || value(run) === undefined;
  const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return [...runs].sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : (down ? -1 : 1) * compare(value(a), value(b))));
}
