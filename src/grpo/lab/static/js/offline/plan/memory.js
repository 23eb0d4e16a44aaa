// Bytes of training on a GPU: grpo.model.plan.memory, cache and fused in JavaScript, tested against them.
import { ceil, fullestMicroBatch, microBatch } from "./shape.js";

const FLOAT32 = 4;
const BLOCK_TOKENS = 64;
const [SHARE_OF_FREE_MEMORY, LOGIT_BYTES] = [0.4, 12];
const BUCKET = 2 ** 26;

const precision = (weights, gradients, optimizer, values, sums) => ({ weights, gradients, optimizer, values, sums, mixed: sums > values });
export const PRECISIONS = {
  float32: precision(4, 4, 8, 4, 4),
  mixed: precision(4, 4, 8, 2, 4),
  half: precision(4, 4, 8, 2, 4),
  bfloat16: precision(2, 2, 4, 2, 2),
};

// { components, phases, peak }, in bytes. `needs`: { reference, critic }.
export function memoryOf(shape, wholeWork, needs, given, { lora = 0, rewardModel = null, shard = "none", ranks = 1, available = 0 } = {}) {
  const work = wholeWork.share(ranks);
  const states = statesOf(shape, needs, given, lora, shard, ranks);
  const kind = lora ? { ...given, gradients: FLOAT32, optimizer: 2 * FLOAT32 } : given;
  // With LoRA, the reference is the policy without its adapter.
  const reference = needs.reference && !lora ? frozen(shape, kind) : 0;
  const reward = rewardModel ? kind.weights * rewardModel.parameters : 0;
  let copy = workingCopy(shape, kind, lora, states.narrow);
  const loaded = states.weights * (needs.critic ? 2 : 1) + reference + reward + copy;
  const blocks = cacheBlocks(shape, work, kind.values, available ? Math.max(0, available - loaded) : null);
  const keysValues = blockBytes(shape, kind.values) * (blocks + 1) + 3 * FLOAT32 * work.completions * work.newTokens;
  const sampledLogits = FLOAT32 * shape.vocabulary * (work.completions + 2 * work.prompts);
  const throughFused = kind.values < FLOAT32;
  if (throughFused) {
    const head = castsHead(shape, kind) ? kind.values * shape.embedding : 0;
    copy += (needs.critic ? copy : 0) + (reference > 0 ? head : 0);
  }
  const resident = states.weights + states.optimizer + states.critic + reference + reward + copy + keysValues;
  const batch = throughFused ? fullestMicroBatch(work) : microBatch(work);
  const earlier = batch.count > 1 ? 1 : 0;
  const table = lora ? 0 : kind.gradients * shape.embedding;
  const { activations, logits, scoring, update } = throughFused
    ? fused(shape, batch, kind, states.gradients, table)
    : stock(shape, batch, kind, states, table, lora);
  const phases = {
    rollout: resident + sampledLogits,
    score: resident + (needs.reference || needs.critic ? scoring : 0),
    update: resident + states.criticGradients + update,
  };
  if (needs.critic) {
    const own = Math.max(activations + earlier * states.criticGradients, states.criticGradients + earlier * table);
    phases["critic update"] = resident + earlier * states.gradients + own;
  }
  if (ranks > 1) phases.reduce = resident + states.gradients + states.criticGradients + states.bucket;
  const components = {
    weights: states.weights,
    gradients: states.gradients,
    optimizer: states.optimizer,
    reference,
    "reward model": reward,
    critic: states.critic + states.criticGradients,
    "working copies": copy,
    "keys/values": keysValues,
    activations,
    logits: Math.max(logits, sampledLogits),
    bucket: states.bucket,
  };
  return { components, phases, peak: Math.max(...Object.values(phases)) };
}

// Bytes of weights, gradients and Adam's state, of the policy and of a critic.
function statesOf(shape, needs, given, lora, shard, ranks) {
  const trained = lora ? shape.adapters(lora) : shape.parameters;
  const narrow = shard === "weights" && given.mixed && !lora ? shape.narrow : 0;
  const kind = lora ? { ...given, gradients: FLOAT32, optimizer: 2 * FLOAT32 } : given;
  const weights = lora ? frozen(shape, given) + FLOAT32 * trained : given.weights * (trained - narrow) + given.values * narrow;
  const owners = shard === "none" ? 1 : ranks;
  const optimizer = (parameters) => ceil(kind.optimizer * parameters + FLOAT32 * Math.max(0, narrow - (shape.parameters - parameters)), owners);
  const inCritic = needs.critic ? (lora ? trained : shape.body) : 0;
  return {
    weights,
    gradients: kind.gradients * trained,
    optimizer: optimizer(trained),
    critic: needs.critic ? weights + optimizer(inCritic) : 0,
    criticGradients: kind.gradients * inCritic,
    bucket: ranks > 1 ? FLOAT32 * Math.min(BUCKET, Math.max(narrow, trained - narrow)) : 0,
    narrow: narrow > 0,
  };
}

