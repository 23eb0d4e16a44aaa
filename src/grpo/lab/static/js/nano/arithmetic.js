// The task arithmetic:easy, as grpo.tasks.arithmetic: sums of three two-digit numbers; only the final answer is rewarded.
import { philox } from "./noise.js";

// Characters that Python's str.strip removes.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]*";
const INSIDE = new RegExp(`^${SPACE}(.*?)${SPACE}$`, "su");

// The text after the last closing parenthesis.
export const finalAnswer = (text) => text.slice(text.lastIndexOf(")") + 1).match(INSIDE)[1];

function answerOf(prompt) {
  if (!/^\d+(\+\d+)+=$|^\d+\*\d+=$/.test(prompt)) throw new Error(`prompt: expected a sum such as 37+85+46=; got ${JSON.stringify(prompt)}`);
  const product = prompt.includes("*");
  const numbers = prompt.slice(0, -1).split(product ? "*" : "+").map(BigInt);
  return String(numbers.reduce((one, other) => (product ? one * other : one + other)));
}

export function score(prompt, text) {
  const [answer, extracted] = [answerOf(prompt), finalAnswer(text)];
  const correct = extracted === answer;
  return { correct, reward: Number(correct), extracted, answer, worked: text.includes("(") };
}

// Prompts of a step, from numbers keyed by (seed, step). Held-out sums are left out, as in training.
export function drawPrompts(count, seed, step) {
  const prompts = [];
  for (let place = 0; prompts.length < count; place++) {
    const numbers = philox([place, step, seed, 0], [0, 0]).slice(0, 3).map((word) => 10 + Math.floor((word / 2 ** 32) * 90));
    const prompt = `${numbers.join("+")}=`;
    if (!isHeldOut(prompt)) prompts.push(prompt);
  }
  return prompts;
}

// One question in ten, by its CRC-32 (grpo.tasks.split).
function isHeldOut(question) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(question)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return ((crc ^ 0xffffffff) >>> 0) % 10 === 0;
}
