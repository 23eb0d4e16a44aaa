// What the worker answers. nano's weights live here; the page never waits for a computation.
import { score } from "./arithmetic.js";
import { likeliest, readGroups } from "./logprobs.js";
import { shapeOf } from "./model.js";
import { Student } from "./student.js";
import { Vocabulary } from "./vocabulary.js";
import { readSafetensors } from "./weights.js";

const state = { student: null, training: null };

function open({ config, vocabulary, weights }) {
  const bytes = Uint8Array.from(atob(weights), (character) => character.charCodeAt(0));
  state.student = new Student(shapeOf(config), new Vocabulary(vocabulary, config.eos_token_id), readSafetensors(bytes));
}

function sample({ prompt, group = 8, seed = 1, step = 0, temperature = 1 }) {
  const [completions] = state.student.sample([{ text: prompt, id: `typed/${prompt}` }], { group, seed, step, temperature });
  return { completions };
}

function logprobs({ prompt, ids }) {
  const { model, vocabulary } = state.student;
  return readGroups(model, [{ prompt: vocabulary.encode(prompt), completions: [ids] }]).logprobs[0];
}

function next({ prompt, ids = [], count = 5 }) {
  const { model, vocabulary } = state.student;
  const found = likeliest(model, [...vocabulary.encode(prompt), ...ids], count);
  return found.map(({ id, probability }) => ({ id, token: vocabulary.tokens[id], probability }));
}

// Trains step by step, from step `first` on; other calls are answered between two steps. Returns the number of steps made.
async function train({ steps = 30, first = 0, ...settings }, report) {
  if (state.training) throw new Error("nano is training already; stop it first");
  const training = (state.training = { cancelled: false });
  try {
    for (let done = 0; done < steps; done++) {
      if (training.cancelled) return done;
      const began = performance.now();
      const measured = state.student.trainStep(first + done, settings);
      report(summary(first + done, measured, (performance.now() - began) / 1000));
      await new Promise((resolve) => setTimeout(resolve));
    }
    return steps;
  } finally {
    state.training = null;
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

function cancel() {
  if (state.training) state.training.cancelled = true;
}

export const CALLS = {
  open,
  sample,
  logprobs,
  next,
  train,
  cancel,
  encode: ({ text, end = false }) => [...state.student.vocabulary.encode(text), ...(end ? [state.student.vocabulary.end] : [])],
  decode: ({ ids }) => state.student.vocabulary.decode(ids),
  score: ({ prompt, text }) => score(prompt, text),
  update: (settings) => state.student.update(settings),
  reset: () => state.student.reset(),
  snapshot: () => state.student.snapshot(),
  restore: ({ number }) => state.student.restore(number),
};
