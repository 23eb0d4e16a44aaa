// Training on a group of the reader's answers: every token's terms at the last update, and a loss written by hand.
import { groupAdvantages, mean, sum } from "../core/advantage.js";
import { metrics } from "../core/statistics.js";
import { tokenLoss, tokenTerms } from "../core/tokens.js";
import { sumOfThree, withNano } from "./nano.js";
import { number, text, whole, word } from "./query.js";

const TEXTS = "102\n(12;10)102\n92\n101";
const [MOST_TEXTS, LONGEST_TEXT] = [8, 48];

function inputsOf(params) {
  const texts = text(params, "texts", TEXTS).split("\n").map((line) => line.trim()).filter(Boolean);
  if (texts.length < 2 || texts.length > MOST_TEXTS || texts.some((line) => line.length > LONGEST_TEXT))
    throw new Error(`texts: expected 2 to ${MOST_TEXTS} lines of at most ${LONGEST_TEXT} characters; got ${texts.length} lines`);
  const clipLow = number(params, "low", 0.2, 0, 0.99);
  const loss = {
    clipLow,
    clipHigh: number(params, "high", clipLow, 0, 2),
    beta: number(params, "beta", 0.04, 0, 2),
    kl: word(params, "kl", "k3", ["k1", "k2", "k3", "k3_ratio"]),
    aggregate: word(params, "aggregate", "sequence", ["sequence", "token"]),
  };
  const { prompt } = sumOfThree(text(params, "prompt", "12+34+56=", LONGEST_TEXT).trim());
  return { prompt, texts, updates: whole(params, "updates", 4, 1, 8), lr: number(params, "lr", 3e-4, 0, 3e-3), loss };
}

const kept = { key: null, trained: null };

// The last result is kept: a page asks for the group, one of its tokens and its loss.
function trained(inputs) {
  const key = JSON.stringify(inputs);
  if (kept.key !== key) Object.assign(kept, { key, trained: withNano((nano) => train(nano, inputs)) });
  return kept.trained;
}

async function train(nano, { prompt, texts, updates, lr, loss }) {
  const completions = await Promise.all(
    texts.map(async (line) => ({ ids: await nano.encode(line, { end: true }), ...(await nano.score({ prompt, text: line })) })),
  );
  const sampler = await Promise.all(completions.map(({ ids }) => nano.logprobs({ prompt, ids })));
  const rewards = completions.map(({ reward }) => reward);
  const advantages = groupAdvantages(rewards);
  const signal = advantages.some(Boolean);
  const several = updates > 1 ? { oldLogp: sampler } : {};
  const made = [];
  for (let step = 0; step < updates && signal; step += 1) made.push(await nano.update({ groups: [{ prompt, completions }], lr, ...loss, ...several }));
  const last = made[made.length - 1];
  const divisor = loss.aggregate === "sequence" ? texts.length : sum(sampler.map((row) => row.length));
  const rows = texts.map((line, i) => {
    const logp = last ? last.logprobs[i] : sampler[i];
    const settings = { ...loss, denominator: last ? divisor : 1, refLogp: loss.beta ? sampler[i] : null };
    const inputs = [logp, several.oldLogp ? sampler[i] : logp, logp.map(() => advantages[i]), settings];
    return {
      line,
      reward: rewards[i],
      advantage: advantages[i],
      sampler: sampler[i],
      pieces: [...line, "<end>"],
      updated: Boolean(last),
      entropy: last?.entropy[i] ?? null,
      inputs,
      terms: tokenTerms(...inputs),
    };
  });
  return { rows, rewards, updates: made.map(({ statistics, gradNorm }) => ({ ...metrics(statistics), grad_norm: gradNorm })), loss: last?.loss ?? 0 };
}

export async function own(params) {
  const inputs = inputsOf(params);
  const { rows, updates, loss } = await trained(inputs);
  const shares = rows.map((row) => row.pieces.map((_, t) => (row.updated ? tokenLoss(t, ...row.inputs) : 0)));
  return {
    prompt: inputs.prompt,
    rows: rows.map(({ line, reward, advantage, pieces, updated, sampler, terms }, i) => ({
      sample: i,
      text: line,
      reward,
      advantage,
      pieces,
      updated,
      values: {
        probability: sampler.map(Math.exp),
        ratio: terms.ratio,
        clip: terms.clip,
        kl: terms.kl,
        push: updated ? terms.push : terms.push.map(() => 0),
        share: shares[i],
      },
    })),
    updates,
    trainer_loss: loss,
    sum_of_shares: sum(shares.flat()),
    signal: updates.length > 0,
  };
}

// The loss of one token, step by step.
export async function token(params) {
  const inputs = inputsOf(params);
  const { rows } = await trained(inputs);
  const { pieces, sampler, terms, updated, entropy, inputs: of } = rows[whole(params, "sample", 0, 0, rows.length - 1)];
  const at = whole(params, "token", 0, 0, pieces.length - 1);
  if (!updated) throw new Error("no update was taken on this completion: it was unscored or masked, or its advantage is 0");
  const [logp, old, advantages, settings] = of;
  const limits = [1 - settings.clipLow, 1 + settings.clipHigh];
  const weight = settings.aggregate === "sequence" ? 1 / pieces.length : 1;
  return {
    position: at,
    length: pieces.length,
    piece: pieces[at],
    logp: logp[at],
    old: old[at],
    sampler: sampler[at],
    reference: settings.refLogp?.[at] ?? null,
    ratio: terms.ratio[at],
    ratio_kind: "token",
    advantage: advantages[at],
    surrogate_kind: "clip",
    limits,
    clipped_ratio: Math.min(Math.max(terms.ratio[at], limits[0]), limits[1]),
    cap: 0,
    gate: null,
    clip: terms.clip[at],
    kl: terms.kl?.[at] ?? null,
    kl_kind: settings.kl,
    kl_in: "loss",
    beta: settings.beta,
    aggregate: settings.aggregate,
    weight,
    surrogate: (tokenLoss(at, logp, old, advantages, { ...settings, beta: 0 }) * settings.denominator) / weight,
    denominator: settings.denominator,
    share: tokenLoss(at, ...of),
    push: terms.push[at],
    entropy: entropy[at],
    left_out: [],
  };
}

// The group's loss written out at once, beside the trainer's.
export async function fifty(params) {
  const inputs = inputsOf(params);
  const { rows, rewards, updates, loss } = await trained(inputs);
  if (!updates.length) return { fifty: 0, trainer: 0, difference: 0, signal: false };
  const centre = mean(rewards);
  const spread = Math.sqrt(sum(rewards.map((reward) => (reward - centre) ** 2)) / (rewards.length - 1)) + 1e-4;
  const byHand = mean(
    rows.map(({ inputs: [logp, old, , { refLogp }] }, i) => {
      const advantage = (rewards[i] - centre) / spread;
      return mean(
        logp.map((now, t) => {
          const ratio = Math.exp(now - old[t]);
          const limited = Math.min(Math.max(ratio, 1 - inputs.loss.clipLow), 1 + inputs.loss.clipLow);
          const difference = (refLogp?.[t] ?? now) - now;
          return -Math.min(ratio * advantage, limited * advantage) + inputs.loss.beta * (Math.exp(difference) - difference - 1);
        }),
      );
    }),
  );
  return { fifty: byHand, trainer: loss, difference: Math.abs(byHand - loss), signal: true };
}
