// Importance weights for a sampler whose probabilities differ from the trainer's: grpo.core.correction in JavaScript.

// { weights, limited }: of each token, and whether it was above `cap`. Rows are completions; `mask` as in policyLoss.
export function samplerCorrection(oldLogp, samplerLogp, mask, kind, cap) {
  const [scope, action = ""] = kind.split("_");
  if (!["token", "sequence"].includes(scope) || !["", "mask"].includes(action))
    throw new Error(`unknown correction ${kind}: token, token_mask, sequence or sequence_mask`);
  const raw = Array.from(oldLogp, (row, n) => {
    const logs = Array.from(row, (old, t) => (mask[n][t] ? old - samplerLogp[n][t] : 0));
    const total = logs.reduce((all, each) => all + each, 0);
    return logs.map((each) => Math.exp(Math.min(scope === "sequence" ? total : each, 80)));
  });
  const limited = raw.map((row) => row.map((weight) => weight > cap));
  const weights = raw.map((row, n) => row.map((weight, t) => (limited[n][t] ? (action ? 0 : cap) : weight)));
  return { weights, limited };
}
