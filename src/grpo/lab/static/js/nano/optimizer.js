// AdamW with the trainer's defaults (grpo.model.optimizer), which have no weight decay, and its learning rate.
const BETA1 = 0.9;
const BETA2 = 0.99;
const EPS = 1e-8;
const GRAD_CLIP = 1;
const WARMUP_STEPS = 10;

export class AdamW {
  constructor(size) {
    this.step = 0;
    this.mean = new Float32Array(size);
    this.square = new Float32Array(size);
  }

  copy() {
    return Object.assign(new AdamW(0), { step: this.step, mean: this.mean.slice(), square: this.square.slice() });
  }

  // One update of the weights, both flat; returns the gradient's norm before clipping. Nothing changes if it is not finite.
  descend(weights, gradient, lr) {
    const norm = Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0));
    if (!Number.isFinite(norm)) return norm;
    this.step += 1;
    const scale = Math.min(1, GRAD_CLIP / (norm + 1e-6));
    const [unbias1, unbias2] = [1 - BETA1 ** this.step, Math.sqrt(1 - BETA2 ** this.step)];
    for (let i = 0; i < weights.length; i++) {
      const slope = gradient[i] * scale;
      this.mean[i] += (1 - BETA1) * (slope - this.mean[i]);
      this.square[i] = BETA2 * this.square[i] + (1 - BETA2) * slope * slope;
      weights[i] -= ((lr / unbias1) * this.mean[i]) / (Math.sqrt(this.square[i]) / unbias2 + EPS);
    }
    return norm;
  }
}

// Rises linearly to `peak` over the first steps, then is constant.
export const learningRate = (peak, step) => peak * Math.min(1, (step + 1) / WARMUP_STEPS);
