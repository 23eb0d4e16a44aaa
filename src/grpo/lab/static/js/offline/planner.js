// Answers of the memory and compute planner.
import { flops } from "./plan/flops.js";
import { memoryOf, PRECISIONS } from "./plan/memory.js";
import { GIB, GPU_NAMES, GPUS, scaled, SHARDS, SPEEDS, USABLE, usableBytes } from "./plan/scaling.js";
import { SHAPES, total, typicalShape, work as workOf } from "./plan/shape.js";
import { number, whole, word } from "./query.js";
import { recorded } from "./recorded.js";

const STATES = ["weights", "gradients", "optimizer", "reference", "reward model", "critic"];
const HELD = ["weights", "gradients", "optimizer", "reference", "working copies", "keys/values"];

const shapeOf = (params) => typicalShape(number(params, "size", 7, 0.1, 500));
const work = (params) => workOf(
  whole(params, "prompts", 16, 1, 256),
  whole(params, "g", 8, 1, 64),
  whole(params, "prompt_tokens", 256, 1, 8192),
  whole(params, "new_tokens", 1024, 1, 16384),
);
// GRPO needs a reference; PPO a critic too.
const needsOf = (params, algorithm) => ({ reference: word(params, "reference", "yes", ["yes", "no"]) === "yes", critic: algorithm === "ppo" });
const pick = (components, names) => Object.fromEntries(names.filter((name) => name in components).map((name) => [name, components[name]]));
const operations = (shape, of, needs) => total(Object.values(flops(shape, of, needs)));

function memory(params) {
  const shape = shapeOf(params);
  const kind = PRECISIONS[word(params, "dtype", "bfloat16", Object.keys(PRECISIONS))];
  const lora = whole(params, "lora", 0, 0, 256);
  const count = word(params, "count", "all", ["all", "states", "weights"]);
  const rewardModel = word(params, "judge", "rule", ["rule", "model"]) === "model" ? shape : null;
  const rows = ["grpo", "ppo"].map((algorithm) => {
    const needs = needsOf(params, algorithm);
    const found = memoryOf(shape, work(params), needs, kind, { lora, rewardModel });
    const weights = { ...pick(found.components, ["weights", "reference", "reward model"]), critic: needs.critic ? found.components.weights : 0 };
    const components = count === "weights" ? weights : count === "states" ? pick(found.components, STATES) : found.components;
    const bytes = count === "all" ? found.peak : total(Object.values(components));
    const models = [
      { name: "policy", there: true, trainable: true },
      { name: "reference", there: needs.reference && !lora, trainable: false },
      { name: "critic", there: needs.critic, trainable: needs.critic },
      { name: "reward model", there: rewardModel !== null, trainable: false },
    ];
    return { algorithm, components, total: bytes, models, fits: GPU_NAMES.filter((name) => bytes <= USABLE * GPUS[name] * GIB) };
  });
  return { parameters: shape.parameters, rows, saved: 1 - rows[0].total / rows[1].total, count };
}

function largest(params) {
  const card = word(params, "card", "h200", GPU_NAMES);
  const kind = PRECISIONS[word(params, "dtype", "bfloat16", Object.keys(PRECISIONS))];
  const [lora, room] = [whole(params, "lora", 0, 0, 256), USABLE * GPUS[card] * GIB];
  const most = (algorithm) => {
    const fits = (tenths) => memoryOf(typicalShape(tenths / 10), work(params), needsOf(params, algorithm), kind, { lora }).peak <= room;
    let [least, above] = [0, 5000];
    while (above - least > 1) {
      const middle = Math.floor((least + above) / 2);
      [least, above] = fits(middle) ? [middle, above] : [least, middle];
    }
    return least / 10;
  };
  return { card, bytes: GPUS[card] * GIB, usable: usableBytes(card), largest: { grpo: most("grpo"), ppo: most("ppo") } };
}

