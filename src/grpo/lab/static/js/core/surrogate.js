// The loss of one token as a function of its ratio: the surrogates of grpo.core.loss, each with its derivatives.
// (ratio, logp, advantage, limits) -> [loss, derivative by the ratio, derivative by logp at a fixed ratio]
export const LIMITS = { clipLow: 0.2, clipHigh: 0.2, cap: 0, gateUp: 1, gateDown: 1.05 };

// Ties share the gradient, as in torch.minimum and torch.maximum.
const shareOfSmaller = (one, other) => (one < other ? 1 : one === other ? 0.5 : 0);

function clip(ratio, logp, advantage, { clipLow, clipHigh, cap }) {
  const [low, high] = [1 - clipLow, 1 + clipHigh];
  const free = ratio * advantage;
  const held = Math.min(Math.max(ratio, low), high) * advantage;
  const inside = ratio >= low && ratio <= high ? 1 : 0;
  let gain = Math.min(free, held);
  let slope = advantage * (shareOfSmaller(free, held) + shareOfSmaller(held, free) * inside);
  if (cap && advantage < 0) {
    slope *= shareOfSmaller(cap * advantage, gain);
    gain = Math.max(gain, cap * advantage);
  }
  return [-gain, -slope, 0];
}

function weight(ratio, logp, advantage, { cap }) {
  const fixed = cap ? Math.min(ratio, cap) : ratio;
  return [-fixed * advantage * logp, 0, -fixed * advantage];
}

function gate(ratio, logp, advantage, { gateUp, gateDown }) {
  const steepness = advantage > 0 ? gateUp : gateDown;
  const open = 1 / (1 + Math.exp(-steepness * (ratio - 1)));
  return [(-4 / steepness) * open * advantage, -4 * open * (1 - open) * advantage, 0];
}

const plain = (ratio, logp, advantage) => [-ratio * advantage, -advantage, 0];

export const SURROGATES = { clip, weight, gate, plain };

// Whether the lower clip, the upper clip or the cap reduces the token's gradient.
export function clippedToken(ratio, advantage, surrogate, { clipLow, clipHigh, cap }) {
  const clips = surrogate === "clip";
  const capped = Boolean(cap) && ratio > cap;
  return {
    clip_low: clips && ratio < 1 - clipLow && advantage < 0,
    clip_high: clips && ratio > 1 + clipHigh && advantage > 0,
    capped: capped && (clips ? advantage < 0 : surrogate === "weight" && advantage !== 0),
  };
}
