// The state of one round for a component: its group, advantages, pushes, and the group after the update.
import { useEffect, useMemo, useState } from "preact/hooks";
import { compared, rewardsOf, sampled, updated } from "./rounds.js";

const REST = 60; // ms without a change before an update

// The latest value of a computation; the last one stays while the next is computed.
function useLatest(key, compute, rest = 0) {
  const [state, setState] = useState({ key: null, value: null, error: null });
  useEffect(() => {
    if (key === null) return;
    let wanted = true;
    const timer = setTimeout(() => {
      compute().then(
        (value) => wanted && setState({ key, value, error: null }),
        (error) => wanted && setState({ key, value: null, error }),
      );
    }, rest);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [key]);
  return { ...state, current: key !== null && state.key === key };
}

// { group, rewards, mean, std, advantages, pushes, after, groups, error }; null until it is computed.
// `after`: log-probabilities after the update; `groups`: those of all rounds so far.
export function useRound(game, round) {
  const { prompt, seed, lr, changes } = game;
  const upTo = (rounds, last) => Object.entries(rounds).filter(([each]) => Number(each) <= last);
  const key = JSON.stringify([prompt, seed, lr, round, upTo(changes.set, round - 1), upTo(changes.say, round)]);
  const found = useLatest(key, () => sampled(game, round));
  const group = found.current && found.value ? found.value.at(-1) : null;
  const rewards = group && rewardsOf(game, round, group);
  const comparison = useMemo(() => group && compared(group, rewards), [group, JSON.stringify(rewards)]);
  const effect = useLatest(group && `${key} ${rewards}`, () => updated(game, round, group, rewards), REST);
  // While a reward is dragged, the last update of the same group stays.
  const ofGroup = group && effect.value?.length === group.length && effect.key?.startsWith(`${key} `);
  const [after, error] = [ofGroup ? effect.value : null, found.error ?? effect.error];
  return { group, rewards, groups: found.value ?? [], ...comparison, after, settled: effect.current, error };
}
