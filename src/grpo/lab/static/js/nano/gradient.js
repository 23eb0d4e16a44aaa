// The gradient of one optimizer step of GRPO: advantages and loss from core/, then back through the network.
import { groupAdvantages } from "../core/advantage.js";
import { denominator, policyLoss } from "../core/loss.js";
import { logitSlopes, readGroups } from "./logprobs.js";
import { backward } from "./model.js";

const BETA = 0.04; // the trainer's default

// {gradient, loss, advantages, push} of groups [{prompt, completions: [{ids, reward}]}]; advantages by group and completion,
// push (−∂loss/∂logp) by token. Settings are those of groupAdvantages and policyLoss. Without `oldLogp` the old policy is
// the policy. `reference`: the model that the KL term compares with.
export function gradientOf(model, reference, groups, { longest, oldLogp = null, beta = BETA, aggregate = "sequence", ...settings }) {
  if (settings.entropyWeight) throw new Error("entropyWeight: training in the page has no entropy bonus");
  const advantages = groupAdvantages(groups.map(({ completions }) => completions.map(({ reward }) => reward)), {
    ...settings,
    lengths: groups.map(({ completions }) => completions.map(({ ids }) => ids.length)),
  });
  const batch = groups.map(({ prompt, completions }) => ({ prompt, completions: completions.map(({ ids }) => ids) }));
  const { tape, completions, logp_NV, logprobs } = readGroups(model, batch);
  const entropy = completions.map(({ targets, sources }) => targets.map((_, t) => entropyOf(logp_NV[sources[t]])));
  const refLogp = beta ? readGroups(reference, batch).logprobs : null;
  const { loss, gradient: slopes, statistics } = policyLoss(logprobs, oldLogp ?? logprobs, advantages.flat(), null, {
    ...settings,
    beta,
    aggregate,
    refLogp,
    entropy,
    denominator: denominator(logprobs.map((row) => row.length), aggregate, longest),
  });
  const gradient = model.weights.zeros();
  backward(model.weights, tape, logitSlopes(completions, slopes, logp_NV), gradient);
  const rows = slopes.map((row) => row.map((slope) => 0 - slope));
  return { gradient, loss, advantages, logprobs, refLogp, entropy, statistics, push: groups.map(({ completions }) => rows.splice(0, completions.length)) };
}

const entropyOf = (logp_V) => -logp_V.reduce((sum, logp) => sum + Math.exp(logp) * logp, 0);
