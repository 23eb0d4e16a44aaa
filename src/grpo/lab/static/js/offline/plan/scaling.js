// A step on several GPUs: collectives, seconds, scaling. grpo.model.plan.scaling, seconds and links in JavaScript.
import { flops } from "./flops.js";
import { memoryOf } from "./memory.js";
import { total } from "./shape.js";

export const GIB = 2 ** 30;
export const USABLE = 0.93;
const FLOAT32 = 4;
export const GPUS = {
  b200: 180, h200: 141, h100: 80, "a100-80": 80, "a100-40": 40, mi300x: 192, l40s: 48, a6000: 48, 5090: 32, "v100-32": 32, 4090: 24, 3090: 24, a10: 24, l4: 24,
  4080: 16, t4: 16, 3060: 12,
};
// The table's order; an object would put whole numbers first.
export const GPU_NAMES = [
  "b200", "h200", "h100", "a100-80", "a100-40", "mi300x", "l40s", "a6000", "5090", "v100-32", "4090", "3090", "a10", "l4", "4080", "t4", "3060",
];
export const SPEEDS = { b200: [2250, 8000], h200: [989, 4800], "a100-80": [312, 2039], 4090: [165, 1008] };
const WIDTHS = [[576, 0.255], [896, 0.415], [1536, 0.49]];
export const SHARDS = ["none", "optimizer", "weights"];

// Share of a GPU's operations per second, by hidden width.
function shareOfPeak(hidden) {
  const below = WIDTHS.findLast(([width]) => width <= hidden) ?? WIDTHS[0];
  const above = WIDTHS.find(([width]) => width >= hidden) ?? WIDTHS[WIDTHS.length - 1];
  if (below[0] >= above[0]) return (hidden >= below[0] ? below : above)[1];
  return below[1] + (Math.log(hidden / below[0]) / Math.log(above[0] / below[0])) * (above[1] - below[1]);
}

function secondsOf({ shape, needs, gpu }, work) {
  const [peak, bandwidth] = [SPEEDS[gpu][0] * 1e12, 0.9 * SPEEDS[gpu][1] * 1e9];
  const operations = flops(shape, work, needs);
  const rate = peak * shareOfPeak(shape.hidden);
  const decoding = 1.3 * rate;
  const weights = shape.linear + shape.embedding;
  const perToken = 26e-6 * shape.layers + (2 * weights) / bandwidth;
  const cached = work.promptTokens / work.groupSize + work.newTokens / 2;
  const perRow = (4 * shape.layers * shape.kvWidth * cached + 16 * shape.vocabulary) / bandwidth + (2 * weights) / decoding;
  const prefill = (2 * shape.linear * work.prompts * work.promptTokens) / decoding;
  return {
    rollout: work.newTokens * (perToken + perRow * work.completions) + prefill,
    score: (operations.reference + operations.critic) / rate,
    update: operations.update / rate,
  };
}

const slowest = ({ gpus, inside, between, links }, ranks) =>
  [...(gpus > 1 ? [inside] : []), ...(ranks > gpus ? [between] : [])].reduce(
    (least, name) => (links[name].bandwidth < links[least].bandwidth ? name : least),
    gpus > 1 ? inside : between,
  );
const sent = (operation, size, ranks) => Math.floor(((operation === "all_reduce" ? 2 : 1) * size * (ranks - 1)) / ranks);

// Elements of flat buckets, in each of which every rank owns an equal interval.
function padded(elements, ranks) {
  const unit = ranks * 8;
  const [full, rest] = [Math.floor(elements / 2 ** 26), elements % 2 ** 26];
  return (full * Math.ceil(2 ** 26 / unit) + Math.ceil(rest / unit)) * unit;
}

// [bytes of a weight, weights] of each number format.
function formats({ shape, precision }, shard) {
  if (shard !== "weights" || !precision.mixed) return [[precision.weights, shape.parameters]];
  return [[precision.weights, shape.parameters - shape.narrow], [precision.values, shape.narrow]];
}

