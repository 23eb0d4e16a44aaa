// The search of completions over recorded rows: grpo.lab.search in JavaScript.
import { openWorker } from "../load.js";

const PAGE = 60;
const PATTERN_SECONDS = 1.5; // time limit of a regular expression

const FILTERS = {
  right: (row) => row.correct,
  wrong: (row) => !row.correct,
  unscored: (row) => row.reward === null,
  cut: (row) => row.finish !== "stop",
  above: (row) => row.advantage > 0,
  below: (row) => row.advantage < 0,
  level: (row) => row.advantage === 0,
};
const RANGES = ["step", "reward", "length", "advantage"];

// `rows` in the order of the run; `cut`: how much of a long completion they have (null: all). `begin` is the number of
// results before the page.
export async function search({ rows, cut }, params) {
  const filters = (params.get("filters") ?? "").split(",").filter((name) => name in FILTERS);
  const candidates = rows.filter((row) => filters.every((name) => FILTERS[name](row)) && within(row, params));
  const sorted = inOrder(await matching(candidates, params.get("text") ?? "", params.get("regex") === "1"), params.get("order") || "newest");
  const begin = Number(params.get("begin") ?? 0);
  const next = begin + PAGE;
  return { rows: sorted.slice(begin, next).map(shown), next: next < sorted.length ? next : null, cut };
}

const texts = (row) => [row.text, row.prompt, ...row.turns.map((turn) => turn.text)];

async function matching(rows, text, pattern) {
  if (!text) return rows;
  if (pattern) return matchingPattern(rows, text);
  const wanted = text.toLowerCase();
  return rows.filter((row) => texts(row).some((each) => each.toLowerCase().includes(wanted)));
}

// In a worker, which is ended when the pattern takes too long.
async function matchingPattern(rows, pattern) {
  try {
    new RegExp(pattern, "iu");
  } catch (problem) {
    // border: people type patterns
    throw new Error(`text: not a regular expression: ${problem.message}`);
  }
  const worker = await openWorker("offline/pattern-worker.js");
  let timer = null;
  const found = new Promise((resolve, reject) => {
    worker.onerror = (event) => reject(new Error(`text: this regular expression cannot be searched for: ${event.message || "the worker did not start"}`));
    worker.onmessage = ({ data }) => {
      if (data !== "ready") return resolve(data);
      worker.postMessage({ pattern, rows: rows.map(texts) });
      timer = setTimeout(
        () => reject(new Error("text: this regular expression takes too long; avoid a repeat inside a repeat, such as (a+)+")),
        PATTERN_SECONDS * 1000,
      );
    };
  });
  try {
    const matches = await found;
    return rows.filter((_, place) => matches[place]);
  } finally {
    clearTimeout(timer);
    worker.terminate();
  }
}

// The beginnings of the texts, as grpo.lab.search:shown.
const shown = (row) => ({
  ...row,
  text: start(row.text, 600),
  prompt: start(row.prompt, 300),
  turns: row.turns.map((turn) => ({ ...turn, text: start(turn.text, 200) })),
});

// Characters are counted as in Python: some take two places of a string in JavaScript.
const start = (text, most) => (text.length <= most ? text : [...text.slice(0, 2 * most)].slice(0, most).join(""));

function within(row, params) {
  const limit = (name, otherwise) => (params.get(name) ? Number(params.get(name)) : otherwise);
  return RANGES.every((name) => {
    const [low, high] = [limit(`${name}_min`, -Infinity), limit(`${name}_max`, Infinity)];
    return (low === -Infinity && high === Infinity) || (row[name] !== null && row[name] >= low && row[name] <= high);
  });
}

// Rows without the value come last; equal ones, the newest first.
function inOrder(rows, order) {
  if (order === "oldest") return rows;
  const newest = (a, b) => b.step - a.step;
  const column = order.replace("-", "");
  const sign = order.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => (order === "newest" ? 0 : (a[column] === null) - (b[column] === null) || sign * ((a[column] ?? 0) - (b[column] ?? 0))) ||
    newest(a, b));
}
