// Estimates of KL(policy ‖ reference) of one token: grpo.core.kl in JavaScript, tested against it.

export function klEstimate(logp, refLogp, kind = "k3") {
  if (kind === "k1") return logp - refLogp;
  if (kind === "k2") return (logp - refLogp) ** 2 / 2;
  // exp(d) − 1 would lose digits while the policy is close to its reference.
  if (kind === "k3") return Math.expm1(refLogp - logp) - (refLogp - logp);
  throw new Error(`unknown KL estimate ${kind}: k1, k2 or k3`);
}

// The KL term of the loss, before β: the estimate, for k3_ratio times the policy ratio.
export function klTerm(logp, refLogp, ratio, kind) {
  const estimate = klEstimate(logp, refLogp, kind.replace(/_ratio$/, ""));
  return kind.endsWith("_ratio") ? estimate * ratio : estimate;
}

// Derivatives of klTerm: by the log-probability at a fixed ratio, and by the ratio.
export function klSlopes(logp, refLogp, ratio, kind) {
  const plain = kind.replace(/_ratio$/, "");
  const slope = { k1: 1, k2: logp - refLogp, k3: -Math.expm1(refLogp - logp) }[plain];
  return kind.endsWith("_ratio") ? [slope * ratio, klEstimate(logp, refLogp, plain)] : [slope, 0];
}
