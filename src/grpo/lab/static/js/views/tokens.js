// The token lens: every token of a group, coloured by a value of the update.
import { html } from "htm/preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { useApi } from "../api.js";
import { WHY_NO_GRADIENT } from "../episode.js";
import { exact, percent, signed } from "../format.js";
import { Advantage, Card, Empty, Fetched, Segmented, StepBar } from "../parts.js";
import { route, setQuery } from "../route.js";
import { value } from "../tex.js";
import { Untrusted, visible } from "../text.js";
import { chosenStep, KINDS, whyStep } from "./groups.js";
import { Recomputed } from "./recompute.js";
import { Worked } from "./worked.js";

// name, definition, colour scale, format of a value, smallest value of full strength.
export const LENSES = {
  push: ["Push", "The update's push on the token's log-probability: −∂loss/∂logp, advantage times weight.", "diverging", (v) => signed(v, 4), 1e-9],
  ratio: [
    "Ratio",
    "ρ = exp(logp − old): the token's probability now, divided by its probability before the first update.",
    "around-one",
    (v) => exact(v, 4),
    0.05,
  ],
  clip: [
    "Clip",
    "Tokens whose gradient the clip sets to 0: above 1 + ε with A > 0, or below 1 − ε with A < 0.",
    "around-zero",
    (v) => (v > 0 ? "clipped above" : v < 0 ? "clipped below" : "not clipped"),
    1,
  ],
  kl: ["KL", "Distance from the reference model on this token, by the run's KL estimate.", "sequential", (v) => exact(v, 3), 0.01],
  entropy: ["Entropy", "Entropy of the policy at this token: 0 if one token has all the probability.", "sequential", (v) => `${exact(v, 3)} nats`, 0.3],
  gap: [
    "Sampler gap",
    "The trainer's minus the sampler's log-probability before the first update; should be near 0.",
    "sequential",
    (v) => `${exact(v, 2)} nats`,
    1e-4,
  ],
  probability: ["Probability", "The probability of this token when it was sampled.", "sequential", (v) => percent(v, 1), 1],
};

export function Tokens({ url, about, query }) {
  const step = chosenStep(about, query);
  const state = useApi(`${url}/steps/${step}`);
  const groups = state.data?.step === step ? state.data.groups : [];
  const group = groups.find((one) => String(one.index) === query.get("group")) ?? groups.find((one) => one.traced) ?? groups[0];
  return html`
    <${StepBar} step=${step} last=${about.steps - 1} why=${whyStep(about, query)} />
    <${Fetched} state=${state} height="70vh">${() =>
      group
        ? html`<${Completions} key=${`${step} ${group.index}`} url=${url} step=${step} groups=${groups} group=${group} query=${query} />`
        : html`<div class="loading"></div>`}
    <//>`;
}

// Groups with recorded tokens come first.
function GroupChoice({ groups, group }) {
  const choose = (event) => setQuery({ group: event.target.value, sample: undefined, token: undefined });
  const option = (one) => html`<option value=${one.index} selected=${one.index === group.index}>Group ${one.index}: ${KINDS[one.kind][0]}</option>`;
  const kinds = [
    ["Tokens recorded", groups.filter((one) => one.traced)],
    ["Not recorded", groups.filter((one) => !one.traced)],
  ].filter(([, some]) => some.length);
  return html`<label class="group-choice small soft">Group <select value=${group.index} onChange=${choose}>
    ${kinds.map(([title, some]) => html`<optgroup label=${title}>${some.map(option)}</optgroup>`)}</select>
    </label>`;
}

function Completions({ url, step, groups, group, query }) {
  const here = `${url}/steps/${step}/groups/${group.index}`;
  const state = useApi(here);
  return html`<${Fetched} state=${state} height="70vh">${(data) => {
    const most = data.completions.reduce((best, done) => (Math.abs(done.advantage ?? 0) > Math.abs(best.advantage ?? 0) ? done : best));
    const done = data.completions.find((one) => String(one.sample) === query.get("sample")) ?? most;
    const lens = html`<${Lens} url=${`${here}/tokens`} completions=${data.completions} done=${done} query=${query} />`;
    return html`
      <div class="row"><${GroupChoice} groups=${groups} group=${group} />
        <p class="prompt">
          <bdi class="untrusted" dir="ltr">${visible(data.prompt)}
          </bdi> <span class="soft small">answer</span> <bdi class="untrusted" dir="ltr">${visible(data.answer)}</bdi>
        </p>
      </div>
      ${group.traced ? lens : html`<${Recomputed} key=${here} url=${here} step=${step}>${lens}<//>`}`;
  }}<//>`;
}

