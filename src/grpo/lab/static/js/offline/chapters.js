// Chapters' answers computed in the page: ANSWERS[slug][key] = (params: URLSearchParams) => answer, as the server's.
// undefined: the answer is a recorded one.
import { ADVANTAGE } from "./advantage.js";
import { COSTS } from "./costs.js";
import { CREDIT } from "./credit.js";
import { GROUP } from "./group.js";
import { LOSS } from "./loss.js";
import { gap, nanoUpdate, samples, update } from "./nano.js";
import { NOTATION } from "./notation.js";
import { fifty, own, token } from "./own-group.js";
import { TRAIN } from "./train.js";
import { TURNS } from "./turns.js";
import { WHY } from "./why.js";

// As JSON has it: null instead of NaN and infinity.
const asJson = (compute) => async (params) => {
  const found = await compute(params);
  return found === undefined ? undefined : JSON.parse(JSON.stringify(found));
};
const chapter = (answers) => Object.fromEntries(Object.entries(answers).map(([key, compute]) => [key, asJson(compute)]));

export const ANSWERS = {
  why: chapter({ ...WHY, gap, update }),
  group: chapter({ ...GROUP, samples }),
  advantage: chapter({ ...ADVANTAGE, nano: nanoUpdate }),
  loss: chapter({ ...LOSS, own, token, fifty }),
  credit: chapter(CREDIT),
  costs: chapter(COSTS),
  train: chapter(TRAIN),
  turns: chapter(TURNS),
  notation: chapter(NOTATION),
};
