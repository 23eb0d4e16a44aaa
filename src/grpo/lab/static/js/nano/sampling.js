// Samples groups token by token. Each prompt is computed once; its completions go on from its keys and values.
import { forward, makeCache } from "./model.js";
import { noiseOf } from "./noise.js";
import { makeRows, promptRows } from "./rows.js";

// Groups of `group` completions {ids, logprobs, finished}, one for each prompt {ids, id}. The noise of a token is that of
// the trainer's sampler, keyed by the problem's id. At temperature 0 the likeliest token is taken.
export function sampleGroups({ weights, shape, end }, prompts, { group, seed, step = 0, purpose = "train", temperature, limit }) {
  const running = [];
  const started = [];
  let slots = 0;
  for (const { ids, id } of prompts) {
    const noise = noiseOf({ seed, purpose, step, id });
    const [promptFrom, promptTo] = [slots, slots + ids.length];
    started.push(...promptRows(ids, promptFrom));
    slots = promptTo;
    for (let sample = 0; sample < group; sample++, slots += limit) {
      running.push({
        ids: [], logprobs: [], finished: false, noise, sample, prompt: ids.length, promptFrom, promptTo, ownFrom: slots, row: started.length - 1,
      });
    }
  }
  const cache = makeCache(shape, slots);
  let rows = makeRows(started);
  for (let active = running; active.length; ) {
    const { logits } = forward(weights, shape, rows, cache);
    const V = logits.length / rows.count;
    for (const one of active) take(one, logits.subarray(one.row * V, (one.row + 1) * V), temperature, end);
    active = active.filter((one) => !one.finished && one.ids.length < limit);
    rows = makeRows(active.map((one, row) => ({ ...one, ...next(one, row) })));
  }
  return prompts.map((_, p) => running.slice(p * group, (p + 1) * group).map(({ ids, logprobs, finished }) => ({ ids, logprobs, finished })));
}

// The row of the token that a completion sampled last.
function next(one, row) {
  one.row = row;
  const own = one.ids.length - 1;
  return { token: one.ids[own], position: one.prompt + own, slot: one.ownFrom + own };
}

function take(one, logits_V, temperature, end) {
  const logp_V = logSoftmax(logits_V, temperature || 1);
  const token = temperature ? inverse(logp_V, one.noise(one.sample, one.ids.length)) : logp_V.indexOf(Math.max(...logp_V));
  one.ids.push(token);
  one.logprobs.push(logp_V[token]);
  one.finished = token === end;
}

export function logSoftmax(logits_V, temperature) {
  let greatest = -Infinity;
  for (const logit of logits_V) greatest = Math.max(greatest, logit / temperature);
  let total = 0;
  for (const logit of logits_V) total += Math.exp(logit / temperature - greatest);
  return Float64Array.from(logits_V, (logit) => logit / temperature - greatest - Math.log(total));
}

// The token whose interval of the cumulative probability holds `uniform`.
function inverse(logp_V, uniform) {
  let sum = 0;
  for (let token = 0; token < logp_V.length; token++) {
    sum += Math.exp(logp_V[token]);
    if (sum > uniform) return token;
  }
  return logp_V.length - 1;
}
