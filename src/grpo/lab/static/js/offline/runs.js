// Answers about a recorded run that the page makes of others: fewer series, metrics of a comparison, a search, one
// token's loss.
import { tokenLoss } from "../core/tokens.js";
import { address } from "../route.js";
import { recorded } from "./recorded.js";
import { search } from "./search.js";

const RUN = /^(\/api\/runs\/[^/]+)\/(series|signal|difficulty|timeline|completions)$/;
const TOKENS = /^(.*\/groups\/\d+\/tokens)\/(\d+)(?:\/(\d+))?$/;

// undefined: the answer is a recorded one.
export async function runAnswer(path, params) {
  if (path === "/api/compare") return compared(await recorded(address(path, { runs: params.get("runs"), by: params.get("by") ?? "steps" })), params);
  const [, base, view] = path.match(RUN) ?? [];
  if (view) return whole(await recorded(`${encodeURI(base)}/${view}`), view, params);
  const [, lens, sample, token] = path.match(TOKENS) ?? [];
  if (!lens) return undefined;
  const found = await recorded(encodeURI(lens));
  return found && (token === undefined ? shown(found, Number(sample)) : worked(found, Number(sample), Number(token)));
}

function whole(found, view, params) {
  if (!found || view === "completions") return found && search(found, params);
  const names = params.get("names")?.split(",");
  return names ? { ...found, series: pick(found.series, names) } : found;
}

const pick = (from, names) => Object.fromEntries(names.filter((name) => name in from).map((name) => [name, from[name]]));

function compared(found, params) {
  const metrics = (params.get("metrics") ?? "reward_mean").split(",");
  const of = (part) => Object.fromEntries(metrics.map((name) => [name, part[name] ?? {}])); // {}: not recorded
  return found && { ...found, metrics, curves: of(found.curves), bands: of(found.bands) };
}

const shown = (lens, sample) => ({ ...lens, rows: lens.alone ? lens.rows.filter((row) => row.sample === sample) : lens.rows });

// As grpo.lab.tokens:work_out.
function worked(lens, sample, position) {
  const { settings, kl_in, left_out } = lens;
  const row = lens.rows.find((each) => each.sample === sample);
  const length = row?.pieces.length ?? 0;
  if (position >= length) throw new Error(`token ${position} does not exist; the completion has ${length} tokens`);
  if (!row.updated) throw new Error("no update was taken on this completion: it was unscored or masked, or its advantage is 0");
  const { updated, old, sampler, reference } = row.logprobs;
  const { advantage: advantages, ratio: ratios, clip, kl, push, entropy } = row.values;
  const surrogate = settings.surrogate ?? "clip";
  const limits = surrogate === "clip" ? [1 - settings.clip_low, 1 + settings.clip_high] : null;
  const weight = settings.aggregate === "sequence" ? 1 / length : 1;
  const denominator = row.denominator || 1;
  const inputs = { ...camel(settings), surrogate, denominator, refLogp: reference };
  const loss = (changes) => tokenLoss(position, updated, old, advantages, { ...inputs, ...changes });
  const [advantage, ratio] = [advantages[position], ratios[position]];
  return {
    position, length, piece: row.pieces[position], logp: updated[position], old: old[position], sampler: sampler[position],
    reference: reference && reference[position], ratio, ratio_kind: settings.ratio, advantage, surrogate_kind: surrogate, limits,
    clipped_ratio: limits && Math.min(Math.max(ratio, limits[0]), limits[1]),
    cap: ["clip", "weight"].includes(surrogate) ? (settings.cap ?? 0) : 0,
    gate: surrogate === "gate" ? settings[advantage > 0 ? "gate_up" : "gate_down"] : null,
    clip: limits && clip[position], kl: kl && kl[position], kl_kind: settings.kl, kl_in, beta: settings.beta,
    aggregate: settings.aggregate, weight, surrogate: (loss({ beta: 0 }) * denominator) / weight, denominator,
    share: loss({}), push: push[position], entropy: entropy && entropy[position], left_out,
  };
}

const camel = (settings) => Object.fromEntries(
  Object.entries(settings).map(([name, value]) => [name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()), value]),
);
