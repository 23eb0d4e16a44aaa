// Answers about the KL divergence: three estimates of one token, exact values of bars, and drift over training.
import { groupAdvantages, mean, sum } from "../core/advantage.js";
import { klEstimate, klSlopes } from "../core/kl.js";
import { policyLoss } from "../core/loss.js";
import { Generator } from "../core/random.js";
import { expectedKlGradient, expectedReward, kl as exactKl, logSoftmax, softmax } from "../core/tabular.js";
import { descend } from "./advantage.js";
import { linspace, number, numbers, whole, word } from "./query.js";

const KINDS = ["k1", "k2", "k3"];
const LOSS_KINDS = [...KINDS, "k3_ratio"];
const norm = (v) => Math.sqrt(sum(v.map((x) => x * x)));

function klOfToken(params) {
  const [policy, reference] = [number(params, "policy", 0.5, 0.001, 0.999), number(params, "reference", 0.3, 0.001, 0.999)];
  const beta = number(params, "beta", 0.04, 0, 2);
  const grid = linspace(-2.5, 2.5, 101);
  const difference = Math.log(policy / reference);
  const slopeAt = (at, kind) => klSlopes(at, 0, 1, kind)[0];
  const rows = KINDS.map((kind) => {
    const [value, slope] = [klEstimate(difference, 0, kind), slopeAt(difference, kind)];
    const curve = { value: grid.map((at) => klEstimate(at, 0, kind)), slope: grid.map((at) => slopeAt(at, kind)) };
    return [kind, { value, slope, penalty: beta * value, pull: 0 - beta * slope, curve }];
  });
  return { difference, beta, grid, kinds: Object.fromEntries(rows) };
}

function klOfBars(params) {
  const shares = (bars) => bars.map((bar) => bar / sum(bars));
  const q = shares(numbers(params, "reference", [0.4, 0.3, 0.2, 0.1], 0.001, 1, { least: 2, most: 8 }));
  const p = shares(numbers(params, "policy", [0.05, 0.15, 0.2, 0.6], 0.001, 1, { least: q.length, most: q.length }));
  const [logits, ref] = [p.map(Math.log), q.map(Math.log)];
  const reverse = exactKl(logits, ref);
  const gradients = {
    reverse: p.map((chance, a) => chance * (logits[a] - ref[a] - reverse)),
    forward: p.map((chance, a) => chance - q[a]),
  };
  return {
    policy: p,
    reference: q,
    reverse,
    forward: exactKl(ref, logits),
    reverse_parts: p.map((chance, a) => chance * Math.log(chance / q[a])),
    forward_parts: q.map((chance, a) => chance * Math.log(chance / p[a])),
    gradients,
    estimates: Object.fromEntries(LOSS_KINDS.map((kind) => [kind, estimate(logits, ref, kind, gradients)])),
  };
}

// Mean and std of an estimate over the policy's samples, and its expected gradient as a loss.
function estimate(logits, ref, kind, truth) {
  const p = softmax(logits);
  const [logp, refLogp] = [logSoftmax(logits), logSoftmax(ref)];
  const values = logp.map((value, a) => klEstimate(value, refLogp[a], kind.replace(/_ratio$/, "")));
  const average = sum(values.map((value, a) => p[a] * value));
  const gradient = expectedKlGradient(logits, ref, kind);
  const largest = Math.max(...Object.values(truth).map(norm));
  const nothing = norm(gradient) <= 1e-9 * Math.max(1, largest);
  const near = (other) => gradient.every((value, a) => Math.abs(value - other[a]) <= 1e-9 + 1e-5 * Math.abs(other[a]));
  const matches = Object.keys(truth).filter((name) => largest > 1e-9 && near(truth[name]));
  return {
    values,
    mean: average,
    spread: Math.sqrt(sum(values.map((value, a) => p[a] * (value - average) ** 2))),
    gradient,
    size: nothing ? 0 : norm(gradient),
    matches: nothing ? "nothing" : matches.join(" and ") || "neither",
  };
}

const STEPS = 200;
const SHOWN_EVERY = 4;
const [GROUPS, GROUP_SIZE, LEARNING_RATE] = [4, 8, 0.5];
const RIGHT = 3;
export const referenceLogits = () => Array.from({ length: 12 }, (_, a) => -0.35 * a);
export const rewardsOfAnswers = () => Array.from({ length: 12 }, (_, a) => (a === RIGHT ? 1 : 0));
export const shownSteps = () => Array.from({ length: STEPS / SHOWN_EVERY + 1 }, (_, i) => i * SHOWN_EVERY);

// The logits before and after each GRPO step of a policy over twelve answers, at the steps that are shown.
function trainTabular(rewards, beta, kl, seed) {
  const draws = GROUPS * GROUP_SIZE;
  const refLogp = logSoftmax(referenceLogits());
  const generator = new Generator(seed);
  let logits = referenceLogits();
  const path = [logits];
  for (let step = 1; step <= STEPS; step += 1) {
    const drawn = generator.choices(softmax(logits), draws);
    const groups = Array.from({ length: GROUPS }, (_, p) => drawn.slice(p * GROUP_SIZE, (p + 1) * GROUP_SIZE).map((a) => rewards[a]));
    const logp = logSoftmax(logits);
    const column = drawn.map((a) => [logp[a]]);
    const settings = { denominator: draws, beta, kl, refLogp: drawn.map((a) => [refLogp[a]]) };
    const { gradient } = policyLoss(column, column, groupAdvantages(groups).flat(), null, settings);
    logits = descend(logits, drawn, gradient.map(([slope]) => slope), LEARNING_RATE);
    if (step % SHOWN_EVERY === 0) path.push(logits);
  }
  return path;
}

const lines = new Map();

// KL to the reference in both directions and expected reward. `proxy`: a wrong answer also gets the full reward.
export function drift(beta, kl, seed, proxy = false) {
  const key = [beta, kl, seed, proxy].join(" ");
  if (lines.has(key)) return lines.get(key);
  const [truth, ref] = [rewardsOfAnswers(), referenceLogits()];
  const rewards = truth.map((reward, a) => (proxy && a === 1 ? 1 : reward));
  const path = trainTabular(rewards, beta, kl, seed);
  const line = {
    reverse: path.map((logits) => exactKl(logits, ref)),
    forward: path.map((logits) => exactKl(ref, logits)),
    reward: path.map((logits) => expectedReward(logits, rewards)),
    true_reward: path.map((logits) => expectedReward(logits, truth)),
  };
  lines.set(key, line);
  return line;
}

function driftOverSteps(params) {
  const beta = number(params, "beta", 0.04, 0, 2);
  const kl = word(params, "kl", "k3", LOSS_KINDS);
  const seeds = Array.from({ length: whole(params, "seeds", 3, 1, 5) }, (_, i) => i + 1);
  const runs = [...new Set([0, beta])].map((b) => [b, seeds.map((seed) => drift(b, b ? kl : "k3", seed))]);
  const last = (run, name) => run[name][run[name].length - 1];
  return {
    beta,
    kl,
    steps: shownSteps(),
    lines: runs.flatMap(([b, each]) => each.map((line, i) => ({ beta: b, seed: i + 1, ...line }))),
    ends: runs.map(([b, each]) => ({
      beta: b,
      ...Object.fromEntries(["reverse", "forward", "reward"].map((name) => [name, mean(each.map((run) => last(run, name)))])),
    })),
    ceiling: -logSoftmax(referenceLogits())[RIGHT],
  };
}

export const DISTANCE = { kl: klOfToken, bars: klOfBars, drift: driftOverSteps };
