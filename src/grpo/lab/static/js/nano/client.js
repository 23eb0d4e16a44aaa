// nano in the page: one worker for all parts of a page. Every call is a promise; the worker computes.
//   const nano = await openNano();
//   const { completions } = await nano.sample({ prompt: "37+85+46=" });
import { get } from "../api.js";

let opened = null;

export function openNano() {
  opened ??= start().catch((error) => {
    opened = null; // so that the next part tries again
    throw error;
  });
  return opened;
}

async function start() {
  const nano = new Nano(await makeWorker());
  await nano.call("open", await get("/api/nano"));
  return nano;
}

async function makeWorker() {
  return new Worker(trusted("/static/js/nano/worker.js"), { type: "module" });
}

// Under the page's policy a worker's address must be marked as checked.
function trusted(url) {
  if (!window.trustedTypes) return url;
  return trustedTypes.createPolicy("nano", { createScriptURL: (text) => text }).createScriptURL(url);
}

class Nano {
  constructor(worker) {
    this.worker = worker;
    this.count = 0;
    this.waiting = new Map();
    worker.onmessage = ({ data }) => this.receive(data);
    worker.onerror = (event) => this.fail(event.message || "the worker did not start");
  }

  call(call, settings = {}, onProgress = null) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, onProgress });
      this.worker.postMessage({ id, call, settings });
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

  // {prompt, group, seed, temperature} -> {completions: [{text, ids, tokens, logprobs, finished}]}
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

  // The ids of a text; refuses characters that nano does not know.
  encode(text) {
    return this.call("encode", { text });
  }

  decode(ids) {
    return this.call("decode", { ids });
  }

  // {prompt, text} -> {correct, reward, extracted, answer, worked}, as the task arithmetic:easy scores
  score(settings) {
    return this.call("score", settings);
  }
}
