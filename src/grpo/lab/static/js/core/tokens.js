// Ratio, clip, KL and push of every token of one completion: grpo.core.explain.tokens and signal in JavaScript.
import { klTerm } from "./kl.js";
import { policyLoss, policyRatio } from "./loss.js";

const row = (values) => [Array.from(values)];

// { ratio, clip, kl, push }, one value per token. `settings` are those of policyLoss, with refLogp a list.
export function tokenTerms(logp, oldLogp, advantages, settings) {
  const { refLogp = null, ratio: kind = "token", kl = "k3" } = settings;
  const [ratio] = policyRatio(row(logp), row(oldLogp), null, kind);
  const free = pushes(logp, oldLogp, advantages, { ...settings, refLogp: null, beta: 0 });
  const held = free.map((push, t) => push === 0 && advantages[t] !== 0);
  return {
    ratio,
    clip: held.map((isHeld, t) => (isHeld ? Math.sign(ratio[t] - 1) : 0)),
    kl: refLogp && ratio.map((value, t) => klTerm(logp[t], refLogp[t], value, kl)),
    push: pushes(logp, oldLogp, advantages, settings),
  };
}

// One token's share of the update's loss; the other tokens stay, with advantage and KL 0.
export function tokenLoss(position, logp, oldLogp, advantages, settings) {
  const others = Array.from(advantages, (value, t) => (t === position ? value : 0));
  const refLogp = settings.refLogp && Array.from(logp, (value, t) => (t === position ? settings.refLogp[t] : value));
  return lossOf(logp, oldLogp, others, { ...settings, refLogp }).loss;
}

function pushes(logp, oldLogp, advantages, settings) {
  return lossOf(logp, oldLogp, advantages, settings).gradient[0].map((slope) => 0 - slope);
}

function lossOf(logp, oldLogp, advantages, settings) {
  const refLogp = settings.refLogp ? row(settings.refLogp) : null;
  return policyLoss(row(logp), row(oldLogp), row(advantages), null, { ...settings, refLogp });
}

// Probability that all completions of a problem are right, or all wrong: p^G + (1 − p)^G.
export const zeroSignalChance = (passRate, groupSize) => passRate ** groupSize + (1 - passRate) ** groupSize;
