// @jax-js/jax, compiled with jit. Every use of an array but the last is written `.ref`.
import { padded, tables } from "./batch.js";

export async function make(batch, device) {
  const jax = await import("/libraries/@jax-js/jax/dist/index.js");
  await jax.init(device);
  jax.defaultDevice(device);
  const { numpy: np, nn } = jax;
  const { weights: { shapes, of }, shape } = batch.student.model;
  const { heads: H, width: D, channels: C, eps, layers } = shape;
  const V = shapes["model.embed_tokens.weight"][0];
  const { B, T, tokens, targets, slopes } = padded(batch);
  const names = Object.keys(shapes);
  const weights = Object.fromEntries(names.map((name) => [name, np.array(of[name].slice()).reshape(shapes[name])]));
  const hot = (ids) => np.array(Float32Array.from({ length: B * T * V }, (_, i) => Number(ids[Math.floor(i / V)] === i % V))).reshape([B * T, V]);
  const [input, wanted, slope] = [hot(tokens), hot(targets), np.array(slopes)];
  const table = tables(shape, T);
  const whole = (half, sign) => np.array(Float32Array.from({ length: T * D }, (_, i) => (i % D < D / 2 ? sign : 1) * half[Math.floor(i / D) * (D / 2) + (i % (D / 2))])).reshape([T, D]);
  const [cos, sin] = [whole(table.cos, 1), whole(table.sin, -1)];
  const mask = np.array(table.mask).reshape([T, T]);
  const norm = (x, gain) => x.ref.div(np.sqrt(x.ref.mul(x).mean(-1, { keepdims: true }).add(eps))).mul(gain);
  const linear = (x, weight) => np.matmul(x, weight.transpose());
  const split = (x) => x.reshape([B, T, H, D]).transpose([0, 2, 1, 3]);
  const rotate = (x) => x.ref.mul(cos.ref).add(np.roll(x, D / 2, 3).mul(sin.ref));
  function loss(w) {
    let x = np.matmul(input.ref, w["model.embed_tokens.weight"].ref);
    for (let layer = 0; layer < layers; layer++) {
      const of = (part) => w[`model.layers.${layer}.${part}.weight`];
      const h = norm(x.ref, of("input_layernorm"));
      const [q, k] = ["q", "k"].map((part) => rotate(split(linear(h.ref, of(`self_attn.${part}_proj`)))));
      const share = nn.softmax(np.matmul(q, k.transpose([0, 1, 3, 2])).mul(1 / Math.sqrt(D)).add(mask.ref), -1);
      const mixed = np.matmul(share, split(linear(h, of("self_attn.v_proj")))).transpose([0, 2, 1, 3]).reshape([B * T, C]);
      x = x.add(linear(mixed, of("self_attn.o_proj")));
      const g = norm(x.ref, of("post_attention_layernorm"));
      const gate = nn.silu(linear(g.ref, of("mlp.gate_proj")));
      x = x.add(linear(gate.mul(linear(g, of("mlp.up_proj"))), of("mlp.down_proj")));
    }
    const logp = nn.logSoftmax(linear(norm(x, w["model.norm.weight"]), w["model.embed_tokens.weight"]), -1);
    return logp.mul(wanted.ref).sum(-1).mul(slope.ref).sum();
  }
  const gradient = jax.jit(jax.grad(loss));
  return async () => {
    const found = gradient(Object.fromEntries(names.map((name) => [name, weights[name].ref])));
    const values = await Promise.all(names.map((name) => found[name].data()));
    return Float32Array.from(values.flatMap((each) => [...each]));
  };
}
