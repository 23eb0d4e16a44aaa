// Answers of the page on notation.
import { sum } from "../core/advantage.js";
import { logSoftmax, softmax as chances } from "../core/tabular.js";
import { number, numbers } from "./query.js";

function softmax(params) {
  const logits = numbers(params, "logits", [2, 1, 0], -5, 5, { least: 3, most: 3 });
  const temperature = number(params, "t", 1, 0.1, 5);
  const logp = logSoftmax(logits.map((logit) => logit / temperature));
  const probabilities = logp.map(Math.exp);
  return { logits, probabilities, logp, entropy: -sum(logp.map((value, i) => probabilities[i] * value)) };
}

function sequence(params) {
  const p = numbers(params, "p", [0.9, 0.5, 0.8, 0.95], 0.01, 1, { least: 1, most: 8 });
  const logs = p.map(Math.log);
  return { p, logs, sum: sum(logs), product: Math.exp(sum(logs)) };
}

// The gradient of log p of the first of three answers: onehot − p.
function slope() {
  const probabilities = chances([2, 1, 0]);
  return { probabilities, gradient: probabilities.map((chance, i) => (i === 0 ? 1 : 0) - chance) };
}

export const NOTATION = { softmax, sequence, slope };
