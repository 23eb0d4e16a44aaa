// nano in the page: one worker computes for all parts of a page, and each part has weights of its own, at first the
// shipped ones. Every call is a promise.
//   const nano = await openNano("scene");
//   const { completions } = await nano.sample({ prompt: "37+85+46=" });
import { get } from "../api.js";
import { openWorker } from "../load.js";

const shared = { opening: null };

// `part`: the name of those who share the weights.
export async function openNano(part = "page") {
  shared.opening ??= start().catch((error) => {
    shared.opening = null; // so that the next part tries again
    throw error;
  });
  return new Nano(await shared.opening, part);
}

async function start() {
  const [worker, files] = await Promise.all([openWorker("nano/worker.js"), get("/api/nano")]);
  worker.postMessage({ open: files });
  return new Connection(worker);
}

class Connection {
  constructor(worker) {
    this.worker = worker;
    this.count = 0;
    this.waiting = new Map();
    worker.onmessage = ({ data }) => this.receive(data);
    worker.onerror = (event) => this.fail(event.message || "the worker did not start");
  }

  send(message, onProgress) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, onProgress });
      this.worker.postMessage({ id, ...message });
    });
  }

  receive({ id, value, progress, error }) {
    const one = this.waiting.get(id);
    if (progress !== undefined) return one.onProgress?.(progress);
    this.waiting.delete(id);
    if (error !== undefined) one.reject(new Error(error));
    else one.resolve(value);
  }

  fail(reason) {
    for (const { reject } of this.waiting.values()) reject(new Error(`nano: ${reason}`));
    this.waiting.clear();
  }
}

class Nano {
  constructor(connection, part) {
    this.connection = connection;
    this.part = part;
  }

  call(call, settings = {}, onProgress = null) {
    return this.connection.send({ part: this.part, call, settings }, onProgress);
  }

  // {prompt, group, seed, step, temperature} -> {completions: [{text, ids, tokens, logprobs, finished}]}
  sample(settings) {
    return this.call("sample", settings);
  }

  // {prompt, ids} -> the log-probability of each of the ids
  logprobs(settings) {
    return this.call("logprobs", settings);
  }

  // {prompt, ids, count} -> the most probable next tokens: [{id, token, probability}]
  next(settings) {
    return this.call("next", settings);
  }

  // The ids of a text, with the end token's where wanted; refuses characters that nano does not know.
  encode(text, { end = false } = {}) {
    return this.call("encode", { text, end });
  }

  decode(ids) {
    return this.call("decode", { ids });
  }

  // {prompt, text} -> {correct, reward, extracted, answer, worked}, as the task arithmetic:easy scores
  score(settings) {
    return this.call("score", settings);
  }

  // One step of the trainer: {groups: [{prompt, completions: [{ids, reward}]}], lr, ...settings of the loss}
  // -> {advantages: by group and completion, push: by group, completion and token, gradNorm, loss; logprobs, refLogp and
  // entropy by completion and token, statistics of the loss}. `oldLogp`, like logprobs: the policy before the first of several updates.
  update(settings) {
    return this.call("update", settings);
  }

  // {steps, first, prompts, group, seed, lr} -> {done: a promise of the number of steps made, cancel()}. `onStep` gets, after
  // every step, {step, reward, accuracy, worked, silent, loss, gradNorm, seconds, groups}: shares of the answers, groups
  // without signal, and one group: [{prompt, completions: [{text, reward, worked, advantage}]}].
  train(settings, onStep) {
    return { done: this.call("train", settings, onStep), cancel: () => this.call("cancel") };
  }

  // The shipped weights and a new optimizer.
  reset() {
    return this.call("reset");
  }

  // Keeps weights and optimizer in the worker, until `forget`; both take the number that this gives.
  snapshot() {
    return this.call("snapshot");
  }

  restore(number) {
    return this.call("restore", { number });
  }

  forget(number) {
    return this.call("forget", { number });
  }
}
