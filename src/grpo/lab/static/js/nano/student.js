// nano as it is trained: its weights and the optimizer's state, the shipped weights as reference, and kept copies.
import { drawPrompts, score } from "./arithmetic.js";
import { gradientOf } from "./gradient.js";
import { AdamW, learningRate } from "./optimizer.js";
import { sampleGroups } from "./sampling.js";

// Tokens of a completion, as in the chapters (grpo.lab.chapters.nano).
const LONGEST = 24;
// Learning rate of training: at 1e-4 accuracy rises more slowly, at 1e-3 it falls again.
const TRAIN_LR = 3e-4;

export class Student {
  constructor({ shape, vocabulary, weights }) {
    this.vocabulary = vocabulary;
    this.reference = { shape, end: vocabulary.end, weights };
    this.kept = new Map(); // copies by number
    this.copies = 0;
    this.training = null; // {cancelled} while it is trained step by step
    this.reset();
  }

  // The shipped weights and a new optimizer.
  reset() {
    this.model = { ...this.reference, weights: this.reference.weights.copy() };
    this.optimizer = new AdamW(this.model.weights.flat.length);
  }

  // Keeps a copy of weights and optimizer; its number brings it back.
  snapshot() {
    this.kept.set(++this.copies, { weights: this.model.weights.copy(), optimizer: this.optimizer.copy() });
    return this.copies;
  }

  restore(number) {
    const { weights, optimizer } = this.kept.get(number);
    this.model = { ...this.reference, weights: weights.copy() };
    this.optimizer = optimizer.copy();
  }

  forget(number) {
    this.kept.delete(number);
  }

  sample(prompts, settings) {
    const rows = prompts.map(({ text, id }) => ({ ids: this.vocabulary.encode(text), id }));
    return sampleGroups(this.model, rows, { limit: LONGEST, ...settings }).map((group) => group.map((done) => this.described(done)));
  }

  described(done) {
    const ids = done.finished ? done.ids.slice(0, -1) : done.ids;
    return { ...done, text: this.vocabulary.decode(ids), tokens: done.ids.map((id) => this.vocabulary.tokens[id]) };
  }

  // One optimizer step. `groups`: [{prompt, completions: [{ids, reward}]}], prompts as text. As in the trainer, none is made
  // where neither a reward nor a KL term gives a gradient.
  update({ groups, lr = 1e-4, ...settings }) {
    const encoded = groups.map(({ prompt, completions }) => ({ prompt: this.vocabulary.encode(prompt), completions }));
    const { gradient, ...measured } = gradientOf(this.model, this.reference, encoded, { longest: LONGEST, ...settings });
    const contributes = settings.beta !== 0 || measured.advantages.flat().some(Boolean);
    return { ...measured, gradNorm: contributes ? this.optimizer.descend(this.model.weights.flat, gradient.flat, lr) : 0 };
  }

  // One step of training: draws prompts, samples, scores, updates. The noise is keyed as the trainer's.
  trainStep(step, { prompts = 8, group = 8, seed = 1, lr = TRAIN_LR, ...settings }) {
    const drawn = drawPrompts(prompts, seed, step).map((text, i) => ({ text, id: `train/${step}/${i}` }));
    const groups = this.sample(drawn, { group, seed, step, temperature: 1 }).map((completions, i) => ({
      prompt: drawn[i].text,
      completions: completions.map((done) => ({ ...done, ...score(drawn[i].text, done.text) })),
    }));
    const measured = this.update({ groups, lr: learningRate(lr, step), ...settings });
    return { ...measured, groups };
  }
}
