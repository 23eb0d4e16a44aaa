// c += a · bᵀ in WebAssembly SIMD: one row of a against four of b, four channels at a time. Sizes are padded to fours.
const SOURCE = `(module
  (memory (export "memory") 256)
  (func (export "product") (param $c i32) (param $a i32) (param $b i32) (param $N i32) (param $M i32) (param $K i32)
    (local $n i32) (local $m i32) (local $k i32) (local $row i32) (local $b0 i32) (local $out i32)
    (local $x v128) (local $s0 v128) (local $s1 v128) (local $s2 v128) (local $s3 v128)
    (local $stride i32)
    (local.set $stride (i32.mul (local.get $K) (i32.const 4)))
    (local.set $out (local.get $c))
    (loop $rows
      (local.set $row (i32.add (local.get $a) (i32.mul (local.get $n) (local.get $stride))))
      (local.set $m (i32.const 0))
      (loop $columns
        (local.set $b0 (i32.add (local.get $b) (i32.mul (local.get $m) (local.get $stride))))
        (local.set $s0 (v128.const f32x4 0 0 0 0)) (local.set $s1 (v128.const f32x4 0 0 0 0))
        (local.set $s2 (v128.const f32x4 0 0 0 0)) (local.set $s3 (v128.const f32x4 0 0 0 0))
        (local.set $k (i32.const 0))
        (loop $inner
          (local.set $x (v128.load (i32.add (local.get $row) (local.get $k))))
          (local.set $s0 (f32x4.add (local.get $s0) (f32x4.mul (local.get $x) (v128.load (i32.add (local.get $b0) (local.get $k))))))
          (local.set $s1 (f32x4.add (local.get $s1) (f32x4.mul (local.get $x) (v128.load (i32.add (i32.add (local.get $b0) (local.get $stride)) (local.get $k))))))
          (local.set $s2 (f32x4.add (local.get $s2) (f32x4.mul (local.get $x) (v128.load (i32.add (i32.add (local.get $b0) (i32.mul (local.get $stride) (i32.const 2))) (local.get $k))))))
          (local.set $s3 (f32x4.add (local.get $s3) (f32x4.mul (local.get $x) (v128.load (i32.add (i32.add (local.get $b0) (i32.mul (local.get $stride) (i32.const 3))) (local.get $k))))))
          (br_if $inner (i32.lt_s (local.tee $k (i32.add (local.get $k) (i32.const 16))) (local.get $stride))))
        ${["s0", "s1", "s2", "s3"].map((sum, i) => `(f32.store offset=${4 * i} (local.get $out) (f32.add (f32.add (f32x4.extract_lane 0 (local.get $${sum})) (f32x4.extract_lane 1 (local.get $${sum}))) (f32.add (f32x4.extract_lane 2 (local.get $${sum})) (f32x4.extract_lane 3 (local.get $${sum})))))`).join("\n")}
        (local.set $out (i32.add (local.get $out) (i32.const 16)))
        (br_if $columns (i32.lt_s (local.tee $m (i32.add (local.get $m) (i32.const 4))) (local.get $M))))
      (br_if $rows (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1))) (local.get $N))))))`;

let wasm = null;
export const ready = window.WabtModule().then(async (wabt) => {
  const { buffer } = wabt.parseWat("product.wat", SOURCE, { simd: true }).toBinary({});
  wasm = (await WebAssembly.instantiate(buffer)).instance.exports;
});

const fours = (count) => 4 * Math.ceil(count / 4);

function place(at, x, rows, K, width) {
  const to = new Float32Array(wasm.memory.buffer, at, rows * width);
  if (K === width) return to.set(x);
  to.fill(0);
  for (let n = 0; n * K < x.length; n++) to.set(x.subarray(n * K, (n + 1) * K), n * width);
}

export function addProduct(c, a, b, N, M, K) {
  const [wideM, wideK] = [fours(M), fours(K)];
  const aAt = 4 * N * wideM;
  const bAt = aAt + 4 * N * wideK;
  place(aAt, a, N, K, wideK);
  new Float32Array(wasm.memory.buffer, bAt, wideM * wideK).fill(0);
  place(bAt, b, M, K, wideK);
  wasm.product(0, aAt, bAt, N, wideM, wideK);
  const found = new Float32Array(wasm.memory.buffer, 0, N * wideM);
  for (let n = 0; n < N; n++) for (let m = 0; m < M; m++) c[n * M + m] += found[n * wideM + m];
}
