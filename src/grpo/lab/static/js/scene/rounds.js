// Rounds of GRPO on one prompt with nano: sample a group, score it, update. A round follows from the settings, the seed
// and the reader's changes of the rounds before it; nothing else is kept, so an address reproduces it.
// The first round of the first game is recorded (grpo.lab.first_round): nano's weights are loaded for what follows.
import { get } from "../api.js";
import { deviation, groupAdvantages, mean } from "../core/advantage.js";
import { policyLoss } from "../core/loss.js";
import { openNano } from "../nano/client.js";

export const GROUP = 8;
export const END = "<end>";
const LOSS = { beta: 0, aggregate: "sequence" };
// The game of a first visit.
export const FIRST = { prompt: "31+15+21=", seed: 3, lr: 3e-4 };
const SNAPSHOTS = 20; // of 1.2 MB each
const KEPT = 200; // groups, and effects
const started = new Map(); // settings and changes before a round -> snapshot of the weights, the last used at the end
const groups = new Map(); // the same with the answers written in the round -> its group
const effects = new Map(); // the same with the rewards -> log-probabilities after the update

// The oldest goes.
function remember(map, key, value) {
  map.set(key, value);
  if (map.size > KEPT) map.delete(map.keys().next().value);
}

// One computation at a time, since each moves the weights.
const queue = { last: Promise.resolve() };
function exclusive(work) {
  const done = queue.last.then(work);
  queue.last = done.catch(() => {});
  return done;
}

const loaded = () => openNano("rounds");
// Loads the weights for what the reader will probably do next. Who needs them hears of a failure.
export const prepare = () => void loaded().catch(() => {});

const seedOf = ({ seed }, round) => 100 * seed + round;
const keyOf = ({ prompt, seed, lr, changes }, round) => {
  const before = (rounds) => Object.entries(rounds).filter(([each]) => Number(each) < round);
  return JSON.stringify([prompt, seed, lr, round, before(changes.set), before(changes.say)]);
};
const groupKey = (game, round) => keyOf(game, round) + JSON.stringify(game.changes.say[round] ?? {});
const effectKey = (game, round, rewards) => groupKey(game, round) + JSON.stringify(rewards);

const FIRST_KEY = groupKey({ ...FIRST, changes: { set: {}, say: {} } }, 1);
async function recall() {
  const { group, after } = await get("/api/scene");
  remember(groups, FIRST_KEY, group);
  remember(effects, FIRST_KEY + JSON.stringify(group.map(({ correct }) => Number(correct))), after);
}

// nano where the round starts.
async function start(game, round) {
  const nano = await loaded();
  const key = keyOf(game, round);
  if (started.has(key)) await nano.restore(started.get(key));
  else if (round === 1) await nano.reset();
  else {
    const group = await sample(game, round - 1);
    await start(game, round - 1);
    await nano.update(batchOf(game, group, rewardsOf(game, round - 1, group)));
  }
  await keep(nano, key);
  return nano;
}

// Keeps a snapshot; the one whose use was longest ago goes.
async function keep(nano, key) {
  const number = started.get(key) ?? (await nano.snapshot());
  started.delete(key);
  started.set(key, number);
  if (started.size <= SNAPSHOTS) return;
  const [oldest, dropped] = started.entries().next().value;
  started.delete(oldest);
  await nano.forget(dropped);
}

const batchOf = ({ prompt, lr }, group, rewards) => ({
  groups: [{ prompt, completions: group.map(({ ids }, row) => ({ ids, reward: rewards[row] })) }],
  lr,
  ...LOSS,
});

async function sample(game, round) {
  const key = groupKey(game, round);
  if (key === FIRST_KEY && !groups.has(key)) await recall();
  if (!groups.has(key)) {
    const nano = await start(game, round);
    const { completions } = await nano.sample({ prompt: game.prompt, group: GROUP, seed: seedOf(game, round) });
    const written = game.changes.say[round] ?? {};
    remember(groups, key, await Promise.all(completions.map((sampled, row) => finished(nano, game.prompt, sampled, written[row]))));
  }
  return groups.get(key);
}

// A sampled completion, or the reader's text in its place, with the checker's verdict.
async function finished(nano, prompt, sampled, text) {
  const completion = text === undefined ? sampled : await typed(nano, prompt, text);
  const { correct } = await nano.score({ prompt, text: completion.text });
  return { ...completion, correct: Boolean(correct), own: text !== undefined };
}

async function typed(nano, prompt, text) {
  const ids = await nano.encode(text, { end: true });
  return { text, ids, tokens: [...text, END], logprobs: await nano.logprobs({ prompt, ids }), finished: true };
}

// The groups of rounds 1 to `last`: lists of { text, ids, tokens, logprobs, correct, own }.
export const sampled = (game, last) =>
  exclusive(async () => {
    const all = [];
    for (let round = 1; round <= last; round++) all.push(await sample(game, round));
    return all;
  });

// Throws one line where nano does not know a character.
export const known = (text) => exclusive(async () => (await loaded()).encode(text));

// The log-probability of each completion after an update with these rewards.
export const updated = (game, round, group, rewards) =>
  exclusive(async () => {
    const key = effectKey(game, round, rewards);
    if (!effects.has(key)) {
      const nano = await start(game, round);
      await nano.update(batchOf(game, group, rewards));
      remember(effects, key, await Promise.all(group.map(({ ids }) => nano.logprobs({ prompt: game.prompt, ids }))));
    }
    return effects.get(key);
  });

// The log-probabilities of a completion's tokens at the start of a round.
export const likelihood = (game, round, ids) =>
  exclusive(async () => {
    const nano = await start(game, round);
    return nano.logprobs({ prompt: game.prompt, ids });
  });

// The reader's rewards, and the checker's for the rest.
export const rewardsOf = ({ changes }, round, group) => group.map(({ correct }, row) => changes.set[round]?.[row] ?? Number(correct));

// { mean, std, advantages, pushes }: advantages by completion, pushes (−∂loss/∂logp) by token.
export function compared(group, rewards) {
  const advantages = groupAdvantages(rewards);
  const logp = group.map(({ logprobs }) => Array.from(logprobs));
  const { gradient } = policyLoss(logp, logp, advantages, null, { denominator: GROUP, ...LOSS });
  return { mean: mean(rewards), std: deviation(rewards), advantages, pushes: gradient.map((row) => row.map((slope) => 0 - slope)) };
}

// The probability of a whole completion.
export const probability = (logprobs) => Math.exp(logprobs.reduce((total, each) => total + each, 0));
