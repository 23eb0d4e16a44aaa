// TensorFlow.js (global `tf`), on the backend cpu or wasm.
import { padded, tables } from "./batch.js";

export async function make(batch, backend) {
  if (backend === "wasm") tf.wasm.setWasmPaths("/libraries/@tensorflow/tfjs-backend-wasm/dist/");
  await tf.setBackend(backend);
  await tf.ready();
  const { weights: { shapes, of }, shape } = batch.student.model;
  const { heads: H, width: D, channels: C, eps, layers } = shape;
  const V = shapes["model.embed_tokens.weight"][0];
  const { B, T, tokens, targets, slopes } = padded(batch);
  const names = Object.keys(shapes);
  const w = Object.fromEntries(names.map((name) => [name, tf.variable(tf.tensor(of[name], shapes[name]))]));
  const hot = (ids) => tf.oneHot(tf.tensor1d(Int32Array.from(ids), "int32"), V).toFloat();
  const [input, wanted, slope] = [hot(tokens), hot(targets), tf.tensor1d(slopes)];
  const table = tables(shape, T);
  const [cos, sin] = [table.cos, table.sin].map((values) => tf.tensor(values, [1, 1, T, D / 2]));
  const mask = tf.tensor(table.mask, [1, 1, T, T]);
  const norm = (x, gain) => x.mul(x.square().mean(-1, true).add(eps).rsqrt()).mul(gain);
  const linear = (x, weight) => tf.matMul(x, weight, false, true);
  const split = (x) => x.reshape([B, T, H, D]).transpose([0, 2, 1, 3]);
  function rotate(x) {
    const [a, b] = tf.split(x, 2, 3);
    return tf.concat([a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))], 3);
  }
  function loss() {
    let x = tf.matMul(input, w["model.embed_tokens.weight"]);
    for (let layer = 0; layer < layers; layer++) {
      const of = (part) => w[`model.layers.${layer}.${part}.weight`];
      const h = norm(x, of("input_layernorm"));
      const [q, k] = ["q", "k"].map((part) => rotate(split(linear(h, of(`self_attn.${part}_proj`)))));
      const share = tf.softmax(tf.matMul(q, k, false, true).mul(1 / Math.sqrt(D)).add(mask));
      const mixed = tf.matMul(share, split(linear(h, of("self_attn.v_proj")))).transpose([0, 2, 1, 3]).reshape([B * T, C]);
      x = x.add(linear(mixed, of("self_attn.o_proj")));
      const g = norm(x, of("post_attention_layernorm"));
      const gate = linear(g, of("mlp.gate_proj"));
      x = x.add(linear(gate.mul(gate.sigmoid()).mul(linear(g, of("mlp.up_proj"))), of("mlp.down_proj")));
    }
    const logits = linear(norm(x, w["model.norm.weight"]), w["model.embed_tokens.weight"]);
    return logits.mul(wanted).sum(-1).sub(logits.logSumExp(-1)).mul(slope).sum();
  }
  return async () => {
    const { value, grads } = tf.variableGrads(loss);
    const found = await Promise.all(names.map((name) => grads[w[name].name].data()));
    tf.dispose([value, grads]);
    return Float32Array.from(found.flatMap((values) => [...values]));
  };
}
