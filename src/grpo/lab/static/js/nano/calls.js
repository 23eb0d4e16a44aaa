// What the worker answers. nano's weights live here; the page never waits for a computation. Each part of the page has
// weights of its own, so that what one part trains does not change another.
import { score } from "./arithmetic.js";
import { likeliest, readGroups } from "./logprobs.js";
import { shapeOf } from "./model.js";
import { Student } from "./student.js";
import { Vocabulary } from "./vocabulary.js";
import { readSafetensors } from "./weights.js";

const shipped = {};
const students = new Map(); // by part

// Takes nano's files, once.
export function open({ config, vocabulary, weights }) {
  const bytes = Uint8Array.from(atob(weights), (character) => character.charCodeAt(0));
  Object.assign(shipped, { shape: shapeOf(config), vocabulary: new Vocabulary(vocabulary, config.eos_token_id), weights: readSafetensors(bytes) });
}

export function answer(part, call, settings, report) {
  if (!students.has(part)) students.set(part, new Student(shipped));
  return CALLS[call](students.get(part), settings, report);
}

function sample(student, { prompt, group = 8, seed = 1, step = 0, temperature = 1 }) {
  const [completions] = student.sample([{ text: prompt, id: `typed/${prompt}` }], { group, seed, step, temperature });
  return { completions };
}

function logprobs({ model, vocabulary }, { prompt, ids }) {
  return readGroups(model, [{ prompt: vocabulary.encode(prompt), completions: [ids] }]).logprobs[0];
}

function next({ model, vocabulary }, { prompt, ids = [], count = 5 }) {
  const found = likeliest(model, [...vocabulary.encode(prompt), ...ids], count);
  return found.map(({ id, probability }) => ({ id, token: vocabulary.tokens[id], probability }));
}

// Trains step by step, from step `first` on; other calls are answered between two steps. Returns the number of steps made.
async function train(student, { steps = 30, first = 0, ...settings }, report) {
  if (student.training) throw new Error("nano is training already; stop it first");
  const training = (student.training = { cancelled: false });
  try {
    for (let done = 0; done < steps; done++) {
      if (training.cancelled) return done;
      const began = performance.now();
      const measured = student.trainStep(first + done, settings);
      report(summary(first + done, measured, (performance.now() - began) / 1000));
      await new Promise((resolve) => setTimeout(resolve));
    }
    return steps;
  } finally {
    student.training = null;
  }
}

// The step's means, and one group: the first with signal.
function summary(step, { groups, advantages, loss, gradNorm }, seconds) {
  const all = groups.flatMap(({ completions }) => completions);
  const mean = (value) => all.reduce((sum, each) => sum + Number(value(each)), 0) / all.length;
  const reward = mean((each) => each.reward);
  const shown = Math.max(0, advantages.findIndex((row) => row.some(Boolean)));
  const { prompt, completions } = groups[shown];
  const rows = completions.map(({ text, reward: each, worked }, i) => ({ text, reward: each, worked, advantage: advantages[shown][i] }));
  const silent = advantages.filter((row) => !row.some(Boolean)).length;
  const shares = { reward, accuracy: mean((each) => each.correct), worked: mean((each) => each.worked) };
  return { step, ...shares, silent, loss, gradNorm, seconds, groups: [{ prompt, completions: rows }] };
}

function cancel({ training }) {
  if (training) training.cancelled = true;
}

const CALLS = {
  sample,
  logprobs,
  next,
  train,
  cancel,
  encode: ({ vocabulary }, { text, end = false }) => [...vocabulary.encode(text), ...(end ? [vocabulary.end] : [])],
  decode: ({ vocabulary }, { ids }) => vocabulary.decode(ids),
  score: (student, { prompt, text }) => score(prompt, text),
  update: (student, settings) => student.update(settings),
  reset: (student) => student.reset(),
  snapshot: (student) => student.snapshot(),
  restore: (student, { number }) => student.restore(number),
  forget: (student, { number }) => student.forget(number),
};
