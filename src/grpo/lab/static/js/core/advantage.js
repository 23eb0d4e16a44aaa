// Advantages of completions, compared with their group or batch: grpo.core.advantage in JavaScript, tested against it.
export const STD_EPS = 1e-4;
const CORRECTION = { sample: 1, population: 0 };
const GROUP_BASELINES = ["mean", "leave_one_out", "length_weighted"];

export const sum = (values) => values.reduce((total, value) => total + value, 0);
export const mean = (values) => sum(values) / values.length;

// As torch.std: divides by n − 1 (sample) or n (population).
export function deviation(values, std = "sample") {
  const centre = mean(values);
  return Math.sqrt(sum(Array.from(values, (value) => (value - centre) ** 2)) / (values.length - correction(std)));
}

function correction(std) {
  if (!(std in CORRECTION)) throw new Error(`unknown std ${std}: sample or population`);
  return CORRECTION[std];
}

// One advantage per completion; 0 where `valid` is false. `rewards`: one list per group, or one group's list.
export function groupAdvantages(rewards, { valid = null, lengths = null, baseline = "mean", scale = "group_std", std = "sample", stdEps = STD_EPS } = {}) {
  if (typeof rewards[0] === "number") {
    const one = { valid: valid && [valid], lengths: lengths && [lengths], baseline, scale, std, stdEps };
    return groupAdvantages([rewards], one)[0];
  }
  const groups = Array.from(rewards, (row, p) => {
    const kept = Array.from(row, (_, g) => !valid || Boolean(valid[p][g]));
    // An unscored completion's reward may be NaN, which must not reach a sum.
    const values = Array.from(row, (reward, g) => (kept[g] ? reward : 0));
    return { values, kept, count: kept.filter(Boolean).length, total: sum(values), lengths: lengths?.[p] };
  });
  const centred = centre(groups, baseline);
  // A group without spread has no signal. Where groups are compared with each other, a batch without spread has none.
  const byGroup = GROUP_BASELINES.includes(baseline) || scale === "group_std";
  const ofBatch = byGroup ? null : spread(groups.flatMap(validRewards));
  groups.forEach((group, p) => {
    const flat = (byGroup ? spread(validRewards(group)) : ofBatch) === 0;
    centred[p] = centred[p].map((value, g) => (flat || !group.kept[g] ? 0 : value));
  });
  if (scale === "none") return centred;
  if (scale === "group_std") return centred.map((row, p) => row.map((value) => value / (groupStd(groups[p], std) + stdEps)));
  if (scale !== "batch_std") throw new Error(`unknown scale ${scale}: group_std, batch_std or none`);
  const all = centred.flatMap((row, p) => row.filter((_, g) => groups[p].kept[g]));
  if (all.length < 2) return centred.map((row) => row.map(() => 0));
  const size = deviation(all, std) + stdEps;
  return centred.map((row) => row.map((value) => value / size));
}

const validRewards = ({ values, kept }) => values.filter((_, g) => kept[g]);

function groupStd(group, std) {
  const centre = group.total / Math.max(group.count, 1);
  const squares = validRewards(group).map((reward) => (reward - centre) ** 2);
  return Math.sqrt(sum(squares) / Math.max(group.count - correction(std), 1));
}

function centre(groups, baseline) {
  if (baseline === "mean") return groups.map(({ values, total, count }) => less(values, total / Math.max(count, 1)));
  if (baseline === "leave_one_out")
    return groups.map(({ values, total, count }) => values.map((reward) => reward - (total - reward) / Math.max(count - 1, 1)));
  if (baseline === "batch") {
    const everywhere = sum(groups.map(({ total }) => total)) / Math.max(sum(groups.map(({ count }) => count)), 1);
    return groups.map(({ values }) => less(values, everywhere));
  }
  if (baseline !== "length_weighted") throw new Error(`unknown baseline ${baseline}: mean, leave_one_out, batch or length_weighted`);
  return groups.map(({ values, kept, lengths }) => {
    if (!lengths) throw new Error('baseline "length_weighted" needs lengths');
    const weights = kept.map((counts, g) => (counts ? lengths[g] : 0));
    return less(values, sum(values.map((reward, g) => weights[g] * reward)) / Math.max(sum(weights), 1));
  });
}

const less = (values, baseline) => values.map((value) => value - baseline);

// Largest minus smallest; 0 with fewer than two, or if they differ by rounding only.
function spread(values) {
  const [highest, lowest] = [Math.max(...values), Math.min(...values)];
  const rounding = 8 * Number.EPSILON * Math.max(Math.abs(highest), Math.abs(lowest));
  return highest - lowest > rounding ? highest - lowest : 0;
}
