// Log-probabilities of given completions.
import { forward, makeCache } from "./model.js";
import { pack } from "./rows.js";
import { logSoftmax } from "./sampling.js";

// (what the forward pass kept, for each completion its tokens' log-probabilities). `groups`: [{prompt, completions}], in ids.
export function readGroups({ weights, shape }, groups, temperature = 1) {
  const { rows, completions } = pack(groups);
  const tape = forward(weights, shape, rows, makeCache(shape, rows.count));
  const V = tape.logits.length / rows.count;
  const logp_NV = Array.from({ length: rows.count }, (_, n) => logSoftmax(tape.logits.subarray(n * V, (n + 1) * V), temperature));
  const logprobs = completions.map(({ targets, sources }) => targets.map((token, i) => logp_NV[sources[i]][token]));
  return { tape, completions, logp_NV, logprobs };
}

// ∂loss/∂logits of every row, from the slopes ∂loss/∂logp of its tokens: ∂logp(token)/∂logits is 1 at the token, less the probabilities.
export function logitSlopes(completions, slopes, logp_NV) {
  const V = logp_NV[0].length;
  const dlogits_NV = new Float32Array(logp_NV.length * V);
  completions.forEach(({ targets, sources }, i) =>
    targets.forEach((token, t) => {
      const row = sources[t] * V;
      dlogits_NV[row + token] += slopes[i][t];
      for (let v = 0; v < V; v++) dlogits_NV[row + v] -= slopes[i][t] * Math.exp(logp_NV[sources[t]][v]);
    }),
  );
  return dlogits_NV;
}

// The most probable tokens after a prompt and the ids that follow it.
export function likeliest(model, ids, count) {
  const { logp_NV } = readGroups(model, [{ prompt: ids, completions: [] }]);
  const probabilities = [...logp_NV.at(-1)].map((logp, id) => ({ id, probability: Math.exp(logp) }));
  return probabilities.sort((one, other) => other.probability - one.probability).slice(0, count);
}
