// Parameters of a question: numbers, words and texts, checked. grpo.lab.chapters.query in JavaScript.

export function number(params, name, otherwise, low, high) {
  return params.has(name) ? within(name, params.get(name), low, high) : otherwise;
}

export function whole(params, name, otherwise, low, high) {
  const value = number(params, name, otherwise, low, high);
  if (!Number.isInteger(value)) throw new Error(`${name}: expected a whole number; got ${quoted(params.get(name))}`);
  return value;
}

export function numbers(params, name, otherwise, low, high, { least, most }) {
  const found = params.has(name) ? params.get(name).split(",").map((text) => within(name, text, low, high)) : [...otherwise];
  if (found.length < least || found.length > most) throw new Error(`${name}: expected ${least} to ${most} numbers separated by commas; got ${found.length}`);
  return found;
}

export function word(params, name, otherwise, choices) {
  const value = params.get(name) ?? otherwise;
  if (!choices.includes(value)) throw new Error(`${name}: expected one of ${choices.join(", ")}; got ${quoted(value)}`);
  return value;
}

export function text(params, name, otherwise, most = 2000) {
  const value = params.get(name) ?? otherwise;
  if (value.length > most) throw new Error(`${name}: at most ${most.toLocaleString("en-US")} characters; got ${value.length.toLocaleString("en-US")}`);
  return value;
}

const quoted = (value) => JSON.stringify(String(value).slice(0, 60));

function within(name, given, low, high) {
  const value = given.trim() ? Number(given) : NaN;
  if (Number.isNaN(value)) throw new Error(`${name}: expected a number; got ${quoted(given)}`);
  if (value < low || value > high) throw new Error(`${name}: must be between ${low} and ${high}; got ${quoted(given)}`);
  return value;
}

// As torch.linspace: the second half is counted from the end.
export function linspace(start, end, count) {
  const step = (end - start) / (count - 1);
  return Array.from({ length: count }, (_, i) => (i < count / 2 ? start + step * i : end - step * (count - 1 - i)));
}
