// A recorded step with other settings: the same completions, advantages recomputed by the trainer's functions.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { number, percent, signed } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Fetched, MetricHint, Segmented, StepBar } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";
import { chosenStep } from "./groups.js";

const WORDS = {
  baseline: { mean: "group mean", leave_one_out: "mean of the others", batch: "batch mean", length_weighted: "length-weighted mean", value: "critic" },
  scale: { group_std: "group std", batch_std: "batch std", none: "nothing" },
  aggregate: { sequence: "completions", token: "tokens", constant: "constant" },
  ratio: { token: "token", sequence: "completion", product: "completion, product" },
  surrogate: { clip: "clip", weight: "weight", gate: "soft gate", plain: "no clip" },
  kl: { k1: "k1", k2: "k2", k3: "k3", k3_ratio: "k3 · ρ" },
  kl_in: { loss: "the loss", reward: "the reward" },
};
const TITLES = {
  baseline: "baseline", scale: "divide by", aggregate: "average over", ratio: "ratio per", surrogate: "surrogate", kl: "KL estimate", kl_in: "KL penalty in",
};
// name, title, range, tick; for which surrogates.
const NUMBERS = [
  ["clip_low", "ε below", 0, 1, 0.01, ["clip"]], ["clip_high", "ε above", 0, 1, 0.01, ["clip"]],
  ["cap", "largest ratio (0: no cap)", 0, 20, 0.5, ["clip", "weight"]],
  ["gate_up", "τ above", 0.05, 5, 0.05, ["gate"]], ["gate_down", "τ below", 0.05, 5, 0.05, ["gate"]], ["beta", "β", 0, 0.5, 0.005],
  ["overlong", "length penalty over the last share", 0, 1, 0.05],
  ["turn_weight", "ω, weight of turns in the same state", 0, 3, 0.1], ["turn_gamma", "γ per turn", 0, 1, 0.05],
];
const MEASURED = [
  ["zero_signal_groups", percent], ["advantage_std", number], ["reward_mean", number], ["gradient_tokens", percent],
];
const TRACED = [["loss", (v) => number(v, 5)], ["clip_low", (v) => percent(v, 1)], ["clip_high", (v) => percent(v, 1)], ["kl", (v) => number(v, 4)]];

// Without a server (`about.what_if`: the steps whose other settings were recorded) one preset or one choice is set at a
// time, and numbers stay as they are.
export function WhatIf({ url, about, query, base }) {
  useStyle("css/whatif.css");
  const step = chosenStep(about, query);
  const named = Object.fromEntries([...query].filter(([name]) => name in WORDS || name.startsWith("weight.") || NUMBERS.some(([key]) => key === name)));
  const fixed = about.what_if && !about.what_if.includes(step);
  const asked = fixed ? {} : named;
  const state = useApi(address(`${url}/steps/${step}/whatif`, asked));
  const clear = Object.fromEntries(Object.keys(asked).map((name) => [name, undefined]));
  const choose = (name, choice) => setQuery({ ...(about.what_if && clear), [name]: choice });
  return html`<p class="view-lead">Completions and rewards are those of a recorded step. <code>grpo.training.credit</code> and <code>grpo.core</code> recompute
    advantages and loss with other settings. Nothing is trained.</p>
    <${StepBar} step=${step} last=${about.steps - 1} />
    <${Fetched} state=${state} height="60vh">${(answer) => {
      // Controls follow the address at once; the numbers follow when they arrive.
      const data = {
        ...answer,
        settings: { ...answer.recorded_settings, ...asked },
        weights: Object.fromEntries(answer.parts.map((part) => [part, Number(asked[`weight.${part}`] ?? answer.recorded_weights[part] ?? 1)])),
      };
      for (const [name] of NUMBERS) data.settings[name] = Number(data.settings[name]);
      return html`<div class="whatif">
      <${Card} class="controls" title="Settings"
        actions=${html`<button type="button" disabled=${!Object.keys(asked).length} onClick=${() => setQuery(clear)}>Reset</button>`}>
        ${about.what_if && html`<${Recorded} steps=${about.what_if} fixed=${fixed} base=${base} />`}
        <fieldset disabled=${fixed}>
        <div class="row presets" role="group" aria-label="Presets">
          ${Object.entries(data.presets).map(([name, preset]) => html`<button type="button" class="chip"
            onClick=${() => setQuery({ ...clear, ...changes(preset, data.recorded_settings) })}>
            ${name}</button>`)}
        </div>
        ${Object.entries(TITLES).map(([name, title]) => html`<div class="setting"><span class="small soft">${title}${differs(data, name)}</span>
          <${Segmented} label=${title} value=${data.settings[name]}
            onChange=${(choice) => choose(name, choice === data.recorded_settings[name] ? undefined : choice)}
            options=${data.choices[name].map((key) => [key, WORDS[name][key] ?? key])} />
        </div>`)}
        </fieldset>
        <fieldset disabled=${Boolean(about.what_if)}>
        ${NUMBERS.filter(([, , , , , surrogates]) => !surrogates || surrogates.includes(data.settings.surrogate)).map(
          ([name, title, low, high, tick]) => html`<${Slider} name=${name} title=${title} low=${low} high=${high} tick=${tick} value=${data.settings[name]}
            recorded=${data.recorded_settings[name]} />`,
        )}
        ${data.parts.map((part) => html`<${Slider} name=${`weight.${part}`} title=${html`weight of <b>${part}</b>`} low=${-1} high=${2} tick=${0.1}
          value=${data.weights[part]} recorded=${data.recorded_weights[part] ?? 1} />`)}
        </fieldset>
      <//>
      <div>
        ${data.notes.map((note) => html`<p class="small warn">${note}</p>`)}
        <${Card} title="The step" note="With the run's settings and with the changed ones.">
          <table class="before-after">
            <thead>
              <tr><th scope="col"><span class="visually-hidden">metric</span></th><th scope="col" class="right">run</th>
                <th scope="col" class="right">what if</th></tr>
            </thead>
            <tbody>
            ${MEASURED.map(([name, read]) => html`<${Row} name=${name} read=${read} before=${data.statistics.before[name]}
              now=${data.statistics.now[name]} />`)}
            ${data.traced.now && html`<tr><th colspan="3" scope="rowgroup" class="rowgroup">over recorded tokens</th></tr>`}
            ${data.traced.now &&
              TRACED.map(([name, read]) => html`<${Row} name=${name} read=${read} before=${data.traced.before[name]} now=${data.traced.now[name]} />`)}
          </tbody></table>
        <//>
        <${Card} title="Each completion"
          note="Below each bar: the recorded advantage and the new one. A bar is the push on each token at ratio 1; the grey bar is the run's.">
          <${Pushes} groups=${data.groups} />
        <//>
      </div>
    </div>`;
    }}<//>`;
}

