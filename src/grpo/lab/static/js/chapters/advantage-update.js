// How an update changes probabilities.
import { html } from "htm/preact";
import { among, Choice, Code, Fetched, Figure, Only, Play, Question, Slider, Table, Verdict, param, useAnswer, useDepth } from "../lesson.js";
import { exact, number, percent, signed } from "../format.js";
import { Advantage, Reward } from "../parts.js";
import { setQuery } from "../route.js";
import { Untrusted } from "../text.js";
import { HowToRead } from "./answers.js";

const RATES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3];

export function NanoUpdate() {
  const seed = param("seed", 2);
  const lr = among(RATES, param("rate", 2), 2);
  const state = useAnswer("advantage", "nano", { seed, lr });
  return html`<${Play} label="One update of nano">
    <div class="knobs"><${Slider} name="seed" label="sampled group" min=${1} max=${20} step=${1} value=${2} show=${(place) => `no. ${place} of 20`} />
      <${Slider} name="rate" label="learning rate" min=${0} max=${4} step=${1} value=${2} show=${(place) => exact(among(RATES, place, 2))} /></div>
    <${Fetched} state=${state} height="18rem">
      ${(data) => html`<p><span class="asked-prompt"><${Untrusted} text=${data.prompt} /></span> <span class="soft small">right: ${data.answer}</span></p>
      <${BeforeAfter} rows=${data.completions} />
      <${HowToRead} prompt=${data.prompt} />`}
    <//>
  <//>
  <${Question} name="direct"
    ask="In another group, no. 1, a guess, 164, is right by luck. Other guesses (163, 165, 167) are wrong. What does the update do to 164?"
    options=${[["up", "It becomes more likely"], ["down", "It becomes less likely"], ["same", "It stays the same"]]}>
    ${(picked) => html`<${DirectAnswer} picked=${picked} />`}<//>
  <${Only} depth="code"><${Code} slug="advantage" source="nano_update" title="nano_update: the trainer's phases in order" /><//>`;
}

// Intuition has the columns that fit a phone.
function BeforeAfter({ rows }) {
  const exactly = useDepth() !== "intuition";
  const head = ["answer", exactly && "sampled", exactly && "reward", "advantage", "before", "after", exactly && "relative change"].filter(Boolean);
  const cells = (row) => [
    html`<${Untrusted} text=${row.text} />${!exactly && row.times > 1 ? html` <span class="soft small nowrap">× ${row.times}</span>` : null}`,
    exactly && `${row.times} ×`,
    exactly && html`<${Reward} value=${row.reward} />`,
    html`<${Advantage} value=${row.advantage} />`,
    html`<span class="num">${percent(row.before, 1)}</span>`,
    html`<b class="num ${row.after > row.before ? "good" : "missed"}" data-number=${`after-${row.text}`}>${percent(row.after, 1)}</b>`,
    exactly && html`<span class="num">${signed(100 * (row.after / row.before - 1), 0)}%</span>`,
  ].filter(Boolean);
  return html`<${Table} label="Probability of each answer before and after the update" head=${head} rows=${rows.map(cells)} />`;
}

function DirectAnswer({ picked }) {
  const state = useAnswer("advantage", "nano", { seed: 1, lr: 1e-4 });
  return html`<${Fetched} state=${state} height="5rem">${(data) => {
    const [direct, worked] = ["164", "(14;16)164"].map((text) => data.completions.find((row) => row.text === text));
    return html`<${Verdict} picked=${picked} right=${direct.after > direct.before ? "up" : "down"}>
      <p>From ${percent(direct.before, 1)} to <b data-number="direct-after">${percent(direct.after, 1)}</b>, although its advantage is positive. It shares its
        first tokens with the wrong direct answers, and those are pushed down more often. The worked answer shares its first tokens with no wrong answer:
        from ${percent(worked.before, 1)} to <b>${percent(worked.after, 1)}</b>.</p>
      <p>That is how a style spreads. Working is not rewarded directly. Worked answers are right more often, so their shared first tokens are pushed up.</p>
      <//>`;
  }}<//>`;
}

