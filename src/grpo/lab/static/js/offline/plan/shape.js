// The shape of a model, and the work of a step: grpo.model.plan.shape and work in JavaScript, tested against them.
export const ceil = (a, b) => Math.ceil(a / b);
export const total = (values) => values.reduce((sum, value) => sum + value, 0);

// As Python's round: halves go to the even neighbour.
function round(value) {
  const below = Math.floor(value);
  if (value - below !== 0.5) return Math.round(value);
  return below % 2 ? below + 1 : below;
}

const shape = (vocabulary, hidden, intermediate, layers, [heads, kvHeads, headWidth], { tied = true, qkvBias = false } = {}) => {
  const [H, K, C, F] = [heads * headWidth, kvHeads * headWidth, hidden, intermediate];
  const linearSizes = [[C, H], [C, K], [C, K], [H, C], [C, F], [C, F], [F, C]];
  const linear = layers * total(linearSizes.map(([inputs, outputs]) => inputs * outputs));
  const embedding = vocabulary * hidden;
  const biases = qkvBias ? layers * (H + 2 * K) : 0;
  const parameters = linear + biases + layers * 2 * hidden + hidden + embedding * (tied ? 1 : 2);
  return {
    vocabulary, hidden, intermediate, layers, heads, kvHeads, headWidth, tied, biases, embedding, linear, parameters,
    queryWidth: H,
    kvWidth: K,
    linearMaps: linearSizes.length,
    body: parameters - (tied ? 0 : embedding),
    // Weights that a shard of weights holds in 16 bits.
    narrow: linear + (tied ? 0 : embedding),
    adapters: (rank) => layers * rank * total(linearSizes.map(([inputs, outputs]) => inputs + outputs)),
    adaptersSideBySide: (rank) => layers * rank * (3 * C + 3 * (H + 2 * K) + H + C + 2 * C + 2 * 2 * F + F + C),
  };
};

// The models that the page offers.
export const SHAPES = {
  "smollm2-135m": shape(49152, 576, 1536, 30, [9, 3, 64]),
  "qwen2.5-1.5b": shape(151936, 1536, 8960, 28, [12, 2, 128], { qkvBias: true }),
  "qwen2.5-7b": shape(152064, 3584, 18944, 28, [28, 4, 128], { qkvBias: true, tied: false }),
  "qwen2.5-14b": shape(152064, 5120, 13824, 48, [40, 8, 128], { qkvBias: true, tied: false }),
};

// A typical model of about this many billion parameters.
export function typicalShape(billions) {
  const parameters = billions * 1e9;
  const large = parameters >= 1e9;
  const [vocabulary, tied] = large ? [128256, parameters < 4e9] : [49152, true];
  const width = large ? 128 : 64;
  const body = parameters - vocabulary * ((parameters * 128) / 12) ** (1 / 3) * (tied ? 1 : 2);
  let heads = Math.max(1, round(((Math.max(body, parameters / 4) * 128) / 12) ** (1 / 3) / width));
  if (heads > 8) heads = 8 * round(heads / 8);
  const kvHeads = heads > 8 ? 8 : Math.max(...[1, 2, 3].filter((n) => heads % n === 0));
  const hidden = heads * width;
  const layers = Math.max(2, round(hidden / 128));
  const attention = 2 * hidden * (hidden + kvHeads * width);
  const left = (parameters - vocabulary * hidden * (tied ? 1 : 2)) / layers - attention;
  return shape(vocabulary, hidden, Math.max(64, 64 * round(left / (3 * hidden) / 64)), layers, [heads, kvHeads, width], { tied });
}

const TOKEN_BUDGET = 16384;

// One step: prompts, completions of each, and their tokens.
export function work(prompts, groupSize, promptTokens, newTokens) {
  const completions = prompts * groupSize;
  return { prompts, groupSize, promptTokens, newTokens, completions, share: (ranks) => work(ceil(prompts, ranks), groupSize, promptTokens, newTokens) };
}

const batch = (prompts, completions, { promptTokens }, newTokens, count) => ({
  prompts, completions, promptTokens, newTokens, count,
  trainedTokens: completions * newTokens,
  tokens: prompts * promptTokens + completions * newTokens,
});

// The largest micro-batch of full-length completions, and the number of micro-batches.
export function microBatch(of) {
  const groupTokens = of.promptTokens + of.groupSize * of.newTokens;
  if (groupTokens > TOKEN_BUDGET) {
    const piece = Math.max(1, Math.floor((TOKEN_BUDGET - of.promptTokens) / of.newTokens));
    return batch(1, Math.min(piece, of.groupSize), of, of.newTokens, of.prompts * ceil(of.groupSize, piece));
  }
  const together = Math.min(of.prompts, Math.floor(TOKEN_BUDGET / groupTokens));
  return batch(together, together * of.groupSize, of, of.newTokens, ceil(of.prompts, together));
}

// The largest micro-batch of completions of any length.
export function fullestMicroBatch(of) {
  const even = microBatch(of);
  return even.count === 1 || even.tokens >= TOKEN_BUDGET ? even : batch(1, 1, of, TOKEN_BUDGET - of.promptTokens, even.count);
}
