// Answers without a server: computed in the page where a JavaScript function exists, else recorded.
import { ANSWERS } from "./chapters.js";
import { recorded, split } from "./recorded.js";
import { runAnswer } from "./runs.js";

const NEEDS_LAB = 'These settings were not recorded. To compute them, start `grpo lab` on your machine (pip install "grpo-lab[lab]").';

export async function answer(url) {
  const { path, params } = split(url);
  const [, chapter, key] = path.match(/^\/api\/chapters\/([^/]+)\/([^/]+)$/) ?? [];
  const computed = chapter ? ANSWERS[chapter]?.[key]?.(params) : runAnswer(path, params);
  const found = (await computed) ?? (await recorded(url));
  if (found === undefined) throw new Error(noRun(path, params) ?? leftOut(path) ?? NEEDS_LAB);
  if (found.error) throw new Error(found.error);
  return found;
}

function noRun(path, params) {
  const [, run] = path.match(/^\/api\/runs\/([^/]+)/) ?? [];
  const asked = path === "/api/compare" ? (params.get("runs") ?? "").split(",") : [run];
  const missing = asked.find((id) => id && !(`/api/runs/${id}` in window.grpoIndex));
  return missing && `This site has no run ${missing}.`;
}

// An export of a long run has some of its steps.
function leftOut(path) {
  const [, step] = path.match(/\/steps\/(\d+)/) ?? [];
  const { steps } = window.grpoExport ?? {};
  return step && steps && !steps.includes(Number(step)) ? `Step ${step} is not in this file. It has the steps ${steps.join(", ")}.` : undefined;
}
