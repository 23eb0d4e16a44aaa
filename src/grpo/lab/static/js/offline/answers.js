// Answers without a server: computed in the page where a JavaScript function exists, else recorded.
import { ANSWERS } from "./chapters.js";
import { recorded, split } from "./recorded.js";

const NEEDS_LAB = 'These settings were not recorded. To compute them, start `grpo lab` on your machine (pip install "grpo-lab[lab]").';

export async function answer(url) {
  const { path, params } = split(url);
  const [, chapter, key] = path.match(/^\/api\/chapters\/([^/]+)\/([^/]+)$/) ?? [];
  const found = (await ANSWERS[chapter]?.[key]?.(params)) ?? (await recorded(url));
  if (found === undefined) throw new Error(NEEDS_LAB);
  if (found.error) throw new Error(found.error);
  return found;
}
