// Answers of the chapter on learning from rewards.
import { deviation, groupAdvantages, mean, sum } from "../core/advantage.js";
import { Generator } from "../core/random.js";
import { rewardStatistics } from "../core/statistics.js";
import { zeroSignalChance } from "../core/tokens.js";
import { check } from "./checker.js";
import { number, text, whole } from "./query.js";
import { recorded } from "./recorded.js";

function scratch(params) {
  const passRate = 10 ** number(params, "logp", -3, -5, 0);
  const size = whole(params, "g", 8, 2, 64);
  const signal = 1 - zeroSignalChance(passRate, size);
  return {
    pass_rate: passRate, group_size: size, signal, groups_until_signal: signal ? 1 / signal : null, completions_until_signal: signal ? size / signal : null,
  };
}

const GROUPS = 2000;

function correlation(a, b) {
  if (!a.some(Boolean) || !b.some(Boolean)) return null;
  const [meanA, meanB] = [mean(a), mean(b)];
  const products = (x, centreX, y, centreY) => sum(x.map((value, i) => (value - centreX) * (y[i] - centreY)));
  return products(a, meanA, b, meanB) / Math.sqrt(products(a, meanA, a, meanA) * products(b, meanB, b, meanB));
}

// Groups of drafts with uniform qualities, and a judge with a normal error.
async function judge(params) {
  const size = whole(params, "g", 8, 2, 64);
  const [spread, noise] = [number(params, "spread", 0.2, 0, 1), number(params, "noise", 0.1, 0, 1)];
  const generator = new Generator(0);
  const rows = (values) => Array.from({ length: GROUPS }, (_, p) => values.slice(p * size, (p + 1) * size));
  const quality = rows(generator.uniforms(GROUPS * size).map((value) => spread * (value - 0.5)));
  const error = rows(generator.normals(GROUPS * size).map((value) => noise * value));
  const advantages = groupAdvantages(quality.map((row, p) => row.map((value, g) => value + error[p][g])));
  const truth = groupAdvantages(quality);
  const [given, deserved] = [advantages.flat(), truth.flat()];
  const judged = given.filter((_, i) => deserved[i] !== 0);
  const { dapo } = await recorded("/api/chapters/why/judge");
  return {
    groups: GROUPS,
    advantage_std: deviation(given),
    zero_signal_groups: advantages.filter((row) => row.every((value) => value === 0)).length / GROUPS,
    agreement: correlation(given, deserved),
    wrong_sign: judged.length ? given.filter((value, i) => value * deserved[i] < 0).length / judged.length : null,
    dapo,
    example: quality[0].map((value, g) => ({ quality: value, error: error[0][g], advantage: advantages[0][g], without_error: truth[0][g] })),
  };
}

// How many held-out answers of the recorded run contain the reader's marker.
async function aha(params) {
  const marker = text(params, "marker", "(", 40);
  if (!marker) throw new Error("marker: expected at least one character; got none");
  const base = await recorded("/api/chapters/why/aha");
  const heldout = await recorded("/api/chapters/why/heldout");
  const share = (rows) => (rows.length ? mean(rows.map(([, right]) => Number(right))) : null);
  const counted = base.counted.map(({ step }) => {
    const rows = heldout[step];
    const [having, lacking] = [true, false].map((has) => rows.filter(([written]) => written.toLowerCase().includes(marker.toLowerCase()) === has));
    return {
      step,
      answers: rows.length,
      count: having.length,
      share: having.length / rows.length,
      right: share(rows),
      right_with: share(having),
      right_without: share(lacking),
    };
  });
  return { ...base, marker, counted };
}

// The group's lines and the reader's answer, scored; undefined where a text needs the checker in Python.
async function score(params) {
  const base = await recorded("/api/chapters/why/score");
  const gold = text(params, "gold", base.gold, 60).trim();
  const lines = text(params, "group", base.rows.map((row) => row.text).join("\n"), 4000).split("\n").filter((line) => line.trim());
  const own = text(params, "own", "", 400);
  const texts = own.trim() ? [...lines, own] : lines;
  if (!texts.length || texts.length > 16 || texts.some((line) => line.length > 400)) throw new Error(
    `group: expected 1 to 16 lines of at most 400 characters; got ${texts.length} lines`,
  );
  const verdicts = texts.map((line) => check(line, gold));
  if (verdicts.includes(undefined)) return undefined;
  const rewards = verdicts.map(({ right }) => Number(right));
  const advantages = groupAdvantages(rewards);
  const rows = verdicts.map(({ extracted, form, why, strict }, i) => ({
    text: texts[i],
    extracted,
    form,
    why,
    strict,
    reward: rewards[i],
    advantage: advantages[i],
    own: Boolean(own.trim()) && i === texts.length - 1,
  }));
  return { question: gold === base.gold ? base.question : "", gold, rows, statistics: rewardStatistics([rewards], [advantages], [rewards.map(() => true)]) };
}

export const WHY = { scratch, judge, aha, score };
