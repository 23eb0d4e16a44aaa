// Answers of the chapter on the loss.
import { denominator, policyLoss } from "../core/loss.js";
import { DISTANCE } from "./distance.js";
import { number, whole } from "./query.js";
import { RATIO } from "./ratio.js";
import { recorded } from "./recorded.js";

const LONGEST = 40;

// Token pushes of two completions of different lengths, for every kind of average.
function aggregation(params) {
  const lengths = [whole(params, "short", 4, 1, LONGEST), whole(params, "long", 16, 1, LONGEST)];
  const advantages = [number(params, "a_short", 1, -2, 2), number(params, "a_long", -1, -2, 2)];
  const logp = lengths.map((length) => new Array(length).fill(0));
  const rows = ["sequence", "token", "constant"].map((aggregate) => {
    const divisor = denominator(lengths, aggregate, LONGEST);
    const { loss, gradient } = policyLoss(logp, logp, advantages, null, { denominator: divisor, aggregate });
    const pushes = gradient.map((row) => row.map((slope) => 0 - slope));
    return {
      aggregate,
      denominator: divisor,
      per_token: pushes.map((row) => row[0]),
      per_completion: pushes.map((row) => row.reduce((sum, push) => sum + push, 0)),
      loss,
    };
  });
  return { lengths, advantages, longest: LONGEST, rows };
}

// A preset's TRL config; group size and updates enter it as numbers.
async function trl(params) {
  const [size, updates] = [whole(params, "g", 8, 2, 64), whole(params, "updates", 1, 1, 8)];
  const base = await recorded(`/api/chapters/loss/trl?algorithm=${encodeURIComponent(params.get("algorithm") ?? "grpo")}`);
  if (!base || params.has("beta")) return undefined;
  return {
    ...base,
    command: base.command.replace("--group-size 8", `--group-size ${size}`) + (updates > 1 ? ` --optimizer.epochs ${updates}` : ""),
    fields: { ...base.fields, num_generations: size, num_iterations: updates },
    text: base.text.replace("num_generations=8", `num_generations=${size}`).replace("num_iterations=1", `num_iterations=${updates}`),
  };
}

export const LOSS = { aggregation, trl, ...RATIO, ...DISTANCE };
