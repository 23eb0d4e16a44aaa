// What a reader changed in rounds of GRPO, as the address keeps it: rewards in `set`, answers in `say`.
// set=1.3:0.5_2.1:1 gives answer 3 of round 1 a reward of 0.5 and answer 1 of round 2 a reward of 1.
// No character of nano's vocabulary separates the entries.
const ENTRY = /^([1-9]\d?)\.([1-8]):(.+)$/;
export const LONGEST_ANSWER = 16;

function entries(text, value) {
  const found = {};
  for (const entry of (text ?? "").split("_")) {
    const [, round, row, given] = ENTRY.exec(entry) ?? [];
    const read = round && value(given);
    if (read !== undefined && read !== "") (found[round] ??= {})[row - 1] = read;
  }
  return found;
}

function reward(text) {
  const value = Number(text);
  return value >= 0 && value <= 1 ? value : undefined;
}

// { set, say }: each maps a round to its changed rows, counted from 0.
export const changesOf = (query) => ({ set: entries(query.get("set"), reward), say: entries(query.get("say"), (text) => text.slice(0, LONGEST_ANSWER)) });

function written(rounds) {
  const all = Object.entries(rounds).flatMap(([round, rows]) => Object.entries(rows).map(([row, value]) => `${round}.${Number(row) + 1}:${value}`));
  return all.length ? all.join("_") : undefined;
}

// The parameters of the address for these changes.
export const asQuery = ({ set, say }) => ({ set: written(set), say: written(say) });

// The changes with one more. Later rounds followed from the old ones, so their changes go.
export function changed(changes, kind, round, row, value) {
  const kept = Object.fromEntries(Object.entries(changes).map(([name, rounds]) => [name, upTo(rounds, round)]));
  const rows = { ...kept[kind][round], [row]: value };
  if (value === undefined) delete rows[row];
  // A new answer gets the reward of the checker.
  const set = kind === "say" && kept.set[round] ? { ...kept.set, [round]: without(kept.set[round], row) } : kept.set;
  return { ...kept, set, [kind]: { ...kept[kind], [round]: rows } };
}

const upTo = (rounds, last) => Object.fromEntries(Object.entries(rounds).filter(([round]) => Number(round) <= last));

const without = (rows, row) => Object.fromEntries(Object.entries(rows).filter(([each]) => Number(each) !== row));
