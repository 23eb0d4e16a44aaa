// The policy loss and its gradient by every log-probability: grpo.core.loss in JavaScript, tested against it.
// Rows are completions; `mask` is true where a row has a token (null: everywhere), so rows may differ in length.
import { samplerCorrection } from "./correction.js";
import { klSlopes, klTerm } from "./kl.js";
import { measure } from "./statistics.js";
import { clippedToken, LIMITS, SURROGATES } from "./surrogate.js";
export { LIMITS, SURROGATES };

// Divisor of the summed loss of one optimizer step.
export function denominator(lengths, aggregate, maxNewTokens) {
  if (aggregate === "sequence") return lengths.length;
  if (aggregate === "token") return lengths.reduce((total, length) => total + length, 0);
  if (aggregate === "constant") return lengths.length * maxNewTokens;
  throw new Error(`unknown aggregate ${aggregate}: sequence, token or constant`);
}

// ρ of every token: its own (token), or one for a completion: the geometric mean (sequence) or product of theirs.
export function policyRatio(logp, oldLogp, mask, ratio = "token") {
  return logRatios(logp, oldLogp, mask, ratio).map((row) => row.map(bounded));
}

// e^80 fits float32; the trainer bounds the ratio there.
const bounded = (logRatio) => Math.exp(Math.min(logRatio, 80));
const everywhere = (rows) => Array.from(rows, (row) => Array.from(row, () => true));
const lengthOf = (mask) => Math.max(mask.filter(Boolean).length, 1);
const sum = (values) => values.reduce((total, value) => total + value, 0);

function logRatios(logp, oldLogp, mask, ratio) {
  if (!["token", "sequence", "product"].includes(ratio)) throw new Error(`unknown ratio ${ratio}: token, sequence or product`);
  return Array.from(logp, (row, n) => {
    const each = Array.from(row, (value, t) => value - oldLogp[n][t]);
    if (ratio === "token") return each;
    const shared = sum(each) / (ratio === "sequence" ? lengthOf(mask ? mask[n] : each.map(() => true)) : 1);
    return each.map(() => shared);
  });
}

// Σ weight · ℓ over the tokens of the mask.
function weightedSum(loss, mask, aggregate) {
  return sum(loss.map((row, n) => sum(row.map((value, t) => (mask[n][t] ? value * shareOf(mask[n], aggregate) : 0)))));
}

function shareOf(mask, aggregate) {
  if (aggregate === "sequence") return 1 / lengthOf(mask);
  if (!["token", "constant"].includes(aggregate)) throw new Error(`unknown aggregate ${aggregate}: sequence, token or constant`);
  return 1;
}

// { loss, gradient, statistics }: the loss of one micro-batch, its derivative by every logp, and its statistics.
// `advantages`: one per token, or one per completion.
export function policyLoss(logp, oldLogp, advantages, mask = null, settings = {}) {
  const { denominator: divisor, ratio = "token", surrogate = "clip", aggregate = "sequence", beta = 0, refLogp = null, kl = "k3" } = settings;
  const { entropyWeight = 0, entropy = null, correction = "none", correctionCap = 2, samplerLogp = null } = settings;
  const kept = mask ? Array.from(mask, (row) => Array.from(row, Boolean)) : everywhere(logp);
  const limits = { ...LIMITS, ...settings };
  if (correction !== "none" && !samplerLogp) throw new Error("a correction needs samplerLogp");
  if (beta && !refLogp) throw new Error("beta > 0 needs refLogp");
  if (entropyWeight && !entropy) throw new Error("entropyWeight > 0 needs entropy");
  // Padding may be NaN, so it is replaced before any arithmetic.
  const within = (rows) => kept.map((row, n) => row.map((inside, t) => (inside ? rows[n][t] : 0)));
  const [now, old] = [within(logp), within(oldLogp)];
  const credit = within(Array.from(advantages, (each, n) => (typeof each === "number" ? kept[n].map(() => each) : each)));
  const reference = refLogp && within(refLogp);
  const logs = logRatios(now, old, kept, ratio);
  const ratios = logs.map((row) => row.map(bounded));
  const corrected = correction === "none" ? null : samplerCorrection(old, samplerLogp, kept, correction, correctionCap);
  const terms = now.map((row, n) =>
    row.map((value, t) => {
      const [loss, byRatio, byLogp] = SURROGATES[surrogate](ratios[n][t], value, credit[n][t], limits);
      const weight = corrected ? corrected.weights[n][t] : 1;
      const distance = reference ? klTerm(value, reference[n][t], ratios[n][t], kl) : 0;
      const [klByLogp, klByRatio] = beta ? klSlopes(value, reference[n][t], ratios[n][t], kl) : [0, 0];
      const bonus = entropyWeight && kept[n][t] ? entropyWeight * entropy[n][t] : 0;
      return { policy: loss * weight, kl: distance, bonus, byRatio: byRatio * weight + beta * klByRatio, byLogp: byLogp * weight + beta * klByLogp };
    }),
  );
  const total = (pick) => weightedSum(terms.map((row) => row.map(pick)), kept, aggregate) / divisor;
  const loss = total((term) => term.policy + (beta ? beta * term.kl : 0) - term.bonus);
  const parts = {
    policy_loss: total((term) => term.policy),
    kl_loss: beta ? total((term) => beta * term.kl) : null,
    entropy_bonus: entropyWeight ? total((term) => term.bonus) : null,
  };
  const clipped = ratios.map((row, n) => row.map((value, t) => clippedToken(value, credit[n][t], surrogate, limits)));
  const distances = reference && terms.map((row) => row.map((term) => term.kl));
  return {
    loss,
    gradient: gradientOf(terms, logs, ratios, kept, ratio, (row) => shareOf(row, aggregate) / divisor),
    statistics: measure(loss, ratios, credit, kept, { parts, clipped, corrected: corrected?.limited ?? null, kl: distances, entropy }),
  };
}

// Every token of a completion moves a shared ratio; each moves its own log-probability.
function gradientOf(terms, logs, ratios, mask, ratio, share) {
  return terms.map((row, n) => {
    const factor = share(mask[n]);
    const through = row.map((term, t) => (mask[n][t] && logs[n][t] <= 80 ? term.byRatio * ratios[n][t] : 0));
    const shared = ratio === "token" ? null : sum(through) / (ratio === "sequence" ? lengthOf(mask[n]) : 1);
    return row.map((term, t) => (mask[n][t] ? factor * (term.byLogp + (shared ?? through[t])) : 0));
  });
}
