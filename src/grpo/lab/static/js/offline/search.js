// The search of completions over recorded rows: grpo.lab.search in JavaScript.
const PAGE = 60;

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

// `rows` in the order of the run. `begin` is the number of results before the page.
export function search(rows, params) {
  const filters = (params.get("filters") ?? "").split(",").filter((name) => name in FILTERS);
  const holds = matcher(params.get("text") ?? "", params.get("regex") === "1");
  const found = rows.filter((row) => filters.every((name) => FILTERS[name](row)) && within(row, params) && holds(row));
  const sorted = inOrder(found, params.get("order") || "newest");
  const begin = Number(params.get("begin") ?? 0);
  const next = begin + PAGE;
  return { rows: sorted.slice(begin, next), next: next < sorted.length ? next : null };
}

function matcher(text, pattern) {
  if (!text) return () => true;
  const any = (test) => (row) => [row.text, row.prompt, ...row.turns.map((turn) => turn.text)].some(test);
  if (!pattern) return any((each) => each.toLowerCase().includes(text.toLowerCase()));
  let compiled;
  try {
    compiled = new RegExp(text, "iu");
  } catch (problem) {
    throw new Error(`text: not a regular expression: ${problem.message}`);
  }
  return any((each) => compiled.test(each));
}

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
  return [...rows].sort((a, b) => (order === "newest" ? 0 : (a[column] === null) - (b[column] === null) || sign * ((a[column] ?? 0) - (b[column] ?? 0))) || newest(a, b));
}
