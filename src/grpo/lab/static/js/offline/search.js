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

// `rows` in the order of the run; whole steps until a page is full. `begin` is the step at which to continue.
export function search(rows, params) {
  const text = (params.get("text") ?? "").toLowerCase();
  const filters = (params.get("filters") ?? "").split(",").filter((name) => name in FILTERS);
  const newest = params.get("order") !== "oldest";
  const holds = (row) => !text || [row.text, row.prompt, ...row.turns.map((turn) => turn.text)].some((each) => each.toLowerCase().includes(text));
  const steps = [...new Set(rows.map((row) => row.step))];
  if (newest) steps.reverse();
  const begin = params.has("begin") ? Number(params.get("begin")) : steps[0];
  const found = [];
  let at = Math.max(0, steps.indexOf(begin));
  for (; at < steps.length && found.length < PAGE; at++) {
    found.push(...rows.filter((row) => row.step === steps[at] && holds(row) && filters.every((name) => FILTERS[name](row))));
  }
  return { rows: found, next: steps[at] ?? null, searched: [begin ?? null, steps[at] ?? null] };
}
