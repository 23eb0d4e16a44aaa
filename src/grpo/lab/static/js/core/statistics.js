// Sums and counts of the loss, and the metrics computed from them: grpo.core.statistics in JavaScript.
import { deviation, mean } from "./advantage.js";

const SIGNAL_SHARES = ["clip_low", "clip_high", "capped", "corrected"];

// Statistics of one micro-batch; null where a quantity was not computed. Names as in the table of metrics.
export function measure(loss, ratio, advantages, mask, { parts, clipped, corrected = null, kl = null, entropy = null }) {
  const inside = mask.flatMap((row, n) => row.flatMap((kept, t) => (kept ? [[n, t]] : [])));
  const signal = inside.filter(([n, t]) => advantages[n][t] !== 0);
  const count = (rows, name) => signal.filter(([n, t]) => (name ? rows[n][t][name] : rows[n][t])).length;
  const total = (rows) => inside.reduce((all, [n, t]) => all + rows[n][t], 0);
  const ratios = inside.map(([n, t]) => ratio[n][t]);
  return {
    loss,
    ...parts,
    tokens: inside.length,
    gradient_tokens: signal.length,
    ...Object.fromEntries(["clip_low", "clip_high", "capped"].map((name) => [name, count(clipped, name)])),
    corrected: corrected && count(corrected),
    kl: kl && total(kl),
    entropy: entropy && total(entropy),
    ratio_min: ratios.reduce((least, value) => Math.min(least, value), Infinity),
    ratio_max: ratios.reduce((most, value) => Math.max(most, value), -Infinity),
  };
}

// Losses as they are, shares of the clip per token with a non-zero advantage, the rest per token.
export function metrics(statistics) {
  const perToken = ["gradient_tokens", "kl", "entropy"];
  const names = [...perToken, ...SIGNAL_SHARES, "loss", "policy_loss", "kl_loss", "entropy_bonus", "ratio_min", "ratio_max"];
  const divisor = (name) =>
    perToken.includes(name) ? Math.max(statistics.tokens, 1) : SIGNAL_SHARES.includes(name) ? Math.max(statistics.gradient_tokens, 1) : 1;
  return Object.fromEntries(names.filter((name) => statistics[name] !== null).map((name) => [name, statistics[name] / divisor(name)]));
}

// Mean and std of the valid rewards, NaN without any; std of their advantages; share of groups without signal.
export function rewardStatistics(rewards, advantages, valid) {
  const within = (rows) => rows.flatMap((row, p) => Array.from(row).filter((_, g) => valid[p][g]));
  const [rewarded, credited] = [within(rewards), within(advantages)];
  return {
    reward_mean: mean(rewarded),
    reward_std: rewarded.length > 1 ? deviation(rewarded) : rewarded.length ? 0 : NaN,
    advantage_std: credited.length > 1 ? deviation(credited) : 0,
    zero_signal_groups: mean(advantages.map((row) => (Array.from(row).some((value) => value !== 0) ? 0 : 1))),
    unscored: mean(valid.flatMap((row) => Array.from(row, (scored) => (scored ? 0 : 1)))),
  };
}
