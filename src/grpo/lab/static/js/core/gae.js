// Generalized advantage estimation: grpo.core.gae in JavaScript, tested against it.

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
