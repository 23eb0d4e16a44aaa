// A policy over a few answers, one logit each, with exact expectations: grpo.core.explain.tabular in JavaScript.
import { groupAdvantages, mean, sum } from "./advantage.js";
import { klSlopes } from "./kl.js";

const dot = (a, b) => sum(a.map((value, i) => value * b[i]));

export function logSoftmax(logits) {
  const most = Math.max(...logits);
  const total = Math.log(sum(logits.map((logit) => Math.exp(logit - most)))) + most;
  return logits.map((logit) => logit - total);
}

export function softmax(logits) {
  const most = Math.max(...logits);
  const each = logits.map((logit) => Math.exp(logit - most));
  const total = sum(each);
  return each.map((value) => value / total);
}

export const expectedReward = (logits, rewards) => dot(softmax(logits), rewards);

// Gradient of the expected reward by the logits: p (r − E r).
export function trueGradient(logits, rewards) {
  const p = softmax(logits);
  const expected = dot(p, rewards);
  return p.map((chance, a) => chance * (rewards[a] - expected));
}

// All V^G groups of `size` answers.
export function allGroups(answers, size) {
  let groups = [[]];
  for (let place = 0; place < size; place += 1) groups = groups.flatMap((group) => Array.from({ length: answers }, (_, a) => [...group, a]));
  return groups;
}

// Expectation of a group's gradient estimate, the mean of A ∇log p, over all V^G groups.
export function expectedEstimate(logits, rewards, groupSize, { baseline = "mean", scale = "none" } = {}) {
  const p = softmax(logits);
  const groups = allGroups(p.length, groupSize);
  const advantages = groupAdvantages(groups.map((group) => group.map((a) => rewards[a])), { baseline, scale });
  const expected = p.map(() => 0);
  groups.forEach((group, m) => {
    const chance = group.reduce((product, a) => product * p[a], 1);
    const estimate = groupEstimate(group, advantages[m], p);
    estimate.forEach((value, a) => (expected[a] += chance * value));
  });
  return expected;
}

// The mean of A ∇log p over one group; the gradient of log p(a) by the logits is onehot(a) − p.
export function groupEstimate(group, advantages, p) {
  const total = sum(advantages);
  const estimate = p.map((chance) => -chance * total);
  group.forEach((a, g) => (estimate[a] += advantages[g]));
  return estimate.map((value) => value / group.length);
}

// KL(policy ‖ reference), the reverse KL; with the arguments swapped, the forward one.
export function kl(logits, refLogits) {
  const [logp, ref] = [logSoftmax(logits), logSoftmax(refLogits)];
  return sum(logp.map((value, a) => Math.exp(value) * (value - ref[a])));
}

// Expected gradient of a KL estimate used as a loss on samples of the policy; the value of the ratio is 1.
export function expectedKlGradient(logits, refLogits, kind) {
  const [logp, ref] = [logSoftmax(logits), logSoftmax(refLogits)];
  const p = logp.map(Math.exp);
  const slopes = logp.map((value, a) => {
    const [byLogp, byRatio] = klSlopes(value, ref[a], 1, kind);
    return p[a] * (byLogp + byRatio);
  });
  const total = sum(slopes);
  return slopes.map((slope, a) => slope - p[a] * total);
}

// Angle between two vectors, in degrees.
export function angle(a, b) {
  const norm = (v) => Math.sqrt(dot(v, v));
  const unit = (v) => v.map((value) => value / Math.max(norm(v), 1e-12));
  const [one, other] = [unit(a), unit(b)];
  return (2 * Math.atan2(norm(one.map((x, i) => x - other[i])), norm(one.map((x, i) => x + other[i]))) * 180) / Math.PI;
}

// The logits after one step of trust region policy optimization, with exact expectations.
export function trpoStep(logits, rewards, maxKl) {
  if (Math.min(...rewards) === Math.max(...rewards)) return [...logits];
  // The Fisher matrix times r is the gradient, so its pseudo-inverse times the gradient is r − mean(r).
  const centre = mean(rewards);
  const direction = rewards.map((reward) => reward - centre);
  const size = Math.sqrt((2 * maxKl) / dot(trueGradient(logits, rewards), direction));
  let step = direction.map((value) => size * value);
  for (let turn = 0; turn < 30; turn += 1) {
    const moved = logits.map((logit, a) => logit + step[a]);
    if (kl(logits, moved) <= maxKl && expectedReward(moved, rewards) > expectedReward(logits, rewards)) return moved;
    step = step.map((value) => 0.9 * value);
  }
  return [...logits];
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// Gradient by the logits of direct preference optimization in expectation: both answers of a pair drawn from the reference.
export function dpoGradient(logits, refLogits, rewards, beta) {
  const [logp, ref] = [logSoftmax(logits), logSoftmax(refLogits)];
  const margins = logp.map((value, a) => beta * (value - ref[a]));
  const byLogp = logits.map(() => 0);
  ref.forEach((logA, a) =>
    ref.forEach((logB, b) => {
      const weight = Math.exp(logA) * Math.exp(logB) * sigmoid(rewards[a] - rewards[b]);
      const slope = -2 * weight * sigmoid(margins[b] - margins[a]) * beta;
      byLogp[a] += slope;
      byLogp[b] -= slope;
    }),
  );
  // The slopes of a pair cancel, so the softmax adds no term.
  return byLogp;
}