function Lens({ url, completions, done, query }) {
  const state = useApi(`${url}/${done.sample}`);
  return html`<${Fetched} state=${state} height="50vh">${(data) => {
    const shown = data.rows.find((row) => row.sample === done.sample) ?? data.rows[0];
    const offered = Object.entries(LENSES).filter(([key]) => shown.values[key]);
    const key = shown.values[query.get("lens")] ? query.get("lens") : shown.values.push ? "push" : "probability";
    const chosen = sequence(shown).find((token) => String(token.key) === query.get("token")) ?? null;
    const most = Math.max(...data.rows.filter((row) => row.values[key]).map((row) => fullStrength(key, row.values[key])));
    return html`<div class="lens">
      <${Card}>
        <div class="row">
          <${Segmented} label="Lens" value=${key} onChange=${(lens) => setQuery({ lens })} options=${offered.map(([name, [text]]) => [name, text])} /></div>
        <p class="small soft lens-about">${data.recomputed && key === "probability" ? "The probability of this token under these weights." : LENSES[key][1]}
          ${key === "ratio" && data.updates === 1 ? " With one update per batch it is 1 everywhere." : ""}</p>
        ${!shown.updated && html`<p class="small warn">This completion was not trained on, so only the sampler's values are recorded.</p>`}
        <ol class="lens-rows">${completions.map((one) => {
          const row = data.rows.find((other) => other.sample === one.sample && other.values[key]);
          return html`<li key=${one.sample} class="lens-row ${query.has("sample") && one.sample === done.sample ? "chosen" : ""}">
            <button type="button" class="lens-open" aria-label=${`Completion ${one.sample}, advantage ${signed(one.advantage)}`}
              aria-pressed=${query.has("sample") && one.sample === done.sample} onClick=${() => setQuery({ sample: one.sample, token: undefined })}>
              <${Advantage} value=${one.advantage} /></button>
            ${row
              ? html`<${TokenText} row=${row} lens=${key} most=${most} chosen=${one.sample === done.sample ? (chosen?.key ?? null) : null} />`
              : html`<${Untrusted} text=${one.text.slice(0, 200)} class="clip faint" />`}
          </li>`;
        })}</ol>
        <${Scale} lens=${key} most=${most} clipped=${data.rows.some((row) => row.values.clip?.some(Boolean))} />
      <//>
      ${chosen === null
        ? html`<${Empty} title="Choose a token">Its loss is computed here step by step, with the numbers of this update.<//>`
        : chosen.place === undefined
          ? html`<${Observed} piece=${chosen.piece} />`
          : shown.values.push
            ? html`<${Worked} url=${`${url}/${shown.sample}/${chosen.place}`} recomputed=${data.recomputed} />`
            : html`<${Empty} title="No loss">${shown.updated ? "The advantage of this token is not in the record." : "This completion was not trained on."}
            <//>`}
    </div>`;
  }}<//>`;
}

// Colour class and strength of a value.
function paint(lens, value, most) {
  const colours = LENSES[lens][2];
  if (colours === "diverging") return [value > 0 ? "above" : value < 0 ? "below" : "level", Math.abs(value) / most];
  if (colours === "around-one") return [value > 1 ? "more" : "less", Math.abs(Math.log(Math.max(value, 1e-6))) / most];
  if (colours === "around-zero") return [value > 0 ? "more" : "less", Math.abs(value)];
  return ["more", Math.abs(value) / most];
}

export function fullStrength(lens, values) {
  const sizes = values.map((one) => (LENSES[lens][2] === "around-one" ? Math.abs(Math.log(Math.max(one, 1e-6))) : Math.abs(one)));
  return Math.max(LENSES[lens][4], ...sizes);
}

