// Answers of the model nano, with weights of their own; each computation starts from the shipped ones.
import { groupAdvantages, mean, sum } from "../core/advantage.js";
import { metrics, rewardStatistics } from "../core/statistics.js";
import { number, text, whole } from "./query.js";

const asked = { last: Promise.resolve() };

// Runs `compute(nano)` after all computations asked for earlier.
export function withNano(compute) {
  const turn = asked.last.then(async () => {
    const { openNano } = await import("../nano/client.js");
    const nano = await openNano("answers");
    await nano.reset();
    return compute(nano);
  });
  asked.last = turn.catch(() => {});
  return turn;
}

export function sumOfThree(prompt) {
  if (!/^[1-9]\d\+[1-9]\d\+[1-9]\d=$/.test(prompt)) throw new Error(
    `prompt: expected a sum of three two-digit numbers such as 37+85+46=; got ${JSON.stringify(prompt)}`,
  );
  return { prompt, answer: String(sum(prompt.slice(0, -1).split("+").map(Number))) };
}

const everyone = (rewards) => [rewards.map(() => true)];

// A group with its rewards: [{text, ids, tokens, logprobs, reward, worked, extracted}].
async function sampled(nano, prompt, settings) {
  const { completions } = await nano.sample({ prompt, ...settings });
  const scores = await Promise.all(completions.map((done) => nano.score({ prompt, text: done.text })));
  return completions.map((done, i) => ({ ...done, ...scores[i] }));
}

export function samples(params) {
  const { prompt, answer } = sumOfThree(text(params, "prompt", "37+85+46="));
  const settings = { group: whole(params, "g", 8, 2, 64), temperature: number(params, "t", 1, 0.1, 2), seed: whole(params, "seed", 1, 0, 9999) };
  return withNano(async (nano) => {
    const group = await sampled(nano, prompt, settings);
    const rewards = group.map((done) => done.reward);
    const advantages = groupAdvantages(rewards);
    return {
      prompt,
      answer,
      statistics: rewardStatistics([rewards], [advantages], everyone(rewards)),
      completions: group.map(({ text: written, extracted, reward, logprobs, worked }, i) => ({
        text: written, extracted, reward, advantage: advantages[i], logprob: sum(logprobs), length: logprobs.length, worked,
      })),
      distinct: new Set(group.map((done) => done.text)).size,
      tokens: sum(group.map((done) => done.ids.length)),
    };
  });
}

const SAMPLES = 512;

// nano's answers to a problem, most likely first.
export function gap(params) {
  const { prompt, answer } = sumOfThree(text(params, "prompt", "29+60+75="));
  return withNano(async (nano) => {
    const group = await sampled(nano, prompt, { group: SAMPLES, seed: 1 });
    const seen = new Map();
    for (const done of group) seen.set(done.text, { done: seen.get(done.text)?.done ?? done, count: (seen.get(done.text)?.count ?? 0) + 1 });
    const rows = [...seen.values()].map(({ done, count }) => ({
      text: done.text,
      logprob: sum(done.logprobs),
      share: count / SAMPLES,
      reward: done.reward,
      worked: done.worked,
    }));
    const styles = [["worked", true], ["direct", false]].map(([name, worked]) => [name, group.filter((done) => done.worked === worked)]);
    return {
      prompt,
      answer,
      samples: SAMPLES,
      right: mean(group.map((done) => done.reward)),
      worked: mean(group.map((done) => Number(done.worked))),
      right_by_style: Object.fromEntries(styles.filter(([, done]) => done.length).map(([name, done]) => [name, mean(done.map(({ reward }) => reward))])),
      rows: rows.sort((one, other) => other.logprob - one.logprob).slice(0, 12),
      distinct: rows.length,
    };
  });
}

const PHASES = ["sample", "score", "compare", "loss", "update"];
const FRESH_SAMPLES = 256;
const updateSettings = (params) => ({
  group: whole(params, "g", 8, 2, 32),
  lr: number(params, "lr", 1e-4, 1e-5, 1e-3),
  seed: whole(params, "seed", 1, 0, 9999),
});
const inUpdate = (prompt, group) => [{ prompt, completions: group.map(({ ids, reward }) => ({ ids, reward })) }];

// One update, up to the requested phase.
export function update(params) {
  const { group: size, lr, seed } = updateSettings(params);
  const reached = whole(params, "phase", 0, 0, PHASES.length - 1);
  const { prompt, answer } = sumOfThree(text(params, "prompt", "29+60+75="));
  return withNano(async (nano) => {
    const group = await sampled(nano, prompt, { group: size, seed });
    const rewards = group.map((done) => done.reward);
    const advantages = groupAdvantages(rewards);
    const before = reached < 4 ? null : await looks(nano, prompt);
    const made = reached < 3 ? null : await nano.update({ groups: inUpdate(prompt, group), lr });
    const measured = {
      ...(reached >= 2 ? rewardStatistics([rewards], [advantages], everyone(rewards)) : {}),
      ...(made ? metrics(made.statistics) : {}),
      ...(reached >= 4 ? { grad_norm: made.gradNorm } : {}),
    };
    const completions = group.map((done, i) => ({
      text: done.text,
      tokens: done.tokens,
      logprobs: done.logprobs,
      reward: reached >= 1 ? done.reward : null,
      advantage: reached >= 2 ? advantages[i] : null,
      ...(made ? { push: made.push[0][i] } : {}),
    }));
    const found = { phase: PHASES[reached], prompt, answer, group_size: size, completions, measured };
    if (reached < 4) return found;
    const after = await looks(nano, prompt);
    const logprobs = await Promise.all(group.map(({ ids }) => nano.logprobs({ prompt, ids })));
    return { ...found, after: { logprobs, looks: FRESH_SAMPLES, right: [before.right, after.right], worked: [before.worked, after.worked] } };
  });
}

async function looks(nano, prompt) {
  const fresh = await sampled(nano, prompt, { group: FRESH_SAMPLES, seed: 0, step: 1 });
  return { right: mean(fresh.map((done) => done.reward)), worked: mean(fresh.map((done) => Number(done.worked))) };
}

// One optimizer step on one group: the probability of each completion before and after.
export function nanoUpdate(params) {
  const { group: size, lr, seed } = updateSettings(params);
  const { prompt, answer } = sumOfThree(text(params, "prompt", "29+60+75=", 20));
  return withNano(async (nano) => {
    const group = await sampled(nano, prompt, { group: size, seed });
    const advantages = groupAdvantages(group.map((done) => done.reward));
    await nano.update({ groups: inUpdate(prompt, group), lr });
    const after = await Promise.all(group.map(({ ids }) => nano.logprobs({ prompt, ids })));
    const rows = group.map((done, i) => ({
      text: done.text,
      times: group.filter((other) => other.text === done.text).length,
      reward: done.reward,
      advantage: advantages[i],
      before: Math.exp(sum(done.logprobs)),
      after: Math.exp(sum(after[i])),
    }));
    const distinct = rows.filter((row, i) => rows.findIndex((other) => other.text === row.text) === i);
    return { prompt, answer, lr, completions: distinct.sort((one, other) => other.before - one.before) };
  });
}
