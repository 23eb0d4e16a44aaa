// A group with rewards set by the reader.
import { html } from "htm/preact";
import { Code, Choice, Fetched, Numbers, Only, Play, Question, Slider, Table, Verdict, param, useAnswer, useDepth } from "../lesson.js";
import { number } from "../format.js";
import { Advantage, Reward, Segmented, advantageClass } from "../parts.js";
import { route, setQuery } from "../route.js";
import { Untrusted, visible } from "../text.js";

export const WAYS = {
  grpo: ["GRPO", "(reward − group mean) ÷ group standard deviation"],
  mean_only: ["Dr. GRPO", "reward − group mean"],
  leave_one_out: ["RLOO", "reward − mean of the other answers"],
  batch_std: ["REINFORCE++", "(reward − group mean) ÷ batch standard deviation"],
  batch: ["whole batch", "(reward − batch mean) ÷ batch standard deviation"],
};

const SIZES = { run: 8, six: 6 };

// The rewards are in the address as one list, so that a group can be linked; a list of another length is not this group's.
export function GroupSliders() {
  const of = param("of", "run") === "six" ? "six" : "run";
  const listed = route.value.query.get("r") ?? undefined;
  const asked = listed?.split(",").length === SIZES[of] ? listed : undefined;
  const exactly = useDepth() !== "intuition";
  const way = exactly && param("way", "grpo") in WAYS ? param("way", "grpo") : "grpo";
  const state = useAnswer("advantage", "group", { of, rewards: asked });
  const filled = (rewards, rest) => Array.from({ length: SIZES[of] }, (_, place) => rewards[place] ?? rest).join(",");
  const presets = {
    [of === "run" ? "as recorded" : "as invented"]: undefined,
    "one right": filled([1], 0),
    "one wrong": filled([0], 1),
    "all right": filled([], 1),
    "half credit": filled([1, 0.5, 0.5, 0.5], 0),
  };
  return html`<${Play} label="A group of rewards">
    <div class="knobs">
      <div class="knob"><span class="knob-label">Group</span>
        <${Segmented} label="Group" options=${[["run", "eight recorded answers"], ["six", "six invented rewards"]]} value=${of}
          onChange=${(key) => setQuery({ of: key === "run" ? undefined : key, r: undefined })} />
      </div>
    </div>
    ${exactly && html`<${Choice} name="way" label="Formula of the advantage" value="grpo"
      options=${Object.entries(WAYS).map(([key, [name, title]]) => [key, name, title])} />
    <p class="small soft">${WAYS[way][1]}.</p>`}
    <${Fetched} state=${state} height="26rem">${(data) => {
      const rewards = asked ? asked.split(",").map(Number) : data.start;
      const found = data.advantages[way];
      const most = Math.max(1, ...found.map(Math.abs));
      const set = (place, value) => setQuery({ r: data.rewards.map((reward, at) => (at === place ? value : reward)).join(",") });
      return html`${data.prompt && html`<p>
        <span class="asked-prompt"><${Untrusted} text=${data.prompt} /></span> <span class="soft small">right: ${data.answer}</span></p>`}
        <ol class="siblings">${data.rewards.map((reward, place) => html`<li key=${place}>
          <span class="sibling-name">${data.texts[place] ? html`<${Final} text=${data.texts[place]} />` : `answer ${place + 1}`}</span>
          <input type="range" min="0" max="1" step="0.05" value=${rewards[place] ?? reward} aria-label=${`Reward of answer ${place + 1}`}
            aria-valuetext=${number(reward, 2)} onInput=${(event) => set(place, event.target.value)} />
          <${Reward} value=${reward} />
          <span class="bar" aria-hidden="true">
            <i class=${advantageClass(found[place])}
              style=${{ [found[place] >= 0 ? "left" : "right"]: "50%", width: `${(50 * Math.abs(found[place])) / most}%` }}>
            </i>
          </span>
          <span data-number=${`advantage-${place}`}><${Advantage} value=${found[place]} /></span></li>`)}</ol>
        <${Numbers}
          items=${[
            ["average reward", data.mean, null, "mean"],
            ...(exactly
              ? [
                ["sample std, over G − 1", data.std, null, "std"],
                ["population std, over G", data.std_population],
                ["mean of the batch", data.batch.mean, `${data.batch.groups} groups`],
              ]
              : [["typical distance from it", data.std, null, "std"]]),
          ]} />
        ${data.statistics.zero_signal_groups === 1 && html`<p class="warn small" role="status">All rewards are equal: every advantage within the group is 0, and
          nothing is learned.</p>`}
        ${data.work.length > 0 && html`<p class="small soft">In parentheses, the working: ${data.work.join("; ")}.</p>`}`;
    }}<//>
    <div class="row presets" role="group" aria-label="Examples">
      ${Object.entries(presets).map(([name, rewards]) => html`<button type="button" class="chip" onClick=${() => setQuery({ r: rewards })}>${name}</button>`)}
    </div>
  <//>`;
}

