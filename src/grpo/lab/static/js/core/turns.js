// Advantages of the turns of episodes (GiGPO): grpo.core.turns in JavaScript, tested against it.
import { groupAdvantages, STD_EPS } from "./advantage.js";

// One list per episode of a group, one value per turn. `states`: what each turn began in.
export function turnAdvantages(rewards, states, { weight = 1, gamma = 0.95, scale = "group_std", std = "sample", stdEps = STD_EPS } = {}) {
  if (!["group_std", "none"].includes(scale)) throw new Error(`unknown scale ${scale} of turns: group_std or none`);
  if (!rewards.length) return [];
  const totals = rewards.map((ofTurns) => ofTurns.reduce((total, reward) => total + reward, 0));
  const episodes = groupAdvantages(totals, { scale, std, stdEps });
  const returns = rewards.flatMap((ofTurns) => returnsOf(ofTurns, gamma));
  const places = new Map();
  states.flat().forEach((state, place) => places.set(state, [...(places.get(state) ?? []), place]));
  const turns = returns.map(() => 0);
  for (const alike of places.values()) {
    const compared = groupAdvantages(alike.map((place) => returns[place]), { scale, std, stdEps });
    alike.forEach((place, i) => (turns[place] = compared[i]));
  }
  let next = 0;
  return rewards.map((ofTurns, e) => ofTurns.map(() => episodes[e] + weight * turns[next++]));
}

// The discounted sum of the rewards from each turn on.
export function returnsOf(rewards, gamma) {
  const returns = rewards.map(() => 0);
  let after = 0;
  for (let turn = rewards.length - 1; turn >= 0; turn -= 1) returns[turn] = after = rewards[turn] + gamma * after;
  return returns;
}
