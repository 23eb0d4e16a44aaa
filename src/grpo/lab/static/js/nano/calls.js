// What the worker answers. nano's weights live here; the page never waits for a computation.
import { score } from "./arithmetic.js";
import { likeliest, readGroups } from "./logprobs.js";
import { shapeOf } from "./model.js";
import { sampleGroups } from "./sampling.js";
import { Vocabulary } from "./vocabulary.js";
import { readSafetensors } from "./weights.js";

// Tokens of a completion, as in the chapters (grpo.lab.chapters.nano).
export const LONGEST = 24;

let vocabulary = null;
let model = null;

function open({ config, vocabulary: entries, weights }) {
  vocabulary = new Vocabulary(entries, config.eos_token_id);
  const bytes = Uint8Array.from(atob(weights), (character) => character.charCodeAt(0));
  model = { shape: shapeOf(config), end: config.eos_token_id, weights: readSafetensors(bytes) };
}

function sample({ prompt, group = 8, seed = 1, temperature = 1 }) {
  const prompts = [{ ids: vocabulary.encode(prompt), id: `typed/${prompt}` }];
  const [found] = sampleGroups(model, prompts, { group, seed, temperature, limit: LONGEST });
  return { completions: found.map(described) };
}

function described(completion) {
  const { ids, finished } = completion;
  return { ...completion, text: vocabulary.decode(finished ? ids.slice(0, -1) : ids), tokens: ids.map((id) => vocabulary.tokens[id]) };
}

function logprobs({ prompt, ids }) {
  return readGroups(model, [{ prompt: vocabulary.encode(prompt), completions: [ids] }]).logprobs[0];
}

function next({ prompt, ids = [], count = 5 }) {
  const found = likeliest(model, [...vocabulary.encode(prompt), ...ids], count);
  return found.map(({ id, probability }) => ({ id, token: vocabulary.tokens[id], probability }));
}

export const CALLS = {
  open,
  sample,
  logprobs,
  next,
  encode: ({ text }) => vocabulary.encode(text),
  decode: ({ ids }) => vocabulary.decode(ids),
  score: ({ prompt, text }) => score(prompt, text),
};
