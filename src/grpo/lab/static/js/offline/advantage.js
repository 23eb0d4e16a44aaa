// Answers of the chapter on advantages: the reader's rewards by every formula.
import { deviation, groupAdvantages, mean, sum } from "../core/advantage.js";
import { policyLoss } from "../core/loss.js";
import { Generator } from "../core/random.js";
import { rewardStatistics } from "../core/statistics.js";
import { logSoftmax, softmax } from "../core/tabular.js";
import { ANCESTORS } from "./ancestors.js";
import { binomial, rightAndWrong } from "./group.js";
import { number, numbers, whole, word } from "./query.js";
import { recorded } from "./recorded.js";

const WAYS = {
  grpo: { baseline: "mean", scale: "group_std" },
  mean_only: { baseline: "mean", scale: "none" },
  leave_one_out: { baseline: "leave_one_out", scale: "none" },
  batch_std: { baseline: "mean", scale: "batch_std" },
  batch: { baseline: "batch", scale: "batch_std" },
};
const byEveryWay = (rewards) => Object.entries(WAYS).map(([name, settings]) => [name, groupAdvantages(rewards, settings)]);

// The group of a recorded step with the reader's rewards; the other groups of the step are its batch.
async function ownGroup(params) {
  const of = word(params, "of", "run", ["run", "six"]);
  const base = await recorded(`/api/chapters/advantage/group?of=${of}`);
  const [at, index] = base.place;
  const step = await recorded(`/api/chapters/group/baselines?step=${at}`);
  const rewards = numbers(params, "rewards", base.start, 0, 1, { least: 1, most: 16 });
  const batch = [rewards, ...step.groups.map((group) => group.rewards).filter((_, place) => place !== index)];
  const found = Object.fromEntries(byEveryWay(batch).map(([name, advantages]) => [name, advantages[0]]));
  return {
    ...base,
    texts: of === "run" ? base.texts.slice(0, rewards.length) : [],
    rewards,
    mean: mean(rewards),
    std: rewards.length > 1 ? deviation(rewards) : null,
    std_population: deviation(rewards, "population"),
    advantages: found,
    statistics: rewardStatistics([rewards], [found.grpo], [rewards.map(() => true)]),
    batch: { groups: batch.length, mean: mean(batch.flat()) },
  };
}

function sameReward(params) {
  const reward = number(params, "reward", 0.7, 0, 1);
  const groups = { weak: [0, 0.1, 0.2, 0.3, 0.1, 0, 0.2], strong: [1, 0.9, 0.8, 0.9, 1, 0.9, 0.8] };
  const about = (rewards) => ({ rewards, advantages: groupAdvantages(rewards) });
  return Object.fromEntries(Object.entries(groups).map(([name, others]) => [name, about([reward, ...others])]));
}

function stdConventions(params) {
  const most = whole(params, "most", 8, 2, 64);
  return Array.from({ length: most }, (_, i) => {
    const rewards = rightAndWrong(1, i + 1);
    const right = 1 - mean(rewards);
    const by = (std) => (i === 0 ? null : right / deviation(rewards, std));
    return { group_size: i + 1, population: by("population"), sample: by("sample"), trainer: groupAdvantages(rewards)[0] };
  });
}

function twoPrompts(params) {
  const right = [whole(params, "easy", 7, 0, 8), whole(params, "hard", 1, 0, 8)];
  const pay = [number(params, "pay", 1, 0.1, 10), 1];
  const rewards = right.map((count, p) => rightAndWrong(count, 8).map((reward) => reward * pay[p]));
  const ways = byEveryWay(rewards).map(([name, advantages]) => [
    name,
    {
      right: advantages.map((row, p) => (right[p] ? row[0] : null)),
      wrong: advantages.map((row, p) => (right[p] < 8 ? row[7] : null)),
      push: advantages.map((row) => sum(row.map(Math.abs))),
    },
  ]);
  return { right_answers: right, pay, ways: Object.fromEntries(ways) };
}

function pushByDifficulty(params) {
  const size = whole(params, "g", 8, 2, 64);
  return Array.from({ length: size + 1 }, (_, right) => {
    const rewards = rightAndWrong(right, size);
    const [scaled, plain] = [WAYS.grpo, WAYS.mean_only].map((settings) => groupAdvantages(rewards, settings));
    return {
      right,
      above: right ? scaled[0] : null,
      below: right < size ? scaled[size - 1] : null,
      push: sum(scaled.map(Math.abs)),
      push_without_std: sum(plain.map(Math.abs)),
    };
  });
}

function twoValues(params) {
  return pushByDifficulty(params).slice(1, -1).map(({ right, above, below }) => ({ right, above, below }));
}

function groupMean(params) {
  const p = number(params, "p", 0.5, 0, 1);
  const size = whole(params, "g", 8, 1, 64);
  const chances = Array.from({ length: size + 1 }, (_, k) => ({ mean: k / size, chance: binomial(size, k) * p ** k * (1 - p) ** (size - k) }));
  const expected = sum(chances.map((each) => each.mean * each.chance));
  return { p, group_size: size, chances, expected, std: Math.sqrt(sum(chances.map((each) => (each.mean - p) ** 2 * each.chance))) };
}

const CHANCES = [0.3, 0.25, 0.2, 0.15, 0.1];

// Updates of a policy over five answers: sample a group, compute the loss, take a step.
function tabular(params) {
  const rewards = numbers(params, "rewards", [0.7, 0.2, 0.1, 0, 0.3], 0, 1, { least: 5, most: 5 });
  const [size, seed] = [whole(params, "g", 8, 2, 64), whole(params, "seed", 1, 0, 9999)];
  const [updates, lr] = [whole(params, "updates", 20, 0, 60), number(params, "lr", 0.3, 0.01, 2)];
  const scale = word(params, "scale", "group_std", ["group_std", "none"]);
  const generator = new Generator(seed);
  let logits = CHANCES.map(Math.log);
  let last = {};
  const trail = [softmax(logits)];
  for (let update = 0; update < updates; update += 1) {
    const drawn = generator.choices(softmax(logits), size);
    const advantages = groupAdvantages(drawn.map((a) => rewards[a]), { scale });
    const logp = logSoftmax(logits);
    const column = drawn.map((a) => [logp[a]]);
    const { loss, gradient } = policyLoss(column, column, advantages, null, { denominator: size });
    logits = descend(logits, drawn, gradient.map(([slope]) => slope), lr);
    trail.push(softmax(logits));
    last = { drawn, advantages, loss };
  }
  return { answers: ["A", "B", "C", "D", "E"], rewards, trail, last };
}

// One step of gradient descent on the logits, from the slopes of the loss by log p of the drawn answers.
export function descend(logits, drawn, slopes, lr) {
  const p = softmax(logits);
  const total = sum(slopes);
  const gradient = p.map((chance) => -chance * total);
  drawn.forEach((a, n) => (gradient[a] += slopes[n]));
  return logits.map((logit, a) => logit - lr * gradient[a]);
}

export const ADVANTAGE = {
  group: ownGroup, same: sameReward, std: stdConventions, prompts: twoPrompts, difficulty: pushByDifficulty, values: twoValues, mean: groupMean, tabular,
  ...ANCESTORS,
};
