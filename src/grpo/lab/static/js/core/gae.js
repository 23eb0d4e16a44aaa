// Generalized advantage estimation and the critic's clipped loss: grpo.core.gae in JavaScript, tested against it.
import { deviation, mean, STD_EPS } from "./advantage.js";

// { advantages, returns } of every token: A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t; return = A + V.
export function gae(rewards, values, gamma, lam, mask = null) {
  const inside = (n, t) => !mask || Boolean(mask[n][t]);
  const held = Array.from(values, (row, n) => Array.from(row, (value, t) => (inside(n, t) ? value : 0)));
  const advantages = held.map((row, n) => {
    const found = row.map(() => 0);
    let [ahead, valueAhead] = [0, 0];
    for (let t = row.length - 1; t >= 0; t -= 1) {
      const reward = inside(n, t) ? rewards[n][t] : 0;
      ahead = inside(n, t) ? reward + gamma * valueAhead - row[t] + gamma * lam * ahead : 0;
      valueAhead = row[t];
      found[t] = ahead;
    }
    return found;
  });
  return { advantages, returns: advantages.map((row, n) => row.map((value, t) => value + held[n][t])) };
}

// Advantages with mean 0 and standard deviation 1 over the tokens of the mask; 0 outside it.
export function whiten(advantages, mask, { std = "sample", stdEps = STD_EPS } = {}) {
  const all = Array.from(advantages).flatMap((row, n) => Array.from(row).filter((_, t) => mask[n][t]));
  if (all.length < 2) return Array.from(advantages, (row) => Array.from(row));
  const [centre, size] = [mean(all), deviation(all, std) + stdEps];
  return Array.from(advantages, (row, n) => Array.from(row, (value, t) => (mask[n][t] ? (value - centre) / size : 0)));
}

// Σ ½ max((V − R)², (V_clip − R)²); V_clip is V, limited to within `clip` of the value before the update.
export function valueLoss(values, oldValues, returns, mask, { clip }) {
  let total = 0;
  Array.from(values).forEach((row, n) =>
    Array.from(row).forEach((value, t) => {
      if (!mask[n][t]) return;
      const [old, target] = [oldValues[n][t], returns[n][t]];
      const clipped = old + Math.min(Math.max(value - old, -clip), clip);
      total += clip ? Math.max((value - target) ** 2, (clipped - target) ** 2) : (value - target) ** 2;
    }),
  );
  return total / 2;
}
