// The reader's part in a game, as the address names it: the role, the round and the step.
import { gameOf } from "../scene/game.js";
import { GROUP } from "../scene/rounds.js";

export const ROUNDS = 3;
export const READER = GROUP - 1; // the reader's row
const STEPS = ["write", "compare", "update", "card"];
// Here a right answer without work becomes likelier in every round; with many sums it falls with the wrong ones, which
// look like it. Its groups have right and wrong answers of several kinds.
const FIRST = { prompt: "34+56+21=", seed: 24 };
const NEUTRAL = 0.5;

// { game, role, round, step }. Who writes comes to a later step only with an answer in every round up to it.
export function playOf(query) {
  const game = gameOf(query, FIRST);
  const round = Math.min(ROUNDS, Math.max(1, Math.trunc(Number(query.get("round")) || 1)));
  const step = STEPS.find((each) => each === query.get("step"));
  if (query.get("as") === "grader") return { game: graded(game), role: "grader", round, step: !step || step === "write" ? "compare" : step };
  const missing = Array.from({ length: round }, (_, place) => place + 1).find((each) => !game.changes.say[each]?.[READER]);
  // The checker rewards it.
  return {
    game: { ...game, changes: { set: {}, say: game.changes.say } },
    role: "answer",
    round: missing ?? round,
    step: missing ? "write" : (step ?? "compare"),
  };
}

// A grader's reward is neutral until it is set.
function graded(game) {
  const neutral = Object.fromEntries(Array.from({ length: GROUP }, (_, row) => [row, NEUTRAL]));
  const rounds = Array.from({ length: ROUNDS }, (_, place) => place + 1);
  return { ...game, changes: { set: Object.fromEntries(rounds.map((round) => [round, { ...neutral, ...game.changes.set[round] }])), say: {} } };
}