function compute(params) {
  const [shape, own] = [shapeOf(params), work(params)];
  const few = workOf(own.prompts, whole(params, "ppo_g", 1, 1, 64), own.promptTokens, own.newTokens);
  const rows = [["grpo", own], ["ppo", few], ["ppo, as many completions", own]].map(([algorithm, of]) => {
    const phases = flops(shape, of, needsOf(params, algorithm.split(",")[0]));
    return { algorithm, completions: of.completions, phases, all: total(Object.values(phases)) };
  });
  return { rows, per_prompt: rows[0].all / rows[1].all, alike: rows[0].all / rows[2].all };
}

function groups(params) {
  const [shape, own, needs] = [shapeOf(params), work(params), needsOf(params, "grpo")];
  return [2, 8, 16, 64].map((g) => {
    const of = workOf(own.prompts, g, own.promptTokens, own.newTokens);
    const phases = flops(shape, of, needs);
    return { g, rollout: phases.rollout, all: total(Object.values(phases)), peak: memoryOf(shape, of, needs, PRECISIONS.bfloat16).peak };
  });
}

function critics(params) {
  const [shape, own] = [shapeOf(params), work(params)];
  return [["none", false], ["shares the policy network", false], ["a separate network", true]].map(([critic, separate]) => {
    const needs = { reference: false, critic: separate };
    return { critic, peak: memoryOf(shape, own, needs, PRECISIONS.bfloat16).peak, flops: operations(shape, own, needs) };
  });
}

function methodCosts(size, groupSize, noise) {
  const [shape, own] = [typicalShape(size), workOf(16, groupSize, 256, 1024)];
  const costs = (needs) => ({ ...needs, peak: memoryOf(shape, own, needs, PRECISIONS.bfloat16).peak, flops: operations(shape, own, needs) });
  const withReference = { reference: true, critic: false };
  const dpo = costs(withReference);
  dpo.peak -= memoryOf(shape, own, withReference, PRECISIONS.bfloat16).components["keys/values"];
  dpo.flops -= flops(shape, own, withReference).rollout;
  return [
    { method: "PPO", ...costs({ reference: true, critic: true }), noise: null, samples: true },
    { method: "GRPO", ...costs(withReference), noise: noise("GRPO"), samples: true },
    { method: "REINFORCE", ...costs({ reference: false, critic: false }), noise: noise("REINFORCE, no baseline"), samples: true },
    { method: "DPO", ...dpo, noise: null, samples: false },
  ];
}

async function scale(params) {
  const links = {};
  for (const [inside, between] of [["nvlink", "400gbit"], ["pcie", "1gbit"]])
    Object.assign(links, (await recorded(`/api/chapters/costs/scale?inside=${inside}&between=${between}&nodes=2`)).cluster.links);
  const shape = SHAPES[word(params, "model", "qwen2.5-7b", Object.keys(SHAPES))];
  const gpu = word(params, "gpu", "h200", Object.keys(SPEEDS));
  const cluster = {
    gpus: whole(params, "gpus", 8, 2, 1024),
    nodes: whole(params, "nodes", 1, 1, 1024),
    inside: word(params, "inside", "nvlink", ["nvlink", "pcie"]),
    between: word(params, "between", "400gbit", ["400gbit", "1gbit"]),
  };
  const shard = word(params, "shard", "auto", ["auto", ...SHARDS]);
  const run = (prompts) => ({ shape, gpu, shard, work: workOf(prompts, 8, 256, 1024), needs: { reference: true, critic: false }, precision: PRECISIONS.mixed });
  const { slowest, ...found } = scaled(run, whole(params, "prompts", 64, 1, 4096), { ...cluster, links });
  for (const mode of Object.values(found.modes)) {
    const held = pick(mode.memory, HELD);
    mode.parts = { ...held, "activations and buffers": mode.peak - total(Object.values(held)) };
  }
  const { names } = await recorded("/api/chapters/costs/scale?inside=nvlink&between=400gbit&nodes=2");
  const used = pick(links, Object.keys(links).filter((name) => name === cluster.inside || name === slowest));
  return {
    ...found,
    cluster: { ...cluster, ranks: cluster.gpus * cluster.nodes, links: used, seconds_of: gpu },
    parameters: shape.parameters,
    usable: usableBytes(gpu),
    names,
  };
}

export const PLANNER = { memory, largest, compute, groups, critics, scale, methodCosts };
