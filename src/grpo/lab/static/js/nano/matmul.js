// Matrix products on flat arrays, rows first.

// c[n, m] += Σ_k a[n, k] · b[m, k]. Blocks of 4 × 2 keep eight sums in registers.
function addProduct(c, a, b, N, M, K) {
  let n = 0;
  for (; n + 4 <= N; n += 4) {
    const a0 = n * K;
    const a1 = a0 + K;
    const a2 = a1 + K;
    const a3 = a2 + K;
    let m = 0;
    for (; m + 2 <= M; m += 2) {
      const b0 = m * K;
      const b1 = b0 + K;
      let s00 = 0, s01 = 0, s10 = 0, s11 = 0, s20 = 0, s21 = 0, s30 = 0, s31 = 0;
      for (let k = 0; k < K; k++) {
        const x0 = a[a0 + k], x1 = a[a1 + k], x2 = a[a2 + k], x3 = a[a3 + k];
        const y0 = b[b0 + k], y1 = b[b1 + k];
        s00 += x0 * y0;
        s01 += x0 * y1;
        s10 += x1 * y0;
        s11 += x1 * y1;
        s20 += x2 * y0;
        s21 += x2 * y1;
        s30 += x3 * y0;
        s31 += x3 * y1;
      }
      const at = n * M + m;
      c[at] += s00;
      c[at + 1] += s01;
      c[at + M] += s10;
      c[at + M + 1] += s11;
      c[at + 2 * M] += s20;
      c[at + 2 * M + 1] += s21;
      c[at + 3 * M] += s30;
      c[at + 3 * M + 1] += s31;
    }
    if (m < M) for (let row = n; row < n + 4; row++) c[row * M + m] += dot(a, row * K, b, m * K, K);
  }
  for (; n < N; n++) for (let m = 0; m < M; m++) c[n * M + m] += dot(a, n * K, b, m * K, K);
}

function dot(a, i, b, j, K) {
  let sum = 0;
  for (let k = 0; k < K; k++) sum += a[i + k] * b[j + k];
  return sum;
}

function transposed(x, N, M) {
  const y = new Float32Array(x.length);
  for (let n = 0; n < N; n++) for (let m = 0; m < M; m++) y[m * N + n] = x[n * M + m];
  return y;
}

// A layer without bias: y = x · wᵀ, with the weight w of [outputs, inputs].
export function linear(x_NI, w_OI, N) {
  const inputs = x_NI.length / N;
  const outputs = w_OI.length / inputs;
  const y_NO = new Float32Array(N * outputs);
  addProduct(y_NO, x_NI, w_OI, N, outputs, inputs);
  return y_NO;
}

// Adds the layer's gradients by its weight and, where given, by its input.
export function linearBackward(dy_NO, x_NI, w_OI, N, dw_OI, dx_NI) {
  const inputs = x_NI.length / N;
  const outputs = dy_NO.length / N;
  addProduct(dw_OI, transposed(dy_NO, N, outputs), transposed(x_NI, N, inputs), outputs, inputs, N);
  addProduct(dx_NI, dy_NO, transposed(w_OI, outputs, inputs), N, inputs, outputs);
}
