// nano's network (Llama's blocks), forward and backward by hand. Axis letters: N rows (tokens), C channels, F inner
// channels of a block, V vocabulary. What the forward pass computes is kept for the backward pass.
import { attend, attendBackward, rotate } from "./attention.js";
import { linear, linearBackward } from "./matmul.js";

// The sizes, from config.json.
export function shapeOf(config) {
  return {
    layers: config.num_hidden_layers,
    heads: config.num_attention_heads,
    width: config.head_dim,
    channels: config.hidden_size,
    eps: config.rms_norm_eps,
    theta: config.rope_parameters.rope_theta,
  };
}

const LAYER = {
  norm: "input_layernorm",
  query: "self_attn.q_proj",
  key: "self_attn.k_proj",
  value: "self_attn.v_proj",
  out: "self_attn.o_proj",
  innerNorm: "post_attention_layernorm",
  gate: "mlp.gate_proj",
  up: "mlp.up_proj",
  down: "mlp.down_proj",
};

function layerOf(tensors, layer) {
  return Object.fromEntries(Object.entries(LAYER).map(([name, part]) => [name, tensors.of[`model.layers.${layer}.${part}.weight`]]));
}

const EMBEDDING = "model.embed_tokens.weight";
const LAST_NORM = "model.norm.weight";

// Keys and values of every layer, with this many slots.
export function makeCache({ layers, channels }, slots) {
  return Array.from({ length: layers }, () => ({ keys: new Float32Array(slots * channels), values: new Float32Array(slots * channels) }));
}

// The logits of every row, and what the backward pass needs. `rows`: count, and arrays token, position, slot, promptFrom,
// promptTo, ownFrom. Writes the rows' keys and values into their slots of the cache.
export function forward(weights, shape, rows, cache) {
  const embedding = weights.of[EMBEDDING];
  const C = shape.channels;
  let x = new Float32Array(rows.count * C);
  for (let n = 0; n < rows.count; n++) x.set(embedding.subarray(rows.token[n] * C, (rows.token[n] + 1) * C), n * C);
  const blocks = [];
  for (let layer = 0; layer < shape.layers; layer++) {
    blocks.push(forwardBlock(layerOf(weights, layer), shape, rows, cache[layer], x));
    x = blocks[layer].output;
  }
  const last = normalise(x, weights.of[LAST_NORM], shape);
  return { rows, shape, blocks, last, logits: linear(last.output, embedding, rows.count) };
}

function forwardBlock(w, shape, rows, { keys, values }, input) {
  const N = rows.count;
  const norm = normalise(input, w.norm, shape);
  const query = linear(norm.output, w.query, N);
  const key = linear(norm.output, w.key, N);
  const value = linear(norm.output, w.value, N);
  rotate(query, shape, rows.position);
  rotate(key, shape, rows.position);
  const C = shape.channels;
  for (let n = 0; n < N; n++) {
    keys.set(key.subarray(n * C, (n + 1) * C), rows.slot[n] * C);
    values.set(value.subarray(n * C, (n + 1) * C), rows.slot[n] * C);
  }
  const attention = attend(shape, rows, query, keys, values);
  const middle = added(linear(attention.mixed, w.out, N), input);
  const innerNorm = normalise(middle, w.innerNorm, shape);
  const gate = linear(innerNorm.output, w.gate, N);
  const up = linear(innerNorm.output, w.up, N);
  const inner = up.map((value, i) => value * gate[i] * sigmoid(gate[i]));
  return { norm, query, keys, values, attention, innerNorm, gate, up, inner, output: added(linear(inner, w.down, N), middle) };
}

