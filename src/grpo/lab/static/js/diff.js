// The difference of two texts: the longest common subsequence of their words, numbers and signs.
const MOST_CELLS = 4e6;

const pieces = (text) => text.match(/\d+|\p{L}+|\s+|[^]/gu) ?? [];

// [kind, text], in order; kind: "same", "gone" (only before) or "new" (only after).
export function difference(before, after) {
  const [a, b] = [pieces(before), pieces(after)];
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first += 1;
  let last = 0;
  while (last < Math.min(a.length, b.length) - first && a.at(-1 - last) === b.at(-1 - last)) last += 1;
  const middle = changes(a.slice(first, a.length - last), b.slice(first, b.length - last));
  return joined([...a.slice(0, first).map((text) => ["same", text]), ...middle, ...a.slice(a.length - last).map((text) => ["same", text])]);
}

function changes(a, b) {
  const replaced = [...a.map((text) => ["gone", text]), ...b.map((text) => ["new", text])];
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return replaced;
  // length[i][j]: of the longest common subsequence of a from i and b from j.
  const length = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push(["same", a[i++]]), (j += 1);
    else if (j >= b.length || (i < a.length && length[i + 1][j] >= length[i][j + 1])) found.push(["gone", a[i++]]);
    else found.push(["new", b[j++]]);
  }
  return found;
}

// Neighbours of one kind as one part.
function joined(parts) {
  const found = [];
  for (const [kind, text] of parts) {
    if (found.at(-1)?.[0] === kind) found.at(-1)[1] += text;
    else found.push([kind, text]);
  }
  return found;
}