function Recorded({ steps, fixed, base }) {
  const links = steps.map((step, place) => html`${place > 0 && ", "}<${Link} to=${address(`${base}/whatif`, { step })}>${step}<//>`);
  return html`<p class="small soft" data-recorded>
    ${fixed
      ? "This step is recorded with the run's settings only."
      : html`Presets and single choices are recorded; numbers and combinations
        need <code>grpo lab</code>.`} ${steps.length > 0 && html`Other settings are recorded at step ${links}.`}
    </p>`;
}

const changes = (preset, recorded) => Object.fromEntries(
  [...Object.keys(TITLES), ...NUMBERS.map(([name]) => name)].map((name) => [name, preset[name] === recorded[name] ? undefined : preset[name]]),
);
const differs = (data, name) => (data.settings[name] === data.recorded_settings[name]
  ? null
  : html` <span class="changed">was ${WORDS[name][data.recorded_settings[name]] ?? data.recorded_settings[name]}</span>`);

function Slider({ name, title, low, high, tick, value, recorded }) {
  return html`<label class="setting">
    <span class="small soft">${title} <b class="num">${number(value, 3)}</b>
      ${value !== recorded && html` <span class="changed">was ${number(recorded, 3)}</span>`}</span>
    <input type="range" min=${low} max=${high} step=${tick} value=${value}
      onInput=${(event) => setQuery({ [name]: Number(event.target.value) === recorded ? undefined : event.target.value })} />
    </label>`;
}

function Row({ name, read, before, now }) {
  const changed = before !== undefined && Math.abs((now ?? 0) - (before ?? 0)) > 1e-9;
  return html`<tr class=${changed ? "changed-row" : ""}><th scope="row">${name.replaceAll("_", " ")}<${MetricHint} name=${name} /></th>
    <td class="right num">${before === undefined ? "–" : read(before)}</td>
    <td class="right num" data-number=${name}><b>${now === undefined ? "–" : read(now)}</b></td></tr>`;
}

const COMPARABLE = 4;

// Bars share one scale, unless the largest pushes are too far apart to be compared by eye: then each has its own.
function Pushes({ groups }) {
  const largest = (name) => Math.max(1e-12, ...groups.flatMap((group) => group.completions.map((done) => Math.abs(done[name]))));
  const [before, now] = [largest("weight_before"), largest("weight")];
  const apart = Math.max(before, now) / Math.min(before, now) > COMPARABLE && Math.min(before, now) > 1e-12;
  const [most, mostBefore] = apart ? [now, before] : [Math.max(before, now), Math.max(before, now)];
  return html`<p class="small" data-scales=${apart ? "two" : "one"}>
    <span class="soft">Largest push, with all completions of the step in one update: run <b class="num">${number(before, 4)}</b>,
      what if <b class="num">${number(now, 4)}</b>.</span>
    ${apart && html` <span class="changed">Each has its own scale.</span>`}</p>
  <ol class="pushes">${groups.map((group) => html`<li><p class="small"><${Untrusted} text=${group.prompt} class="clip" /></p>
    <ul>${group.completions.map((done) => html`<li title=${done.text}>
      <span class="push-bars" aria-hidden="true"><i class="ghost" style=${bar(done.weight_before, mostBefore)}></i>
        <i class=${done.advantage > 0 ? "above" : "below"} style=${bar(done.weight, most)}></i></span>
      <span class="tiny num"><span class="faint">${signed(done.recorded.advantage)}</span><b>${signed(done.advantage)}</b></span></li>`)}</ul></li>`)}</ol>`;
}

const bar = (value, most) => ({ height: `${(50 * Math.abs(value)) / most}%`, [value >= 0 ? "bottom" : "top"]: "50%" });