const NAMES = ["A", "B", "C", "D", "E"];
const START = [0.7, 0.2, 0.1, 0, 0.3];

export function TabularUpdates() {
  const rewards = NAMES.map((name, place) => param(`t${name}`, START[place]));
  const asked = {
    rewards: rewards.join(","),
    updates: param("updates", 20),
    g: param("tg", 8),
    lr: param("tlr", 0.3),
    seed: param("tseed", 1),
    scale: param("tscale", "group_std"),
  };
  const state = useAnswer("advantage", "tabular", asked);
  const strong = { tA: undefined, tB: 0.9, tC: 1, tD: 0.8, tE: 0.9 };
  return html`<${Play} label="Updates of a policy over five answers">
    <div class="knobs five">
      ${NAMES.map((name, place) => html`<${Slider} name=${`t${name}`} label=${`reward of ${name}`} min=${0} max=${1} step=${0.1} value=${START[place]}
        show=${(value) => number(value, 1)} />`)}
    </div>
    <div class="row presets" role="group" aria-label="Examples">
      <button type="button" class="chip" onClick=${() => setQuery({ tA: undefined, tB: undefined, tC: undefined, tD: undefined, tE: undefined })}>A in a weak
        group</button>
      <button type="button" class="chip" onClick=${() => setQuery(strong)}>A in a strong group</button></div>
    <div class="knobs"><${Slider} name="updates" label="updates" min=${0} max=${60} step=${1} value=${20} />
      <${Slider} name="tg" label="group size G" min=${2} max=${64} step=${1} value=${8} />
      <${Slider} name="tlr" label="step size" min=${0.05} max=${2} step=${0.05} value=${0.3} show=${(value) => number(value, 2)} />
      <${Slider} name="tseed" label="seed" min=${1} max=${20} step=${1} value=${1} />
      <${Choice} name="tscale" label="divide by the std" value="group_std" options=${[["group_std", "yes"], ["none", "no"]]} /></div>
    <${Fetched} state=${state} height="16rem">${(data) => html`<${Dynamics} data=${data} />`}<//>
  <//>
  <${Only} depth="code"><${Code} slug="advantage" source="tabular_updates" /><${Code} slug="advantage" source="policy_loss" /><//>`;
}

const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)"];

function Dynamics({ data }) {
  const { trail, last } = data;
  const [first, now] = [trail[0], trail.at(-1)];
  const points = trail.flatMap((row, update) => row.map((p, place) => ({ update, p, place })));
  const drawn = NAMES.map((_, place) => last.drawn?.filter((at) => at === place).length ?? 0);
  const advantage = (place) => (last.drawn?.includes(place) ? last.advantages[last.drawn.indexOf(place)] : null);
  return html`<div class="pair wide-left">
    <${Figure} label="Probability of each answer over the updates" height=${200} deps=${[JSON.stringify(trail)]}
      legend=${NAMES.map((name, place) => [name, COLOURS[place]])}
      build=${(Plot) => ({
        x: { label: "updates", ticks: Math.min(6, trail.length) },
        y: { domain: [0, 1], grid: true, label: "probability", tickFormat: (value) => percent(value) },
        marks: trail.length > 1
          ? [Plot.lineY(points, { x: "update", y: "p", z: "place", stroke: (point) => COLOURS[point.place], strokeWidth: 2 })]
          : [Plot.dot(points, { x: "update", y: "p", fill: (point) => COLOURS[point.place] })],
      })}
      table=${{ columns: ["update", ...NAMES], rows: trail.map((row, update) => [update, ...row]) }} />
    <${Table} label="Each answer before and after" head=${["answer", "in the last group", "advantage", "before", "after"]}
      rows=${NAMES.map((name, place) => [
        name,
        drawn[place] ? `${drawn[place]} ×` : "–",
        html`<${Advantage} value=${advantage(place)} />`,
        percent(first[place], 1),
        html`<b class="num" data-number=${`p-${name}`}>${percent(now[place], 1)}</b>`,
      ])} />
    </div>
    <p class="small soft">Answers that were not sampled change too, because probabilities sum to 1.</p>`;
}
