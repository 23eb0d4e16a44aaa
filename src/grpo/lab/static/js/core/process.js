// Advantages from rewards of single steps of a completion: grpo.core.process in JavaScript, tested against it.
import { groupAdvantages, STD_EPS } from "./advantage.js";

// One list per completion of a group, one value per token. `stepEnds`: position of the last token of each step.
export function processAdvantages(stepRewards, stepEnds, lengths, { scale = "group_std", std = "sample", stdEps = STD_EPS } = {}) {
  if (!["group_std", "none"].includes(scale)) throw new Error(`unknown scale ${scale} of step rewards: group_std or none`);
  const flat = stepRewards.flat();
  const normalised = flat.length ? groupAdvantages(flat, { scale, std, stdEps }) : [];
  let next = 0;
  return Array.from(lengths, (length, n) => {
    const tokens = new Array(length).fill(0);
    for (const end of stepEnds[n]) {
      for (let t = 0; t <= end && t < length; t += 1) tokens[t] += normalised[next];
      next += 1;
    }
    return tokens;
  });
}
