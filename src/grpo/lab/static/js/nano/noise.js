// Sampling noise keyed by (seed, purpose, step, problem id, sample, position), equal to grpo.rollout.noise: Philox4x32-10
// (Salmon et al., SC 2011) under a BLAKE2b key (RFC 7693).

// The high 32 bits of the product of two 32-bit words.
function high(a, b) {
  const [ah, al, bh, bl] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const middle = ah * bl + ((al * bl) >>> 16);
  const cross = al * bh + (middle % 0x10000);
  return (ah * bh + Math.floor(middle / 0x10000) + Math.floor(cross / 0x10000)) >>> 0;
}

export function philox(counter, key) {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < 10; round++) {
    [c0, c1, c2, c3] = [high(0xcd9e8d57, c2) ^ c1 ^ k0, Math.imul(0xcd9e8d57, c2), high(0xd2511f53, c0) ^ c3 ^ k1, Math.imul(0xd2511f53, c0)];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1, c2, c3].map((word) => word >>> 0);
}

// A function (sample, position) -> uniform number in [0, 1) for one problem.
export function noiseOf({ seed, purpose, step, id }) {
  const key = blake2b(`${seed}/${purpose}`, 8);
  const [problem] = blake2b(id, 4);
  return (sample, position) => (philox([step, problem, sample, position], key)[0] >>> 8) * 2 ** -24;
}

const START = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
// The order of the message's words in each round.
const ORDER = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d", "2c6a0b834d75fe19",
  "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0", "0123456789abcdef", "ea489fd61c02b753",
].map((round) => [...round].map((digit) => parseInt(digit, 16)));
const MIXED = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];
const BLOCK = 128;

// The digest of a text as 32-bit words.
function blake2b(text, bytes) {
  const message = new TextEncoder().encode(text);
  const state = START.slice();
  state[0] ^= 0x01010000n ^ BigInt(bytes);
  const blocks = Math.max(1, Math.ceil(message.length / BLOCK));
  for (let i = 0; i < blocks; i++) {
    const block = new Uint8Array(BLOCK);
    block.set(message.subarray(i * BLOCK, (i + 1) * BLOCK));
    compress(state, new BigUint64Array(block.buffer), BigInt(Math.min(message.length, (i + 1) * BLOCK)), i === blocks - 1);
  }
  return [...new Uint32Array(new BigUint64Array(state).buffer).slice(0, bytes / 4)];
}

function compress(state, words, length, isLast) {
  const v = [...state, ...START];
  const word = (value) => BigInt.asUintN(64, value);
  const turned = (value, bits) => word((value >> bits) | (value << (64n - bits)));
  v[12] ^= length;
  if (isLast) v[14] = word(~v[14]);
  for (const order of ORDER) {
    MIXED.forEach(([a, b, c, d], i) => {
      for (const [place, first, second] of [[2 * i, 32n, 24n], [2 * i + 1, 16n, 63n]]) {
        v[a] = word(v[a] + v[b] + words[order[place]]);
        v[d] = turned(v[d] ^ v[a], first);
        v[c] = word(v[c] + v[d]);
        v[b] = turned(v[b] ^ v[c], second);
      }
    });
  }
  for (let i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}
