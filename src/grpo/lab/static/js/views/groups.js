// The groups of a step: one problem, its completions, their rewards and advantages.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { useApi } from "../api.js";
import { LongText, Strip } from "../episode.js";
import { number, plural, signed } from "../format.js";
import { Advantage, advantageClass, Card, Fetched, Reward, rewardStep, StepBar } from "../parts.js";
import { address, isStatic, Link, setQuery } from "../route.js";
import { braced, Tex, value } from "../tex.js";
import { Untrusted } from "../text.js";

export const KINDS = {
  mixed: ["mixed", "rewards differ"],
  all_right: ["all right", "all are right and have the same reward"],
  all_wrong: ["all wrong", "all are wrong and have the same reward"],
  cut_off: ["all truncated", "all reached the length limit and have the same reward"],
  equal: ["equal rewards", "all have the same reward, though they are not all right or all wrong, or were not judged"],
  unscored: ["unscored", "no completion has a reward"],
};

// Equal rewards have signal where a batch or a critic is the baseline, or where penalties differ.
const hasSignal = (group) => group.advantages.some(Boolean);

// Limits that end an episode.
const FINISHES = { turns: "most turns reached", calls: "most calls reached", seconds: "out of time", turn_length: "turn truncated" };

// The step to show if the address has none: the newest of a running run, else the most informative one.
export function chosenStep(about, query) {
  const named = Number.parseInt(query.get("step"), 10);
  if (Number.isInteger(named)) return Math.max(0, Math.min(named, about.steps - 1));
  return about.status === "running" ? about.steps - 1 : about.telling_step;
}

export const whyStep = (about, query) => (about.status === "running" || query.get("step") ? null : "the step with the most groups with signal");

export function Groups({ url, about, query, base, version }) {
  const step = chosenStep(about, query);
  const state = useApi(`${url}/steps/${step}`, about.status === "running" ? version : 0);
  const groups = state.data?.groups ?? [];
  const named = Number.parseInt(query.get("group"), 10);
  const index = Number.isInteger(named) ? named : (groups.find((group) => group.kind === "mixed") ?? groups[0])?.index;
  return html`
    <${StepBar} step=${step} last=${about.steps - 1} following=${about.status === "running" && !query.get("step")} why=${whyStep(about, query)} />
    <${Fetched} state=${state} height="70vh">${(data) => html`<div class="split">
      <${GroupList} groups=${data.groups} chosen=${index} query=${query} />
      ${index !== undefined && html`<${GroupDetail} url=${url} step=${data.step} index=${index} about=${about} base=${base} focus=${query.get("sample")}
        order=${query.get("by")} />`}
    </div>`}<//>`;
}

const scored = (values) => values.filter((value) => value !== null);
const mean = (values) => scored(values).reduce((sum, value) => sum + value, 0) / Math.max(1, scored(values).length);
const largest = (values) => Math.max(0, ...scored(values).map(Math.abs));
// Orders of groups: title, and the number to sort by, low to high.
const GROUP_ORDERS = {
  recorded: ["as recorded", (group) => group.index],
  "-reward": ["highest reward first", (group) => -mean(group.rewards)],
  reward: ["lowest reward first", (group) => mean(group.rewards)],
  "-advantage": ["largest advantage first", (group) => -largest(group.advantages)],
  "-length": ["longest first", (group) => -mean(group.lengths)],
  length: ["shortest first", (group) => mean(group.lengths)],
};
// Orders of the completions of a group.
const ORDERS = {
  advantage: ["advantage", (done) => -(done.advantage ?? -Infinity)],
  reward: ["reward", (done) => -(done.reward ?? -Infinity)],
  "-length": ["longest first", (done) => -done.length],
  length: ["shortest first", (done) => done.length],
  sample: ["number", (done) => done.sample],
};
const sorted = (rows, orders, order) => {
  const value = (orders[order] ?? Object.values(orders)[0])[1];
  return [...rows].sort((a, b) => value(a) - value(b));
};

function OrderChoice({ label, name, orders, value }) {
  const first = Object.keys(orders)[0];
  return html`<label class="small soft">
    ${label} <select value=${value ?? first} onChange=${(event) => setQuery({ [name]: event.target.value === first ? undefined : event.target.value })}>
      ${Object.entries(orders).map(([key, [text]]) => html`<option value=${key} selected=${key === (value ?? first)}>${text}</option>`)}</select>
    </label>`;
}

