// Answers of the chapter on groups: chances of signal, and exact moments of a group's gradient estimate.
import { deviation, groupAdvantages, mean } from "../core/advantage.js";
import { zeroSignalChance } from "../core/tokens.js";
import { number, whole } from "./query.js";
import { recorded } from "./recorded.js";

const SIZES = [2, 4, 8, 16, 32, 64];
const BUDGET = 64;
const ESTIMATORS = {
  none: ["reward itself", null],
  known: ["true mean", null],
  mean: ["group mean", { baseline: "mean", scale: "none" }],
  others: ["mean of the others", { baseline: "leave_one_out", scale: "none" }],
  std: ["group mean ÷ std", { baseline: "mean", scale: "group_std" }],
};

export function binomial(n, k) {
  let found = 1;
  for (let i = 1; i <= k; i += 1) found = (found * (n - k + i)) / i;
  return found;
}

export const rightAndWrong = (right, size) => Array.from({ length: size }, (_, g) => (g < right ? 1 : 0));

function chance(params) {
  const p = number(params, "p", 0.5, 0, 1);
  const size = whole(params, "g", 8, 2, 64);
  const curve = Array.from({ length: 101 }, (_, place) => ({ p: place / 100, zero_signal: zeroSignalChance(place / 100, size) }));
  return { p, group_size: size, zero_signal: zeroSignalChance(p, size), some_right: 1 - (1 - p) ** size, curve };
}

async function sizes(params) {
  const p = number(params, "p", 0.5, 0, 1);
  const rows = SIZES.map((size) => {
    const silent = zeroSignalChance(p, size);
    return {
      group_size: size,
      zero_signal: silent,
      baseline_error: Math.sqrt((p * (1 - p)) / size),
      groups: BUDGET / size,
      groups_with_signal: (BUDGET / size) * (1 - silent),
    };
  });
  const { defaults } = await recorded("/api/chapters/group/sizes");
  return { p, budget: BUDGET, rows, defaults };
}

// Mean and variance of one group's estimate of the gradient, over all groups of that size.
function groupEstimate(p, size, estimator) {
  let [average, square] = [0, 0];
  for (let right = 0; right <= size; right += 1) {
    const probability = binomial(size, right) * p ** right * (1 - p) ** (size - right);
    const rewards = rightAndWrong(right, size);
    const settings = ESTIMATORS[estimator][1];
    const advantages = settings ? groupAdvantages(rewards, settings) : rewards.map((reward) => reward - (estimator === "known" ? p : 0));
    const estimate = mean(advantages.map((advantage, g) => advantage * (rewards[g] - p)));
    average += probability * estimate;
    square += probability * estimate ** 2;
  }
  return [average, Math.max(0, square - average ** 2)];
}

function estimates(params) {
  const p = number(params, "p", 0.5, 0.01, 0.99);
  const slope = p * (1 - p);
  const rows = SIZES.flatMap((size) =>
    Object.entries(ESTIMATORS).map(([name, [words]]) => {
      const [average, variance] = groupEstimate(p, size, name);
      const spread = Math.sqrt(variance / (BUDGET / size));
      return {
        group_size: size, estimator: name, words, mean: average, of_true: average / slope, deviation: spread, signal_to_noise: spread ? average / spread : null,
      };
    }),
  );
  return { p, true: slope, budget: BUDGET, rows };
}

async function groupOfOne(params) {
  const reward = number(params, "r", 1, 0, 1);
  const { refusal } = await recorded("/api/chapters/group/group_of_one");
  const factor = (size) => {
    const rewards = Array.from({ length: size }, (_, i) => i);
    return deviation(rewards) / deviation(rewards, "population");
  };
  return {
    reward,
    mean: reward,
    sample_std: null,
    population_std: 0,
    advantage: groupAdvantages([reward])[0],
    refusal,
    conventions: [2, 8, 64].map((size) => ({ group_size: size, factor: factor(size) })),
    two: { sample: groupAdvantages([1, 0])[0], population: 0.5 / deviation([1, 0], "population") },
  };
}

export const GROUP = { chance, sizes, estimates, group_of_one: groupOfOne };
