// Answers of the chapter on training: exact training of small policies, and errors of published code.
import { groupAdvantages } from "../core/advantage.js";
import { policyLoss } from "../core/loss.js";
import { metrics } from "../core/statistics.js";
import { expectedEstimate, expectedKlGradient, expectedReward, kl, logSoftmax, softmax, trueGradient } from "../core/tabular.js";
import { tokenTerms } from "../core/tokens.js";
import { descend } from "./advantage.js";
import { number, whole, word } from "./query.js";

const START = [0.35, 0.25, 0.2, 0.15, 0.05];
const REWARDS = [0, 0.2, 0.4, 0.1, 1];

// Exact steps with a KL penalty: forward and reverse KL, and the reward.
function drift(params) {
  const [beta, lr] = [number(params, "beta", 0.04, 0, 2), number(params, "lr", 0.5, 0.01, 2)];
  const kind = word(params, "kl", "k3", ["k1", "k2", "k3"]);
  const steps = whole(params, "steps", 200, 1, 400);
  const ref = START.map(Math.log);
  const rows = [];
  let logits = ref;
  for (let step = 0; step <= steps; step += 1) {
    if (step % 4 === 0 || step === steps) rows.push({ step, reverse: kl(logits, ref), forward: kl(ref, logits), reward: expectedReward(logits, REWARDS) });
    const pull = beta ? expectedKlGradient(logits, ref, kind) : logits.map(() => 0);
    const gain = trueGradient(logits, REWARDS);
    logits = logits.map((logit, a) => logit + lr * (gain[a] - beta * pull[a]));
  }
  return { beta, rows, probabilities: softmax(logits), start: START };
}

// Exact gradient ascent with the true gradient, with the group's mean, and with the group's std.
function convergence(params) {
  const [size, lr] = [whole(params, "g", 4, 2, 5), number(params, "lr", 0.5, 0.01, 2)];
  const rewards = [0, 0.5, 1];
  const ways = {
    "true gradient": (logits) => trueGradient(logits, rewards),
    "group mean": (logits) => expectedEstimate(logits, rewards, size),
    "group mean and std": (logits) => expectedEstimate(logits, rewards, size, { scale: "group_std" }),
  };
  const path = (gradient) => {
    const rows = [];
    let logits = [0.6, 0.3, 0.1].map(Math.log);
    for (let step = 0; step <= 200; step += 1) {
      if (step % 5 === 0) rows.push({ step, reward: expectedReward(logits, rewards) });
      const up = gradient(logits);
      logits = logits.map((logit, a) => logit + lr * up[a]);
    }
    return rows;
  };
  return { group_size: size, best: 1, ways: Object.fromEntries(Object.entries(ways).map(([name, gradient]) => [name, path(gradient)])) };
}

// As published: a token is clipped where the clipped objective divided by A differs from the ratio; in float32.
function listedAsClipped(ratio, advantage, epsilon) {
  const [held, at] = [Math.fround(advantage), Math.fround(ratio)];
  const limited = Math.min(Math.max(at, Math.fround(1 - epsilon)), Math.fround(1 + epsilon));
  return at !== Math.fround(Math.fround(limited * held) / held) ? 1 : 0;
}

function clipFractions(params) {
  const epsilon = number(params, "epsilon", 0.2, 0.01, 0.9);
  const cases = [[1, 0], [1, 0.7], [1.5, 1], [1.5, -1], [0.5, 1], [0.5, -1], [1.1, 0.3]];
  const rows = cases.map(([ratio, advantage]) => {
    const terms = tokenTerms([Math.log(ratio)], [0], [advantage], { denominator: 1, clipLow: epsilon, clipHigh: epsilon });
    return { ratio, advantage, listed: listedAsClipped(ratio, advantage, epsilon), trainer: terms.clip[0] ? 1 : 0, push: terms.push[0] };
  });
  const share = (name) => Math.fround(rows.filter((row) => row[name]).length / rows.length);
  return { epsilon, rows, listed: share("listed"), trainer: share("trainer") };
}

function penalty(params) {
  const shift = number(params, "shift", 1, 0, 3);
  const ref = [0.5, 0.3, 0.2].map(Math.log);
  const logits = [ref[0] + shift, ref[1], ref[2]];
  return Object.fromEntries(["k1", "k2", "k3"].map((kind) => [kind, expectedKlGradient(logits, ref, kind)]));
}

function sequence(params) {
  const [tokens, percent] = [whole(params, "tokens", 200, 1, 2000), number(params, "percent", 0.5, 0.01, 20)];
  const ratio = 1 + percent / 100;
  return { tokens, percent, token_ratio: ratio, sequence_ratio: Math.exp(tokens * Math.log(ratio)), tokens_to_clip: Math.log(1.2) / Math.log(ratio) };
}

const DRAWN = [0, 1, 0, 2, 3, 0, 1, 3];

// One optimizer step per completion, as published, and one step on the whole batch of eight.
function stepsPerSample(params) {
  const [lr, epochs] = [number(params, "lr", 0.5, 0.01, 3), whole(params, "epochs", 4, 1, 8)];
  const advantages = groupAdvantages([1, 0, 1, 0, 0, 1, 0, 0]);
  const start = [0.4, 0.3, 0.2, 0.1].map(Math.log);
  const trained = (batches) => {
    let [logits, updates, clipped] = [start, 0, 0];
    for (let epoch = 0; epoch < epochs; epoch += 1) {
      for (const batch of batches) {
        const drawn = batch.map((n) => DRAWN[n]);
        const logp = logSoftmax(logits);
        const old = drawn.map((a) => [start[a]]);
        const { gradient, statistics } = policyLoss(drawn.map((a) => [logp[a]]), old, batch.map((n) => advantages[n]), null, { denominator: batch.length });
        logits = descend(logits, drawn, gradient.map(([slope]) => slope), lr);
        updates += 1;
        clipped += metrics(statistics).clip_high + metrics(statistics).clip_low;
      }
    }
    const ratios = logSoftmax(logits).map((value, a) => Math.exp(value - start[a]));
    return { updates, ratio_max: Math.max(...ratios), ratio_min: Math.min(...ratios), clipped: clipped / updates, probabilities: softmax(logits) };
  };
  return { lr, epochs, each: trained(DRAWN.map((_, n) => [n])), batch: trained([DRAWN.map((_, n) => n)]) };
}

export const TRAIN = { drift, convergence, clip_fractions: clipFractions, penalty, sequence, each: stepsPerSample };
