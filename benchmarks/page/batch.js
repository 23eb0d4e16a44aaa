// The work that every candidate does: the gradient of Σ slope · logp over 8 × 8 sampled completions by all weights. The
// slopes are those of GRPO's loss.
import { gradientOf } from "/plain/js/nano/gradient.js";
import { shapeOf } from "/plain/js/nano/model.js";
import { drawPrompts, score } from "/plain/js/nano/arithmetic.js";
import { Student } from "/plain/js/nano/student.js";
import { Vocabulary } from "/plain/js/nano/vocabulary.js";
import { readSafetensors } from "/plain/js/nano/weights.js";

export async function makeBatch() {
  const files = await (await fetch("/nano.json")).json();
  const bytes = Uint8Array.from(atob(files.weights), (character) => character.charCodeAt(0));
  const vocabulary = new Vocabulary(files.vocabulary, files.config.eos_token_id);
  const student = new Student({ shape: shapeOf(files.config), vocabulary, weights: readSafetensors(bytes) });
  const prompts = drawPrompts(8, 1, 0);
  const sampled = student.sample(prompts.map((text, i) => ({ text, id: `train/0/${i}` })), { group: 8, seed: 1, temperature: 1 });
  const groups = sampled.map((completions, i) => ({
    prompt: vocabulary.encode(prompts[i]),
    completions: completions.map(({ ids, text }) => ({ ids, reward: score(prompts[i], text).reward })),
  }));
  const { gradient, push } = gradientOf(student.model, student.reference, groups, { longest: 24 });
  return { student, groups, slopes: push.flat().map((row) => row.map((value) => -value)), gradient };
}

// One padded row for each completion, as libraries need it: tokens, targets, and slopes (0 at the prompt and padding).
export function padded({ groups, slopes }) {
  const rows = groups.flatMap(({ prompt, completions }) => completions.map(({ ids }) => ({ prompt, ids })));
  const length = Math.max(...rows.map(({ prompt, ids }) => prompt.length + ids.length - 1));
  const grid = { B: rows.length, T: length };
  for (const name of ["tokens", "targets", "slopes"]) grid[name] = new Float32Array(rows.length * length);
  rows.forEach(({ prompt, ids }, b) => {
    [...prompt, ...ids].slice(0, -1).forEach((token, t) => (grid.tokens[b * length + t] = token));
    ids.forEach((token, t) => {
      grid.targets[b * length + prompt.length - 1 + t] = token;
      grid.slopes[b * length + prompt.length - 1 + t] = slopes[b][t];
    });
  });
  return grid;
}

// cos and sin of every position and channel of half a head, and the causal mask.
export function tables({ width, theta }, T) {
  const half = width / 2;
  const angle = (i) => Math.floor(i / half) * theta ** (-(i % half) / half);
  const mask = Float32Array.from({ length: T * T }, (_, i) => (i % T > Math.floor(i / T) ? -1e9 : 0));
  return { cos: Float32Array.from({ length: T * half }, (_, i) => Math.cos(angle(i))), sin: Float32Array.from({ length: T * half }, (_, i) => Math.sin(angle(i))), mask };
}
