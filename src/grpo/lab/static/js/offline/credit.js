// Answers of the chapter on credit: recorded groups of nano with a critic's values, with the reader's γ, λ and steps.
import { groupAdvantages } from "../core/advantage.js";
import { gae } from "../core/gae.js";
import { processAdvantages } from "../core/process.js";
import { finalAnswer } from "../nano/arithmetic.js";
import { check } from "./checker.js";
import { PROBLEMS } from "./problems.js";
import { number, text, whole } from "./query.js";
import { recorded } from "./recorded.js";

const SEEDS = 2;

const asked = (params) => {
  const seed = (whole(params, "seed", 1, 0, 9999) + SEEDS - 1) % SEEDS + 1;
  return `prompt=${encodeURIComponent(text(params, "prompt", PROBLEMS[0]))}&seed=${seed}`;
};

// GAE with any γ and λ from the recorded values of the critic.
async function tokens(params) {
  const [gamma, lam] = [number(params, "gamma", 1, 0.5, 1), number(params, "lam", 0.95, 0, 1)];
  const sample = params.get("sample") ? `&sample=${whole(params, "sample", 0, 0, 7)}` : "";
  const base = await recorded(`/api/chapters/credit/tokens?${asked(params)}${sample}`);
  if (!base) return undefined;
  const values = [base.tokens.map((token) => token.value)];
  const rewards = [base.tokens.map((_, t) => (t === base.tokens.length - 1 ? base.reward : 0))];
  const [[credit], [surprise]] = [lam, 0].map((weight) => gae(rewards, values, gamma, weight).advantages);
  return { ...base, tokens: base.tokens.map((token, t) => ({ ...token, surprise: surprise[t], gae: credit[t] })) };
}

// Outcome and process rewards of a recorded group; any step's reward can be flipped.
async function steps(params) {
  const base = await recorded(`/api/chapters/credit/steps?${asked(params)}`);
  if (!base) return undefined;
  const turned = new Set(text(params, "turned", "", 200).split(",").filter(Boolean));
  const marked = base.completions.map((done) => ({
    ...done,
    steps: done.steps.map((step) => (turned.has(step.id) ? { ...step, reward: 1 - step.reward, turned: true } : step)),
  }));
  const rewards = marked.map((done) => done.steps[done.steps.length - 1].reward);
  const outcome = groupAdvantages(rewards);
  const process = processAdvantages(
    marked.map((done) => done.steps.map((step) => step.reward)),
    marked.map((done) => done.steps.map((step) => step.end)),
    marked.map((done) => done.tokens.length),
  );
  return { ...base, completions: marked.map((done, i) => ({ ...done, reward: rewards[i], outcome: outcome[i], process: process[i] })) };
}

const presets = (params) => recorded(`/api/chapters/credit/presets?${asked(params)}`);

// Texts that reach the answer in different ways, and the reader's, with outcome rewards.
async function strategies(params) {
  const { question, rows } = await recorded("/api/chapters/credit/strategies");
  const own = text(params, "own", "", 400);
  const texts = [...rows.map(({ name, text: written }) => [name, written]), ...(own.trim() ? [["yours", own]] : [])];
  const verdicts = texts.map(([, written]) => check(written, "14"));
  if (verdicts.includes(undefined)) return undefined;
  const rewards = verdicts.map(({ right }) => Number(right));
  const advantages = groupAdvantages(rewards);
  return {
    question,
    rows: texts.map(([name, written], i) => ({ name, text: written, extracted: verdicts[i].extracted, reward: rewards[i], advantage: advantages[i] })),
  };
}

const ANSWER = "168";
const GUESSES = "(18;16)168\n168\n161\n174\n190";

// 1 within 10 of the answer, minus 0.03 for every extra character.
function closeAndBrief(written) {
  const answer = finalAnswer(written);
  if (!/^\d{1,9}$/.test(answer) || Math.abs(Number(answer) - Number(ANSWER)) > 10) return 0;
  return Number(Math.max(0, 1 - 0.03 * Math.max(0, written.length - ANSWER.length)).toFixed(6));
}

function gamed(params) {
  const lines = text(params, "guesses", GUESSES, 600).split("\n").filter((line) => line.trim());
  if (lines.length < 2 || lines.length > 12) throw new Error(`guesses: expected 2 to 12 lines; got ${lines.length}`);
  const rewards = { gameable: lines.map(closeAndBrief), mended: lines.map((line) => Number(finalAnswer(line) === ANSWER)) };
  const advantages = { gameable: groupAdvantages(rewards.gameable), mended: groupAdvantages(rewards.mended) };
  const best = (name) => lines[rewards[name].indexOf(Math.max(...rewards[name]))];
  const by = (name, i) => ({ reward: rewards[name][i], advantage: advantages[name][i] });
  return {
    prompt: "37+85+46=",
    answer: ANSWER,
    rows: lines.map((line, i) => ({
      text: line,
      extracted: finalAnswer(line),
      right: rewards.mended[i] === 1,
      gameable: by("gameable", i),
      mended: by("mended", i),
    })),
    best: { gameable: best("gameable"), mended: best("mended") },
  };
}

export const CREDIT = { strategies, tokens, steps, presets, gamed };
