// Baselines from REINFORCE to GRPO on a policy over three answers: exact bias and variance, over all groups.
import { groupAdvantages, sum } from "../core/advantage.js";
import { allGroups, angle, expectedReward, groupEstimate, kl, softmax, trpoStep, trueGradient } from "../core/tabular.js";
import { number, numbers, whole } from "./query.js";
import { recorded } from "./recorded.js";

const MAX_KL = 0.01;
const norm = (v) => Math.sqrt(sum(v.map((x) => x * x)));
const cosine = (a, b) => sum(a.map((x, i) => x * b[i])) / (norm(a) * norm(b));
const less = (baseline) => (groups) => groups.map((row) => row.map((reward) => reward - baseline));
const compared = (settings) => (groups) => groupAdvantages(groups, settings);

// Rewards of all groups -> their advantages, by the algorithm's name; `value` is the expected reward.
function credits(value, criticError) {
  const critic = less(value + criticError);
  return {
    reinforce: less(0),
    actor_critic: critic,
    trpo: critic,
    ppo: critic,
    rloo: compared({ baseline: "leave_one_out", scale: "none" }),
    grpo: compared({ baseline: "mean", scale: "group_std" }),
    dr_grpo: compared({ baseline: "mean", scale: "none" }),
  };
}

// Mean and total variance of a group's estimate, over all V^G groups.
function moments(logits, rewards, size, credit) {
  const p = softmax(logits);
  const groups = allGroups(p.length, size);
  const chances = groups.map((group) => group.reduce((product, a) => product * p[a], 1));
  const advantages = credit(groups.map((group) => group.map((a) => rewards[a])));
  const estimates = groups.map((group, m) => groupEstimate(group, advantages[m], p));
  const mean = p.map((_, a) => sum(estimates.map((estimate, m) => chances[m] * estimate[a])));
  const variance = sum(estimates.map((estimate, m) => chances[m] * sum(estimate.map((value, a) => (value - mean[a]) ** 2))));
  return { mean, variance };
}

function example(params) {
  const weights = numbers(params, "p", [0.5, 0.3, 0.2], 0.01, 1, { least: 3, most: 3 });
  const rewards = numbers(params, "r", [0, 0.2, 1], 0, 1, { least: 3, most: 3 });
  if (Math.min(...rewards) === Math.max(...rewards)) rewards[0] += 1e-3; // equal rewards would have no gradient to compare with
  return { logits: weights.map((weight) => Math.log(weight / sum(weights))), rewards };
}

async function ancestors(params) {
  const { logits, rewards } = example(params);
  const size = whole(params, "g", 4, 2, 8);
  const truth = trueGradient(logits, rewards);
  const value = expectedReward(logits, rewards);
  const base = await recorded("/api/chapters/advantage/ancestors");
  const named = credits(value, number(params, "critic", 0, -1, 1));
  const rows = Object.entries(base.ancestors).map(([key, { name, year, paper, baseline }]) => {
    const { mean, variance } = moments(logits, rewards, size, named[key]);
    const length = norm(mean);
    const bias = norm(mean.map((x, a) => x - truth[a]));
    return [
      key,
      {
        name,
        year,
        paper,
        baseline,
        mean,
        length: length / norm(truth),
        cosine: cosine(mean, truth),
        angle: angle(mean, truth),
        bias,
        variance,
        noise: Math.sqrt(variance) / length,
      },
    ];
  });
  const moved = trpoStep(logits, rewards, MAX_KL);
  return {
    probabilities: softmax(logits),
    rewards,
    group_size: size,
    groups: rewards.length ** size,
    expected_reward: value,
    true_gradient: truth,
    ancestors: Object.fromEntries(rows),
    trpo: { max_kl: MAX_KL, kl: kl(logits, moved), probabilities: softmax(moved), expected_reward: expectedReward(moved, rewards) },
  };
}

function byGroupSize(params) {
  const { logits, rewards } = example(params);
  const truth = trueGradient(logits, rewards);
  const named = credits(expectedReward(logits, rewards), 0);
  return [2, 3, 4, 5, 6, 7, 8].map((size) => {
    const about = (key) => {
      const { mean } = moments(logits, rewards, size, named[key]);
      return { length: norm(mean) / norm(truth), cosine: cosine(mean, truth) };
    };
    return { group_size: size, expected: 1 - 1 / size, dr_grpo: about("dr_grpo"), rloo: about("rloo"), grpo: about("grpo") };
  });
}

function baselineTerm(params) {
  const { logits, rewards } = example(params);
  const b = number(params, "b", 0.5, -2, 2);
  const p = softmax(logits);
  const slopes = p.map((_, a) => p.map((chance, v) => (a === v ? 1 : 0) - chance));
  const { mean, variance } = moments(logits, rewards, 1, less(b));
  const places = Array.from({ length: 61 }, (_, i) => Number((-1 + 0.05 * i).toFixed(2)));
  return {
    b,
    slopes,
    probabilities: p,
    term: p.map((_, v) => b * sum(p.map((chance, a) => chance * slopes[a][v]))),
    mean,
    true_gradient: trueGradient(logits, rewards),
    variance,
    variances: places.map((at) => ({ b: at, variance: moments(logits, rewards, 1, less(at)).variance })),
    value: expectedReward(logits, rewards),
  };
}

export const ANCESTORS = { ancestors, sizes: byGroupSize, baseline: baselineTerm };