function GroupList({ groups, chosen, query }) {
  const counts = Object.keys(KINDS).map((kind) => [kind, groups.filter((group) => group.kind === kind).length]).filter(([, count]) => count);
  const kind = counts.some(([name]) => name === query.get("kind")) ? query.get("kind") : null;
  const shown = sorted(groups.filter((group) => !kind || group.kind === kind), GROUP_ORDERS, query.get("groups"));
  return html`<nav class="group-list" aria-label="Groups of the step">
    <p class="small soft">${plural(groups.length, "group")}: ${counts.map(([name, count]) => `${count} ${KINDS[name][0]}`).join(", ")}</p>
    <div class="row group-order"><${OrderChoice} label="Order" name="groups" orders=${GROUP_ORDERS} value=${query.get("groups")} />
      ${counts.length > 1 && html`<label class="small soft">Show <select value=${kind ?? ""}
        onChange=${(event) => setQuery({ kind: event.target.value || undefined })}>
        <option value="" selected=${!kind}>all</option>
        ${counts.map(([name]) => html`<option value=${name} selected=${name === kind}>${KINDS[name][0]}</option>`)}</select>
      </label>`}
    </div>
    <ul>${shown.map(
      (group) => html`<li key=${group.index}>
        <button type="button" class="group-button ${group.index === chosen ? "chosen" : ""}" aria-current=${group.index === chosen ? "true" : undefined}
          onClick=${() => setQuery({ group: group.index, sample: undefined, token: undefined }, { replace: false })}>
        <span class="group-prompt"><${Untrusted} text=${group.prompt} class="clip" /></span>
        <span class="pips" aria-hidden="true">${group.rewards.map((reward) => html`<i class="reward-${rewardStep(reward)}"></i>`)}</span>
        <span class="tiny faint" >${KINDS[group.kind][0]}
          ${group.kind === "mixed" && group.right !== null ? `, ${group.right} right` : ""}, ${number(mean(group.lengths), 0)} tokens on
          average${group.traced ? ", tokens recorded" : ""}</span>
      </button></li>`,
    )}</ul>
  </nav>`;
}

// `order`: of the completions; undefined: by advantage, without a choice.
export function GroupDetail({ url, step, index, about, base, focus, order }) {
  const state = useApi(`${url}/steps/${step}/groups/${index}`);
  return html`<${Fetched} state=${state} height="70vh">${(group) => {
    const top = Math.max(1, ...group.rewards.filter((reward) => reward !== null));
    const most = Math.max(1e-9, ...group.completions.map((done) => Math.abs(done.advantage ?? 0)));
    return html`<${Card} class="group">
      <div class="group-head">
        <div><p class="tiny faint">Prompt <span class="mono"><${Untrusted} text=${group.place || group.problem_id} /></span></p>
          <p class="prompt"><${Untrusted} text=${group.prompt} /></p></div>
        ${group.answer && html`<div><p class="tiny faint">Answer</p><p class="prompt"><${Untrusted} text=${group.answer} /></p></div>`}
        <p class="small soft">${KINDS[group.kind][1]}: ${hasSignal(group) ? "this group has signal" : "no signal"}</p>
      </div>
      ${group.rendered && html`<${Rendered} text=${group.rendered.text} tokens=${group.rendered.tokens} />`}
      <dl class="stats">
        <div class="stat"><dt>Mean reward</dt><dd class="stat-value num" data-number="reward_mean">${number(group.statistics.reward_mean)}</dd></div>
        <div class="stat"><dt>Standard deviation</dt><dd class="stat-value num" data-number="reward_std">${number(group.statistics.reward_std)}</dd></div>
        <div class="stat"><dt>Right</dt><dd class="stat-value num">${group.right === null ? "–" : `${group.right} of ${group.completions.length}`}</dd></div>
        <div class="stat"><dt>Sampled after</dt>
          <dd><span class="stat-value num">${number(group.policy_version)}</span> <span class="small soft">updates</span></dd></div>
      </dl>
      ${order !== undefined && html`<div class="row"><${OrderChoice} label="Completions by" name="by" orders=${ORDERS} value=${order} /></div>`}
      <ol class="completions">${alike(sorted(group.completions, ORDERS, order)).map((same) => {
        const row = (done) => html`<${Completion} key=${done.sample} done=${done} group=${group} top=${top} most=${most} about=${about} base=${base}
          focused=${String(done.sample) === focus} />`;
        const named = same.some((done) => String(done.sample) === focus);
        return same.length < 3 || named ? same.map(row) : html`${row(same[0])}<${Same} key=${`same ${same[0].sample}`} rest=${same.slice(1)} row=${row} />`;
      })}</ol>
      <p class="small"><${Link} to=${address(`${base}/whatif`, { step, group: index })}>Try another baseline, scale or reward weights<//>
        ${group.times > 1 && !isStatic() && html` · <${Link} to=${address(`${base}/prompts`, { prompt: `train-${step}-${index}` })}>This prompt,
          sampled ${plural(group.times, "time")}<//>`}
      </p>
    <//>`;
  }}<//>`;
}

// The prompt's tokens decoded: special tokens are part of the text, and a new line is marked.
function Rendered({ text, tokens }) {
  return html`<details class="more rendered"><summary class="small">The prompt as the model read it: ${plural(tokens, "token")}</summary>
    <p class="prompt"><${Untrusted} text=${text.replaceAll("\n", "⏎\n")} /></p></details>`;
}

const saidBy = (done) => JSON.stringify([done.text, ...done.turns.map((turn) => turn.text)]);