function collectives(run, shard, cluster, ranks) {
  if (ranks === 1) return [];
  const { work } = run;
  const bandwidth = cluster.links[slowest(cluster, ranks)].bandwidth;
  const token = 8 + FLOAT32 * (1 + (run.needs.reference ? 1 : 0)) + 4;
  const groups = work.prompts * work.promptTokens * 12 + work.completions * (190 + token * work.newTokens);
  const gathered = sent("all_gather", groups, ranks);
  const crossing = ranks > cluster.gpus ? gathered / bandwidth : 0;
  const reduced = FLOAT32 * total(formats(run, shard).map(([, count]) => padded(count, ranks)));
  const published = shard === "none" ? 0 : total(formats(run, shard).map(([size, count]) => size * padded(count, ranks)));
  const over = (name, operation, size) => ({ name, operation, size, sent: sent(operation, size, ranks), seconds: sent(operation, size, ranks) / bandwidth });
  return [
    { name: "groups gathered", operation: "all_gather", size: groups, sent: gathered, seconds: groups / 250e6 + crossing },
    over("gradient reduced", shard === "none" ? "all_reduce" : "reduce_scatter", reduced),
    over("weights published", "all_gather", published),
  ];
}

export const usableBytes = (gpu) => Math.round(USABLE * GPUS[gpu] * GIB);
const memory = (run, shard, ranks) => memoryOf(run.shape, run.work, run.needs, run.precision, { shard, ranks, available: usableBytes(run.gpu) });

// The requested mode, or the first that fits; the most sparing one if none does.
function modeOf(run, ranks) {
  if (run.shard !== "auto") return run.shard;
  if (ranks === 1) return "none";
  return SHARDS.find((shard) => memory(run, shard, ranks).peak <= usableBytes(run.gpu)) ?? "weights";
}

function predictedStep(run, cluster, ranks) {
  const shard = modeOf(run, ranks);
  const exchanged = collectives(run, shard, cluster, ranks);
  const phases = { ...secondsOf(run, run.work.share(ranks)), exchange: total(exchanged.map((each) => each.seconds)) };
  return {
    gpus: ranks,
    shard,
    fits: memory(run, shard, ranks).peak <= usableBytes(run.gpu),
    prompts: run.work.prompts,
    idle: Math.max(0, ranks - run.work.prompts),
    link: ranks > 1 ? slowest(cluster, ranks) : null,
    phases,
    seconds: total(Object.values(phases)),
    collectives: exchanged,
  };
}

function doublings(most) {
  const found = [];
  for (let ranks = 1; ranks < most; ranks *= 2) found.push(ranks);
  return [...found, most];
}

// A step on 1, 2, 4, … GPUs; `ofRanks`: the run on a number of GPUs.
function curve(cluster, ofRanks, weak) {
  let alone = null;
  return doublings(cluster.gpus * cluster.nodes).map((ranks) => {
    const step = predictedStep(ofRanks(ranks), cluster, ranks);
    alone ??= step.seconds;
    return { ...step, efficiency: alone / step.seconds / (weak ? 1 : ranks) };
  });
}

// Memory by mode, the predicted step on all GPUs, and both curves; `withPrompts`: the run with a number of prompts.
export function scaled(withPrompts, prompts, cluster) {
  const ranks = cluster.gpus * cluster.nodes;
  const run = withPrompts(prompts);
  const modes = SHARDS.map((shard) => {
    const { components, peak } = memory(run, shard, ranks);
    return [shard, { memory: components, peak, fits: peak <= usableBytes(run.gpu) }];
  });
  return {
    shard: modeOf(run, ranks),
    modes: Object.fromEntries(modes),
    step: predictedStep(run, cluster, ranks),
    strong: curve(cluster, () => run, false),
    weak: curve(cluster, (count) => withPrompts(prompts * count), true),
    slowest: slowest(cluster, ranks),
  };
}