// A completion of the recorded run: its working, then the answer that is scored.
function Final({ text }) {
  const end = text.lastIndexOf(")") + 1;
  return html`<bdi class="untrusted final" dir="ltr">${end > 0 && html`<span class="faint">${visible(text.slice(0, end))}</span>`}
    <b>${visible(text.slice(end))}</b></bdi>`;
}

export function SameReward() {
  return html`<${Question} name="same" ask="An answer has reward 0.7. Will the update make it more likely?"
    options=${[["yes", "Yes, 0.7 is good"], ["no", "No, it is not 1"], ["depends", "One cannot tell yet"]]}>
    ${(picked) => html`<${InTwoGroups} picked=${picked} />`}<//>`;
}

function InTwoGroups({ picked }) {
  const state = useAnswer("advantage", "same", { reward: param("same_reward", 0.7) });
  return html`<${Verdict} picked=${picked} right="depends"><p>In a weak group it is the best answer, in a strong group the worst. Change its reward:</p>
    <${Slider} name="same_reward" label="reward of the answer" min=${0} max=${1} step=${0.05} value=${0.7} show=${(value) => number(value, 2)} />
    <${Fetched} state=${state} height="8rem">
      ${(data) => html`<${Table} label="The same reward in two groups" head=${["group", "rewards of the other answers", "advantage of the answer"]}
        rows=${Object.entries(data).map(([name, { rewards, advantages }]) => [
          name,
          rewards.slice(1).map((reward) => number(reward, 1)).join("  "),
          html`<span data-number=${`same-${name}`}><${Advantage} value=${advantages[0]} /></span>`,
        ])} />`}
    <//>
    <//>`;
}

export function StdConventions() {
  const state = useAnswer("advantage", "std");
  return html`<p>The advantage of one right answer among G, with the population std (over G) and with the sample std (over G − 1):</p>
    <${Fetched} state=${state} height="16rem">
      ${(rows) => html`<${Table} label="Advantage of one right answer by either std" head=${["G", "over G", "over G − 1", "group_advantages"]}
        rows=${rows.map((row) => [
          row.group_size,
          row.population === null ? "0 / 0" : number(row.population, 3),
          row.sample === null ? html`<b class="missed">not a number</b>` : number(row.sample, 3),
          html`<span data-number=${`trainer-${row.group_size}`}>${number(row.trainer, 3)}</span>`,
        ])} />`}
    <//>
    <p>At G = 2 they differ by 41%: 1 or 0.71. At G = 1 the sample std is not a number (NaN), and a program that divides by it trains on NaN. This trainer
      rejects G = 1 with a group baseline, and <code>group_advantages</code> returns 0 for it. (It adds 0.0001 to the std, as TRL does, so its last digit can
      differ.)</p>
    <${Only} depth="math">
      <p class="small soft">For one right answer of G, the advantage is √(G − 1) over G, and (G − 1)/√G over G − 1. Their ratio, √(G/(G − 1)), goes to 1 as G
        grows.</p>
    <//>
    <${Only} depth="code"><${Code} slug="advantage" source="std_conventions" /><//>`;
}