// Neighbouring completions with the same text and reward.
function alike(completions) {
  const runs = [];
  for (const done of completions) {
    const before = runs.at(-1)?.[0];
    if (before && saidBy(before) === saidBy(done) && before.reward === done.reward) runs.at(-1).push(done);
    else runs.push([done]);
  }
  return runs;
}

function Same({ rest, row }) {
  const [open, setOpen] = useState(false);
  return html`${open && rest.map(row)}
    <li class="same">
      <button type="button" class="small" aria-expanded=${open} onClick=${() => setOpen(!open)}>
        ${open ? "Hide the same ones" : `and ${rest.length} more that are the same`}</button>
    </li>`;
}

function Completion({ done, group, top, most, about, base, focused }) {
  const [open, setOpen] = useState(focused);
  const parts = Object.entries(done.parts);
  return html`<li class="completion ${focused ? "focused" : ""}">
    <button type="button" class="completion-advantage" aria-expanded=${open} aria-label=${`Advantage ${signed(done.advantage)}; show how it is computed`}
      onClick=${() => setOpen(!open)}>
      <${Advantage} value=${done.advantage} />
      <span class="bar" aria-hidden="true">
        <i class=${advantageClass(done.advantage)}
          style=${{ width: `${(50 * Math.abs(done.advantage ?? 0)) / most}%`, [done.advantage >= 0 ? "left" : "right"]: "50%" }}>
        </i>
      </span>
    </button>
    <div class="completion-body">
      ${done.turns.length ? html`<${Strip} turns=${done.turns} />` : html`<${LongText} text=${done.text} />`}
      <p class="facts small soft">
        <span>reward <${Reward} value=${done.reward} top=${top} /></span>
        ${parts.length > 1 && parts.map(([name, part]) => html`<span>${name} <b class="num">${part === null ? "does not apply" : number(part, 2)}</b></span>`)}
        ${done.extracted !== null && html`<span>extracted <${Untrusted} text=${done.extracted} /> ${done.right === null
          ? null
          : done.right ? "✓" : html`<span class="bad">✗</span>`}
        </span>`}
        <span class="num">${plural(done.length, "token")}</span>
        ${done.finish !== "stop" && html`<span class="warn">${FINISHES[done.finish] ?? "truncated"}</span>`}
        ${done.why && html`<span class="warn"><${Untrusted} text=${done.why.split("\n")[0]} /></span>`}
        ${Object.entries(done.traits).map(([name, trait]) => trait > 0 && html`<span>${name}${trait === 1 ? "" : ` ${number(trait, 2)}`}</span>`)}
        ${Object.entries(done.extra).map(([name, logged]) => html`<span>
          <${Untrusted} text=${name} /> <b><${Untrusted} text=${typeof logged === "string" ? logged : JSON.stringify(logged)} /></b></span>`)}
        ${(group.traced || (!done.turns.length && !isStatic())) && html`<${Link}
          to=${address(`${base}/tokens`, { step: group.step, group: group.index, sample: done.sample })}>tokens<//>`}
      </p>
      ${open && html`<${HowMade} done=${done} group=${group} about=${about} />`}
    </div>
  </li>`;
}

// The calculation of the recorded advantage.
function HowMade({ done, group, about }) {
  const { reward_mean: mean, reward_std: std } = group.statistics;
  const { baseline, scale, parts, credit, weights, overlong, beta, kl_in, turn_weight } = about.config.loss;
  if (done.reward === null) return html`<p class="small soft worked">Without a reward, this completion is excluded from the baseline and from the
    loss.</p>`;
  if (!hasSignal(group)) return html`<p class="small soft worked">${group.kind !== "mixed" && "All rewards of the group are equal. "}All advantages of the
    group are exactly 0, so it has no signal.</p>`;
  if (baseline === "value") return html`<p class="small soft worked">Computed per token from the critic's values; this is the mean over tokens.</p>`;
  if (turn_weight) return html`<p class="small soft worked">Computed per turn from turns of the group in the same state; this is the mean over tokens.</p>`;
  if (credit === "process") return html`<p class="small soft worked">Computed per token from the process rewards; this is the mean over tokens.</p>`;
  if (parts === "normalise" || weights || overlong || (beta && kl_in === "reward")) return html`<p class="small soft worked">Computed
    by <code>grpo.training.credit</code> from the parts of the reward, with weights and penalties: baseline <code>${baseline}</code>,
    scale <code>${scale}</code>.</p>`;
  if (baseline !== "mean" || scale !== "group_std") return html`<p class="small soft worked">Computed by <code>grpo.core.group_advantages</code> with
    baseline <code>${baseline}</code> and scale <code>${scale}</code>.</p>`;
  return html`<div class="worked">
    <${Tex} block>
      ${`A=\\frac{r-\\text{mean}}{\\text{std}+10^{-4}}=\\frac{${value(done.reward)}-${braced(mean)}}{${value(std)}+10^{-4}}=${value(done.advantage)}`}<//>
    </div>`;
}
