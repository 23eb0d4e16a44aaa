// One prompt across a run: its completions at each step that sampled it, and what changed between two of them.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { difference } from "../diff.js";
import { percent, plural } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Empty, Fetched, Reward, rewardStep } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted, visible } from "../text.js";

const KINDS = { pinned: "Pinned problems", heldout: "Held-out problems", train: "Seen in several steps" };
const WHERE = { pinned: "pinned", heldout: "held-out", train: "in training" };
const SHORT = 60; // characters of a prompt in the list

export function Prompts({ url, query, base }) {
  useStyle("css/prompts.css");
  const state = useApi(`${url}/prompts`);
  return html`<p class="view-lead">One prompt at every step that sampled it, and what changed in the answers between two of them.</p>
    <${Fetched} state=${state} height="60vh">${(listed) => {
      const key = query.get("prompt") ?? listed[0]?.key;
      if (!key) return html`<${Empty} title="No prompt was sampled twice">Train with <code>--evaluation.probes N</code> to sample N problems at each
        evaluation.<//>`;
      return html`<${Choice} listed=${listed} chosen=${key} /><${Prompt} key=${key} url=${`${url}/prompts/${key}`} query=${query} base=${base} />`;
    }}<//>`;
}

const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text).replace(/\s+/g, " ");

function Choice({ listed, chosen }) {
  const choose = (event) => setQuery({ prompt: event.target.value, from: undefined, to: undefined });
  const groups = Object.entries(KINDS).map(([kind, title]) => [title, listed.filter((one) => one.kind === kind)]).filter(([, some]) => some.length);
  return html`<label class="prompt-choice small soft">Prompt <select value=${chosen} onChange=${choose}>
    ${!listed.some((one) => one.key === chosen) && html`<option value=${chosen} selected>${chosen}</option>`}
    ${groups.map(([title, some]) => html`<optgroup label=${title}>
      ${some.map((one) => html`<option value=${one.key} selected=${one.key === chosen}>${short(one.prompt)} (${plural(one.times, "time")})</option>`)}
    </optgroup>`)}
  </select>
    </label>`;
}

const mean = (values) => values.reduce((sum, each) => sum + each, 0) / Math.max(1, values.length);
const isJudged = (moment) => moment.samples.some((sample) => sample.right !== null);
const share = (moment) => mean(moment.samples.map((sample) => (isJudged(moment) ? Number(sample.right) : (sample.reward ?? 0))));
const result = (moment) => (isJudged(moment) ? `${percent(share(moment))} right` : `mean reward ${share(moment).toFixed(2)}`);
const time = ({ step, where }) => (where === "train" ? `Step ${step}` : step ? `After ${plural(step, "step")}` : "Before training");
const when = (moment) => `${time(moment)}, ${WHERE[moment.where]}`;

function Prompt({ url, query, base }) {
  const state = useApi(url);
  return html`<${Fetched} state=${state} height="50vh">${({ prompt, answer, moments }) => {
    const at = (name, otherwise) => Math.max(0, Math.min(moments.length - 1, Number.parseInt(query.get(name) ?? otherwise, 10) || 0));
    // If the address has none, the first and the last of one kind.
    const [from, to] = [at("from", 0), at("to", moments.findLastIndex((moment) => moment.where === moments[0].where) || moments.length - 1)];
    return html`<${Card}>
      <div class="group-head"><div><p class="tiny faint">Prompt</p><p class="prompt"><${Untrusted} text=${prompt} /></p></div>
        ${answer && html`<div><p class="tiny faint">Answer</p><p class="prompt"><${Untrusted} text=${answer} /></p></div>`}</div>
      <ol class="moments" aria-label="Times it was sampled">
        ${moments.map((moment, place) => html`<li>
          <button type="button" class="moment reward-${rewardStep(share(moment))} ${place === from || place === to ? "chosen" : ""}"
            aria-pressed=${place === to} aria-label=${`${moment.step}: ${when(moment)}, ${result(moment)}`} title=${`${when(moment)}: ${result(moment)}`}
            onClick=${() => setQuery({ to: place })}>
            ${moment.step}</button>
        </li>`)}
      </ol>
      <div class="row"><${Moment} name="from" label="Compare" moments=${moments} chosen=${from} />
        <${Moment} name="to" label="with" moments=${moments} chosen=${to} /></div>
      ${from === to ? html`<p class="soft">Choose two different times.</p>` : html`<${Changes} before=${moments[from]} after=${moments[to]} base=${base} />`}
    <//>`;
  }}<//>`;
}

function Moment({ name, label, moments, chosen }) {
  return html`<label class="small soft">
    ${label} <select value=${chosen} onChange=${(event) => setQuery({ [name]: event.target.value })}>
      ${moments.map((moment, place) => html`<option value=${place} selected=${place === chosen}>${when(moment)}: ${result(moment)}</option>`)}</select>
    </label>`;
}

// Pairs of completions of the same number; equal pairs are one row.
function pairs(before, after) {
  const found = new Map();
  for (let i = 0; i < Math.max(before.samples.length, after.samples.length); i += 1) {
    const pair = [before.samples[i], after.samples[i]];
    const key = JSON.stringify(pair);
    found.set(key, { pair, count: (found.get(key)?.count ?? 0) + 1 });
  }
  return [...found.values()];
}

function Changes({ before, after, base }) {
  const head = (moment) => html`<h2 class="change-title">
    ${when(moment)} <span class="soft small">${result(moment)}</span> ${moment.where === "train" && html`<${Link} class="small"
      to=${address(`${base}/groups`, { step: moment.step, group: moment.group })}>group<//>`}
  </h2>`;
  return html`<div class="changes">
    <div class="change-head">${head(before)}${head(after)}</div>
    <ol>${pairs(before, after).map(({ pair: [one, other], count }) => {
      const parts = difference(one?.text ?? "", other?.text ?? "");
      return html`<li class="change"><${Side} sample=${one} parts=${parts} kind="gone" count=${count} />
        <${Side} sample=${other} parts=${parts} kind="new" count=${count} /></li>`;
    })}</ol>
    <p class="small soft"><del>only before</del> <ins>only after</ins>. Completions are paired by their number in the group.</p>
  </div>`;
}

function Side({ sample, parts, kind, count }) {
  if (!sample) return html`<div class="side faint">–</div>`;
  const tag = kind === "gone" ? "del" : "ins";
  return html`<div class="side"><${Reward} value=${sample.reward} /><span class="faint small num">${count > 1 ? `×${count}` : ""}</span>
    <bdi class="untrusted" dir="ltr">
      ${sample.text
        ? parts.filter(([which]) => which === "same" || which === kind).map(([which, text]) => (which === "same"
          ? visible(text)
          : html`<${tag}>${visible(text)}<//>`))
        : html`<span class="faint">(nothing)</span>`}
    </bdi>
    </div>`;
}