// The tokens of a row as the model saw them: those it sampled, with their place, and those it read, which have none.
function sequence(row) {
  const read = (row.observed ?? []).map((token, index) => ({ ...token, key: `o${index}` }));
  const tokens = [];
  let next = 0;
  row.pieces.forEach((piece, place) => {
    while (read[next]?.after <= place) tokens.push(read[next++]);
    tokens.push({ piece, place, key: place });
  });
  return [...tokens, ...read.slice(next)];
}

// `chosen`: the key of a token of the sequence.
export function TokenText({ row, lens, most, chosen }) {
  const box = useRef(null);
  const values = row.values[lens];
  const tokens = sequence(row);
  const find = (key) => Math.max(0, tokens.findIndex((token) => String(token.key) === String(key)));
  const choose = (index) => setQuery({ sample: row.sample, token: tokens[index].key });
  useLayoutEffect(() => {
    if (chosen !== null && box.current?.contains(document.activeElement)) box.current.children[find(chosen)]?.focus();
  }, [chosen]);
  function press(event) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Enter: 0, " ": 0 };
    // The address is ahead of the screen when keys come fast.
    const at = find((chosen === null ? null : route.value.query.get("token")) ?? document.activeElement?.dataset.key ?? 0);
    const to = event.key === "Home" ? 0 : event.key === "End" ? tokens.length - 1 : event.key in moves ? at + moves[event.key] : null;
    if (to === null) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(tokens.length - 1, to)));
  }
  const click = (event) => {
    const key = event.target.closest(".token")?.dataset.key;
    if (key !== undefined) choose(find(key));
  };
  const shown = (piece) => (piece ? visible(piece.replace(/ /g, "␣").replace(/\n/g, "⏎\n")) : "·");
  return html`<div class="tokens" ref=${box} role="listbox" aria-label=${`Tokens of completion ${row.sample}`} data-arrows onKeyDown=${press} onClick=${click}>
    ${tokens.map(({ piece, place, key }) => {
    const common = { role: "option", "data-key": key, "aria-selected": key === chosen, tabIndex: key === (chosen ?? tokens[0].key) ? 0 : -1 };
    if (place === undefined) return html`<span class="token observed" ...${common} title="read, not sampled">${shown(piece)}</span>`;
    const [hue, size] = paint(lens, values[place], most);
    const clipped = row.values.clip?.[place] ? "clipped" : "";
    return html`<span class="token ${hue} ${clipped}" ...${common} style=${{ "--strength": Math.min(1, size).toFixed(3) }}
      title=${`${LENSES[lens][0]} ${LENSES[lens][3](values[place])}${clipped && lens !== "clip" ? ", clipped" : ""}`}>
      ${shown(piece)}</span>`;
  })}</div>`;
}

// `clipped`: whether tokens marked as clipped are among those shown.
export function Scale({ lens, most, clipped = false }) {
  const [name, , colours, read] = LENSES[lens];
  const mark = clipped && html`<span class="clipped-key"><i class="key square clipped" aria-hidden="true"></i>clipped</span>`;
  if (colours === "around-one" || colours === "around-zero") {
    return html`<p class="scale small soft"><i class="key square less-key"></i>
      ${lens === "clip" ? "clipped below" : "less likely than before"} <i class="key square more-key"></i>
      ${lens === "clip" ? "clipped above" : "more likely"} ${lens !== "clip" && mark}</p>`;
  }
  return html`<p class="scale small soft num"><span>${colours === "sequential" ? "0" : read(-most)}</span>
    <i class="ramp ramp-${colours}" aria-hidden="true"></i><span>${read(most)}</span><span class="visually-hidden">scale of ${name}</span>${mark}</p>`;
}

function Observed({ piece }) {
  return html`<${Card} class="worked-card" title="A token that was read">
    <p class="worked-token"><bdi class="untrusted" dir="ltr">${visible(piece || "·")}</bdi></p><p data-observed>${WHY_NO_GRADIENT}</p><//>`;
}

