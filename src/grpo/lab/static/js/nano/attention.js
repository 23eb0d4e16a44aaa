// Causal attention over packed rows, forward and backward. A row attends to its group's prompt and to its own sequence
// up to itself: the slots [promptFrom, promptTo) and [ownFrom, slot] of the keys and values.
// Axis letters: N rows, S slots, H heads, D width of a head, J keys of the row with the most.

function keyCount(rows, n) {
  return rows.promptTo[n] - rows.promptFrom[n] + rows.slot[n] - rows.ownFrom[n] + 1;
}

// The slot of a row's j-th key.
function slotOf(rows, n, j) {
  const inPrompt = rows.promptTo[n] - rows.promptFrom[n];
  return j < inPrompt ? rows.promptFrom[n] + j : rows.ownFrom[n] + j - inPrompt;
}

export function attend(shape, rows, query, keys, values) {
  const { heads, width } = shape;
  const C = heads * width;
  const scale = 1 / Math.sqrt(width);
  let most = 0;
  for (let n = 0; n < rows.count; n++) most = Math.max(most, keyCount(rows, n));
  const share = new Float32Array(rows.count * heads * most);
  const mixed = new Float32Array(rows.count * C);
  for (let n = 0; n < rows.count; n++) {
    const count = keyCount(rows, n);
    for (let h = 0; h < heads; h++) {
      const at = n * C + h * width;
      const first = (n * heads + h) * most;
      let greatest = -Infinity;
      for (let j = 0; j < count; j++) {
        const k = slotOf(rows, n, j) * C + h * width;
        let score = 0;
        for (let d = 0; d < width; d++) score += query[at + d] * keys[k + d];
        share[first + j] = score * scale;
        greatest = Math.max(greatest, score * scale);
      }
      let total = 0;
      for (let j = first; j < first + count; j++) total += share[j] = Math.exp(share[j] - greatest);
      for (let j = 0; j < count; j++) {
        const p = (share[first + j] /= total);
        const v = slotOf(rows, n, j) * C + h * width;
        for (let d = 0; d < width; d++) mixed[at + d] += p * values[v + d];
      }
    }
  }
  return { mixed, share, most };
}

// (gradients by query, keys and values) from the gradient by `mixed`. Slots are rows here.
export function attendBackward(shape, rows, query, keys, values, { share, most }, dmixed) {
  const { heads, width } = shape;
  const C = heads * width;
  const scale = 1 / Math.sqrt(width);
  const [dquery, dkeys, dvalues] = [query, keys, values].map((each) => new Float32Array(each.length));
  const dshare = new Float64Array(most);
  for (let n = 0; n < rows.count; n++) {
    const count = keyCount(rows, n);
    for (let h = 0; h < heads; h++) {
      const at = n * C + h * width;
      const first = (n * heads + h) * most;
      let mean = 0;
      for (let j = 0; j < count; j++) {
        const v = slotOf(rows, n, j) * C + h * width;
        const p = share[first + j];
        let sum = 0;
        for (let d = 0; d < width; d++) {
          sum += dmixed[at + d] * values[v + d];
          dvalues[v + d] += p * dmixed[at + d];
        }
        dshare[j] = sum;
        mean += p * sum;
      }
      for (let j = 0; j < count; j++) {
        const k = slotOf(rows, n, j) * C + h * width;
        const dscore = share[first + j] * (dshare[j] - mean) * scale;
        for (let d = 0; d < width; d++) {
          dquery[at + d] += dscore * keys[k + d];
          dkeys[k + d] += dscore * query[at + d];
        }
      }
    }
  }
  return { dquery, dkeys, dvalues };
}

// Rotates every head's halves by the position's angles, in place. `direction` −1 is the inverse, its gradient.
export function rotate(x_NC, { heads, width, theta }, position, direction = 1) {
  const half = width / 2;
  for (let d = 0; d < half; d++) {
    const speed = theta ** (-d / half);
    for (let n = 0; n < position.length; n++) {
      const cos = Math.cos(position[n] * speed);
      const sin = direction * Math.sin(position[n] * speed);
      for (let h = 0; h < heads; h++) {
        const i = (n * heads + h) * width + d;
        const [a, b] = [x_NC[i], x_NC[i + half]];
        x_NC[i] = a * cos - b * sin;
        x_NC[i + half] = b * cos + a * sin;
      }
    }
  }
}