// Adds to `gradient` what the gradient by the logits gives. Every row has the slot of its number.
export function backward(weights, tape, dlogits_NV, gradient) {
  const { rows, shape, blocks, last } = tape;
  const C = shape.channels;
  const embedding = weights.of[EMBEDDING];
  const dembedding = gradient.of[EMBEDDING];
  const dnormed = new Float32Array(rows.count * C);
  linearBackward(dlogits_NV, last.output, embedding, rows.count, dembedding, dnormed);
  let dx = new Float32Array(rows.count * C);
  normaliseBackward(dnormed, last, weights.of[LAST_NORM], gradient.of[LAST_NORM], dx);
  for (let layer = shape.layers - 1; layer >= 0; layer--) {
    dx = backwardBlock(layerOf(weights, layer), layerOf(gradient, layer), shape, rows, blocks[layer], dx);
  }
  for (let n = 0; n < rows.count; n++) {
    for (let c = 0, at = rows.token[n] * C; c < C; c++) dembedding[at + c] += dx[n * C + c];
  }
}

// The gradient by the block's input. Both residual connections pass the gradient on.
function backwardBlock(w, dw, shape, rows, block, doutput) {
  const N = rows.count;
  const { norm, query, keys, values, attention, innerNorm, gate, up, inner } = block;
  const dinner = new Float32Array(inner.length);
  linearBackward(doutput, inner, w.down, N, dw.down, dinner);
  const dgate = new Float32Array(inner.length);
  const dup = new Float32Array(inner.length);
  for (let i = 0; i < inner.length; i++) {
    const s = sigmoid(gate[i]);
    dup[i] = dinner[i] * gate[i] * s;
    dgate[i] = dinner[i] * up[i] * s * (1 + gate[i] * (1 - s));
  }
  const dnormed = new Float32Array(doutput.length);
  linearBackward(dgate, innerNorm.output, w.gate, N, dw.gate, dnormed);
  linearBackward(dup, innerNorm.output, w.up, N, dw.up, dnormed);
  const dmiddle = doutput.slice();
  normaliseBackward(dnormed, innerNorm, w.innerNorm, dw.innerNorm, dmiddle);

  const dmixed = new Float32Array(doutput.length);
  linearBackward(dmiddle, attention.mixed, w.out, N, dw.out, dmixed);
  const { dquery, dkeys, dvalues } = attendBackward(shape, rows, query, keys, values, attention, dmixed);
  rotate(dquery, shape, rows.position, -1);
  rotate(dkeys, shape, rows.position, -1);
  dnormed.fill(0);
  linearBackward(dquery, norm.output, w.query, N, dw.query, dnormed);
  linearBackward(dkeys, norm.output, w.key, N, dw.key, dnormed);
  linearBackward(dvalues, norm.output, w.value, N, dw.value, dnormed);
  const dinput = dmiddle.slice();
  normaliseBackward(dnormed, norm, w.norm, dw.norm, dinput);
  return dinput;
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

function added(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
  return x;
}

// RMS norm: x / √(mean x² + eps) · gain.
function normalise(input, gain, { eps }) {
  const C = gain.length;
  const N = input.length / C;
  const output = new Float32Array(input.length);
  const inverse = new Float32Array(N);
  for (let n = 0; n < N; n++) {
    let squares = 0;
    for (let c = 0; c < C; c++) squares += input[n * C + c] ** 2;
    inverse[n] = 1 / Math.sqrt(squares / C + eps);
    for (let c = 0; c < C; c++) output[n * C + c] = input[n * C + c] * inverse[n] * gain[c];
  }
  return { input, inverse, output };
}

function normaliseBackward(doutput, { input, inverse }, gain, dgain, dinput) {
  const C = gain.length;
  for (let n = 0; n < inverse.length; n++) {
    let mean = 0;
    for (let c = 0, i = n * C; c < C; c++, i++) {
      const normed = input[i] * inverse[n];
      dgain[c] += doutput[i] * normed;
      mean += (doutput[i] * gain[c] * normed) / C;
    }
    for (let c = 0, i = n * C; c < C; c++, i++) dinput[i] += inverse[n] * (doutput[i] * gain[c] - input[i] * inverse[n] * mean);
  }
}
