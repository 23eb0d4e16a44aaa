// Answers of the chapter on costs: the planner, and methods compared on a policy over twelve answers.
import { groupAdvantages, mean, sum } from "../core/advantage.js";
import { Generator } from "../core/random.js";
import { dpoGradient, expectedReward, groupEstimate, kl, logSoftmax, softmax, trpoStep, trueGradient, angle } from "../core/tabular.js";
import { zeroSignalChance } from "../core/tokens.js";
import { drift, referenceLogits, rewardsOfAnswers, shownSteps } from "./distance.js";
import { PLANNER } from "./planner.js";
import { number, whole } from "./query.js";
import { recorded } from "./recorded.js";

const DRAWS = 4000;
const norm = (v) => Math.sqrt(sum(v.map((x) => x * x)));

// Many groups' estimates of the gradient: the mean of A ∇log p, each group drawn from the policy.
function groupEstimates(size, settings, offset) {
  const p = softmax(referenceLogits());
  const rewards = rewardsOfAnswers();
  const drawn = new Generator(1).choices(p, DRAWS * size);
  return Array.from({ length: DRAWS }, (_, m) => {
    const group = drawn.slice(m * size, (m + 1) * size);
    const earned = group.map((a) => rewards[a] + offset);
    return groupEstimate(group, settings ? groupAdvantages(earned, settings) : earned, p);
  });
}

// Length of an estimate's mean along the true gradient, and its noise relative to that length.
function quality(estimates, truth) {
  const average = truth.map((_, a) => mean(estimates.map((estimate) => estimate[a])));
  const square = mean(estimates.map((estimate) => sum(estimate.map((value, a) => (value - average[a]) ** 2))));
  const along = sum(average.map((value, a) => value * truth[a])) / sum(truth.map((value) => value ** 2));
  return { along, noise: Math.sqrt(square) / norm(average), angle: angle(average, truth) };
}

function methods(params) {
  const size = number(params, "size", 7, 0.1, 500);
  const [group, offset] = [whole(params, "g", 8, 2, 64), number(params, "lift", 0, 0, 10)];
  const truth = trueGradient(referenceLogits(), rewardsOfAnswers());
  const kinds = {
    "REINFORCE, no baseline": null,
    RLOO: { baseline: "leave_one_out", scale: "none" },
    "Dr. GRPO": { baseline: "mean", scale: "none" },
    GRPO: { baseline: "mean", scale: "group_std" },
  };
  const estimators = Object.entries(kinds).map(([name, settings]) => ({ name, ...quality(groupEstimates(group, settings, offset), truth) }));
  const noise = (name) => estimators.find((each) => each.name === name).noise;
  return { size: `${size}B`, g: group, rows: PLANNER.methodCosts(size, group, noise), estimators };
}

// One TRPO step at its KL bound, one policy gradient step, and DPO's optimum, from the same policy.
function oneStep(params) {
  const [maxKl, beta] = [number(params, "max_kl", 0.05, 0.001, 1), number(params, "beta", 0.5, 0.05, 5)];
  const [logits, rewards] = [referenceLogits(), rewardsOfAnswers()];
  const slope = trueGradient(logits, rewards);
  const best = logSoftmax(logits).map((value, a) => value + rewards[a] / beta);
  const rows = { start: logits, trpo: trpoStep(logits, rewards, maxKl), gradient: logits.map((logit, a) => logit + slope[a]), dpo: best };
  const about = (after) => ({ reward: expectedReward(after, rewards), kl: kl(logits, after), policy: softmax(after) });
  return {
    max_kl: maxKl,
    beta,
    rows: Object.fromEntries(Object.entries(rows).map(([name, after]) => [name, about(after)])),
    dpo_slope: norm(dpoGradient(best, logits, rewards, beta)),
  };
}

function imperfect(params) {
  const beta = number(params, "beta", 0.2, 0, 2);
  const line = (value) => {
    const { reward, true_reward: truth } = drift(value, "k3", 1, true);
    return { paid: reward, true: truth, steps: shownSteps() };
  };
  return { beta, lines: { 0: line(0), beta: line(beta) } };
}

async function noWarmStart(params) {
  const size = whole(params, "g", 8, 2, 64);
  const { taught, untaught } = await recorded("/api/chapters/costs/no-warm-start");
  const rate = number(params, "rate", taught, 0, 1);
  const wait = (passRate) => {
    const heard = 1 - zeroSignalChance(passRate, size);
    return heard > 0 ? 1 / heard : null;
  };
  return { g: size, rate, wait: wait(rate), untaught, untaught_wait: wait(untaught), taught, taught_wait: wait(taught) };
}

const { methodCosts, ...planned } = PLANNER;
export const COSTS = { ...planned, methods, "one-step": oneStep, imperfect, "no-warm-start": noWarmStart };
