// torch's CPU generator: the same seed draws the same numbers as `torch.Generator().manual_seed(seed)`, in float64.
const [SIZE, SHIFT] = [624, 397];
const NORMALS_AT_ONCE = 16;

export class Generator {
  constructor(seed) {
    this.state = new Uint32Array(SIZE);
    this.state[0] = seed;
    for (let i = 1; i < SIZE; i += 1) {
      const last = this.state[i - 1] ^ (this.state[i - 1] >>> 30);
      this.state[i] = Math.imul(1812433253, last) + i;
    }
    this.next = SIZE;
  }

  // 32 bits of the Mersenne Twister.
  bits() {
    if (this.next === SIZE) this.twist();
    let y = this.state[this.next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  twist() {
    const { state } = this;
    for (let i = 0; i < SIZE; i += 1) {
      const y = (state[i] & 0x80000000) | (state[(i + 1) % SIZE] & 0x7fffffff);
      state[i] = state[(i + SHIFT) % SIZE] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.next = 0;
  }

  // Uniform in [0, 1), of 53 bits: torch.rand.
  uniform() {
    const high = this.bits() & 0x1fffff;
    return (high * 2 ** 32 + this.bits()) * 2 ** -53;
  }

  uniforms(count) {
    return Array.from({ length: count }, () => this.uniform());
  }

  // torch.randn of at least 16 numbers: Box–Muller in blocks of 16; the last block is drawn anew if it is not full.
  normals(count) {
    const values = this.uniforms(count);
    for (let i = 0; i + NORMALS_AT_ONCE <= count; i += NORMALS_AT_ONCE) boxMuller(values, i);
    if (count % NORMALS_AT_ONCE) {
      const start = count - NORMALS_AT_ONCE;
      this.uniforms(NORMALS_AT_ONCE).forEach((value, i) => (values[start + i] = value));
      boxMuller(values, start);
    }
    return values;
  }

  // torch.multinomial with replacement: indices with these probabilities.
  choices(probabilities, count) {
    let total = 0;
    const sums = probabilities.map((chance) => (total += chance));
    const cumulative = sums.map((value, i) => (i === sums.length - 1 ? 1 : value / total));
    return Array.from({ length: count }, () => {
      const at = this.uniform();
      return cumulative.findIndex((value) => value >= at);
    });
  }
}

function boxMuller(values, start) {
  for (let i = start; i < start + NORMALS_AT_ONCE / 2; i += 1) {
    const other = i + NORMALS_AT_ONCE / 2;
    const [radius, angle] = [Math.sqrt(-2 * Math.log1p(-values[i])), 2 * Math.PI * values[other]];
    [values[i], values[other]] = [radius * Math.cos(angle), radius * Math.sin(angle)];
  }
}
