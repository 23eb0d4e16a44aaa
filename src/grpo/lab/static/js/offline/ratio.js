// Answers about ratio and clip: value and push of one token at any ratio.
import { LIMITS, policyLoss, SURROGATES } from "../core/loss.js";
import { number, whole, word } from "./query.js";
import { recorded } from "./recorded.js";

const held = (push, advantage) => push === 0 && advantage !== 0;

// Value and push of a token with this ratio.
function atRatio(ratio, advantage, settings) {
  const [loss, byRatio, byLogp] = SURROGATES[settings.surrogate](ratio, Math.log(ratio), advantage, { ...LIMITS, ...settings });
  return { value: -loss, push: 0 - (byRatio * ratio + byLogp) };
}

function settingsOf(params) {
  const low = number(params, "low", 0.2, 0, 0.99);
  const surrogate = word(params, "surrogate", "clip", Object.keys(SURROGATES));
  return { surrogate, clipLow: low, clipHigh: number(params, "high", low, 0, 2), cap: number(params, "cap", 0, 0, 10) };
}

const limitsOf = ({ clipLow, clipHigh }) => [1 - clipLow, 1 + clipHigh];
const clamp = (value, [low, high]) => Math.min(Math.max(value, low), high);
const columns = (points) => ({ value: points.map((point) => point.value), push: points.map((point) => point.push) });

function clip(params) {
  const settings = settingsOf(params);
  const advantage = number(params, "advantage", 1, -3, 3);
  const ratio = number(params, "ratio", 1, 0.01, 3);
  const grid = Array.from({ length: 125 }, (_, i) => (i + 1) / 50);
  const limits = limitsOf(settings);
  const here = atRatio(ratio, advantage, settings);
  return {
    ratio,
    advantage,
    limits,
    clipped_ratio: clamp(ratio, limits),
    ...here,
    held: held(here.push, advantage),
    curve: { ratio: grid, ...columns(grid.map((at) => atRatio(at, advantage, settings))) },
    regions: regions(settings),
  };
}

function regions(settings) {
  const [low, high] = limitsOf(settings);
  const ratios = { below: Math.max(low - 0.1, low / 2), inside: 1, above: high + 0.1 };
  return [1, -1, 0].flatMap((sign) =>
    Object.entries(ratios).map(([where, ratio]) => {
      const { value, push } = atRatio(ratio, sign, settings);
      return { sign, where, ratio, value, push, held: held(push, sign) };
    }),
  );
}

function explorer(params) {
  const settings = settingsOf(params);
  const advantage = number(params, "advantage", 1, -3, 3);
  const [old, now] = [number(params, "old", 0.3, 0.01, 0.99), number(params, "new", 0.45, 0.01, 0.99)];
  const grid = Array.from({ length: 99 }, (_, i) => (i + 1) / 100);
  const limits = limitsOf(settings);
  const here = atRatio(now / old, advantage, settings);
  return {
    old,
    new: now,
    ratio: now / old,
    limits,
    clipped_ratio: clamp(now / old, limits),
    ...here,
    held: held(here.push, advantage),
    edges: [old * limits[0], Math.min(1, old * limits[1])],
    curve: { new: grid, ...columns(grid.map((at) => atRatio(at / old, advantage, settings))) },
  };
}

function cards(params) {
  const settings = settingsOf(params);
  const old = number(params, "old", 0.3, 0.01, 0.6);
  const push = (ratio, sign) => atRatio(ratio, sign, settings).push;
  return [1, 1.5, 0.5].map((ratio) => ({ ratio, old, new: old * ratio, push_up: push(ratio, 1), push_down: push(ratio, -1) }));
}

// Each limit counts tokens on its own side, so a histogram for any pair is made of one for each limit.
async function histogram(params) {
  const { clipLow, clipHigh } = settingsOf(params);
  const asked = (low, high) => recorded(`/api/chapters/loss/histogram?low=${low}&high=${high}`);
  const [base, lower, upper] = await Promise.all([asked(0.2, 0.2), asked(clipLow, 0.2), asked(0.2, clipHigh)]);
  if (!lower || !upper) return undefined;
  const both = (name) => lower[name] + upper[name] - base[name];
  const counts = { outside: both("outside"), outside_with_signal: both("outside_with_signal"), clip_low: lower.clip_low, clip_high: upper.clip_high };
  return { ...base, limits: [lower.limits[0], upper.limits[1]], ...counts };
}

function levels(params) {
  const length = whole(params, "length", 20, 1, 200);
  const [drift, jump] = [number(params, "drift", 0.02, -0.2, 0.2), number(params, "jump", 0.5, -2, 2)];
  const advantage = number(params, "advantage", 1, -3, 3);
  const settings = settingsOf(params);
  const logp = Array.from({ length }, (_, t) => drift + (t === Math.floor(length / 2) ? jump : 0));
  const pushes = (ratio) => policyLoss(
    [logp],
    [logp.map(() => 0)],
    [advantage],
    null,
    { ...settings, denominator: 1, ratio },
  ).gradient[0].map((slope) => 0 - slope);
  const total = logp.reduce((sum, value) => sum + value, 0);
  const product = Math.exp(Math.min(total, 80));
  const limits = limitsOf(settings);
  return {
    length,
    token_ratios: logp.map(Math.exp),
    token_pushes: pushes("token"),
    sequence_ratio: Math.exp(total / length),
    sequence_pushes: pushes("sequence"),
    product_ratio: product,
    product_held: (product > limits[1] && advantage > 0) || (product < limits[0] && advantage < 0),
    limits,
  };
}

export const RATIO = { clip, ratio: explorer, cards, histogram, levels };