const castsHead = (shape, kind) => shape.tied && kind.mixed;

// Bytes of a frozen model: linear layers are stored in the precision of computation.
function frozen(shape, kind) {
  const narrow = shape.linear + shape.biases + (shape.tied ? 0 : shape.embedding);
  return kind.values * narrow + kind.weights * (shape.parameters - narrow);
}

function workingCopy(shape, kind, lora, narrow) {
  if (!lora && !narrow) return kind.values * (shape.linear + shape.embedding);
  return kind.values * (shape.adaptersSideBySide(lora) + (castsHead(shape, kind) ? shape.embedding : 0));
}

const blockBytes = (shape, size) => 2 * shape.layers * shape.kvWidth * size * BLOCK_TOKENS;

function cacheBlocks(shape, work, size, free) {
  const blocks = (prompts, completions) => prompts * ceil(work.promptTokens, BLOCK_TOKENS) + completions * ceil(work.newTokens, BLOCK_TOKENS);
  const all = blocks(work.prompts, work.completions);
  if (free === null) return all;
  const room = Math.floor(SHARE_OF_FREE_MEMORY * free) - LOGIT_BYTES * shape.vocabulary * work.completions;
  return Math.max(blocks(1, 1), Math.min(all, Math.floor(room / blockBytes(shape, size))));
}

// Through the fused blocks.
function fused(shape, batch, { values: size, sums }, gradients, table) {
  const [E, C, F] = [shape.queryWidth + 2 * shape.kvWidth, shape.hidden, shape.intermediate];
  const inside = size * E + size * shape.queryWidth + FLOAT32 * shape.heads + sums * C + 2 * FLOAT32 + 2 * size * F;
  const activations = batch.tokens * (shape.layers * (sums * C + inside) + (sums + size) * C) + batch.trainedTokens * size * C;
  const rows = Math.max(1024, Math.floor(2 ** 26 / shape.vocabulary));
  const chunk = FLOAT32 * Math.min(rows, batch.trainedTokens) * shape.vocabulary;
  const states = batch.trainedTokens * C;
  // `made`: the gradient of the output layer's weights, if its backward pass makes it.
  const widest = (made) => {
    const head = size * batch.trainedTokens * shape.vocabulary + Math.max(chunk, (FLOAT32 + size) * states, 2 * size * states + made);
    return Math.max(head, batch.tokens * ((sums + 2 * size) * C + 4 * size * F) + made);
  };
  const [earlier, made] = batch.count > 1 ? [gradients, 0] : [0, table];
  const update = Math.max(earlier + activations + widest(made), gradients);
  const scoring = Math.max(batch.tokens * (inside + (2 * sums + size) * C + size * F), size * states + chunk);
  return { activations, logits: widest(0), scoring, update };
}

// Through transformers' blocks, in float32.
function stock(shape, batch, kind, states, table, lora) {
  const rows = Math.max(1, Math.floor(2 ** 24 / shape.vocabulary));
  const activations = saved(shape, batch, kind, lora);
  const logits = 3 * FLOAT32 * shape.vocabulary * Math.min(batch.trainedTokens, rows);
  const product = Math.floor((table * kind.values) / kind.gradients);
  const head = batch.trainedTokens > rows ? Math.max(logits + product, 3 * product) : Math.max(logits, Math.floor(logits / 3) + product);
  const earlier = batch.count > 1 ? 1 : 0;
  const last = (shape.tied ? 2 * table : 0) + table * earlier;
  const update = Math.max(activations + head + states.gradients * earlier, states.gradients + last);
  const forward = batch.tokens * (2 * kind.sums * shape.hidden + 3 * kind.values * shape.intermediate);
  return { activations, logits, scoring: forward + logits, update };
}

function saved(shape, batch, { values: size, sums }, lora) {
  const [C, H, F] = [shape.hidden, shape.queryWidth, shape.intermediate];
  const columns = batch.promptTokens + batch.newTokens;
  const norm = FLOAT32 * C + FLOAT32 + (lora ? 0 : sums * C);
  const perToken = 2 * norm + 2 * size * C + size * H + 4 * size * F + size * lora * shape.linearMaps;
  const grids = size * H * (4 * batch.prompts * batch.promptTokens + 2 * batch.trainedTokens + 2 * batch.completions * columns);
  const softmax = FLOAT32 * shape.heads * batch.tokens;
  const mask = size * batch.trainedTokens * columns;
  const ends = batch.tokens * ((lora ? 0 : norm) + sums * C + 2 * sums * shape.headWidth) + batch.trainedTokens * sums * C;
  return shape.layers * (batch.tokens * perToken + grids + softmax + mask) + ends;
}
