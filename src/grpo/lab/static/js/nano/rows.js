// Rows of a forward pass: one for each token, with its position and the slots it attends to (attention.js).
const FIELDS = ["token", "position", "slot", "promptFrom", "promptTo", "ownFrom"];

export function makeRows(list) {
  const rows = { count: list.length };
  for (const field of FIELDS) rows[field] = Int32Array.from(list, (row) => row[field]);
  return rows;
}

// A prompt's rows. It has no prompt before it: all its keys are its own.
export function promptRows(ids, first) {
  return ids.map((token, i) => ({ token, position: i, slot: first + i, promptFrom: first, promptTo: first, ownFrom: first }));
}

// Packs groups into one batch: each prompt once, then its completions without their last token, which predicts nothing.
// `completions`: for each, its tokens as `targets`, and the rows that predict them as `sources`.
export function pack(groups) {
  const list = [];
  const completions = [];
  for (const { prompt, completions: group } of groups) {
    const promptFrom = list.length;
    const promptTo = promptFrom + prompt.length;
    list.push(...promptRows(prompt, promptFrom));
    for (const ids of group) {
      const ownFrom = list.length;
      completions.push({ targets: ids, sources: ids.map((_, i) => (i ? ownFrom + i - 1 : promptTo - 1)) });
      ids.slice(0, -1).forEach((token, i) => list.push({ token, position: prompt.length + i, slot: ownFrom + i, promptFrom, promptTo, ownFrom }));
    }
  }
  return { rows: makeRows(list), completions };
}
