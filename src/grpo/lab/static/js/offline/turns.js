// Games of the chapter on turns: recorded for a few seeds, which repeat.
import { whole } from "./query.js";
import { recorded } from "./recorded.js";

const SEEDS = 2;

function game(params) {
  const [hidden, sample] = [whole(params, "hidden", 11, 0, 14), whole(params, "sample", 0, 0, 7)];
  const seed = (whole(params, "seed", 1, 0, 9999) + SEEDS - 1) % SEEDS + 1;
  return recorded(`/api/chapters/turns/game?hidden=${hidden}&seed=${seed}&sample=${sample}`);
}

export const TURNS = { game };
