// Every token of a group, the reader's or a recorded one, with its loss computed step by step.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { exact, number, percent, signed } from "../format.js";
import { Term } from "../glossary.js";
import { Code, Fetched, Numbers, Only, param, Play, Section, Slider, TextField, useAnswer, useDepth } from "../lesson.js";
import { Advantage, Empty, Reward, Segmented } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";
import { fullStrength, LENSES, Scale, TokenText } from "../views/tokens.js";
import { Worked } from "../views/worked.js";

const TEXTS = "102\n(12;10)102\n92\n101";
const RECORDING = "/api/runs/~tiny-arithmetic";
const OFFERED = ["push", "ratio", "clip", "kl", "probability"];

// Intuition shows the first update, where a push is the advantage shared out over the answer's tokens.
export const ownParams = () => ({
  prompt: param("prompt", "12+34+56="),
  texts: param("texts", TEXTS),
  updates: useDepth() === "intuition" ? 1 : param("updates", 4),
  lr: param("lr", 0.0003),
  low: param("own_low", 0.2),
  beta: param("own_beta", 0.04),
});

export function Tokens() {
  const own = param("from", "own") === "own";
  return html`<${Section} title="Every token gets a push" id="tokens"
    lead=${html`An <${Term} of="advantage">advantage<//> belongs to a whole answer and is shared out over its <${Term} of="token">tokens<//>. Write some answers
      and choose any token.`}>
    <${Play} label="Token inspector">
      <${Segmented} label="Answers" value=${own ? "own" : "recorded"}
        onChange=${(key) => setQuery({ from: key === "own" ? undefined : key, sample: undefined, token: undefined })}
        options=${[["own", "Yours"], ["recorded", "From a recorded run"]]} />
      ${own ? html`<${OwnGroup} />` : html`<${RecordedGroup} />`}
    <//>
    <${Only} depth="math code">
      <p>A token's share is its contribution to the loss. All shares add up to the trainer's loss. The push is minus the derivative of the loss by the token's
        log-probability, computed by autograd.</p>
    <//>
    <${Only} depth="code"><${Code} slug="loss" source="train_on_group" title="Training on your answers" />
      <${Code} slug="loss" source="token_terms" title="The terms of a token's push" />
      <${Code} slug="loss" source="token_loss" title="A token's share of the loss" /><//>
  <//>`;
}

function OwnGroup() {
  const params = ownParams();
  const state = useAnswer("loss", "own", params);
  const exactly = useDepth() !== "intuition";
  return html`<div class="knobs tops"><${TextField} name="prompt" label="A sum of three numbers" value="12+34+56=" most=${48} />
    <${TextField} name="texts" label="One answer per line" value=${TEXTS} rows=${4} most=${400} /></div>
    ${exactly && html`<div class="knobs"><${Slider} name="updates" label="updates on this batch" min=${1} max=${8} step=${1} value=${4} />
      <${Slider} name="lr" label="learning rate" min=${0} max=${0.003} step=${0.0001} value=${0.0003} show=${(v) => exact(v, 2)} />
      <${Slider} name="own_low" label="clip range ε" min=${0} max=${0.9} step=${0.05} value=${0.2} />
      <${Slider} name="own_beta" label="β" min=${0} max=${0.5} step=${0.01} value=${0.04} /></div>
    <p class="small soft">The model is <code>nano</code>, with 100,000 parameters. Its vocabulary is digits and <code>+*=(),;</code>. An answer may include its
      working: <code>(12;10)102</code>.</p>`}
    <${Fetched} state=${state} height="24rem">
      ${(data) => html`<${Rows} rows=${data.rows} url=${(sample, token) => address("/api/chapters/loss/token", { ...params, sample, token })}
        silent=${!data.signal} />
      ${exactly && html`<${Numbers}
        items=${[
          ["sum of all shares", exact(data.sum_of_shares, 5), null, "sum_of_shares"],
          ["the trainer's loss", exact(data.trainer_loss, 5), "of the last update", "trainer_loss"],
          ["updates taken", data.updates.length],
        ]} />`}`}
    <//>`;
}

function RecordedGroup() {
  const about = useApi(RECORDING);
  const steps = about.data?.traced_steps ?? [];
  const step = steps[Math.min(steps.length - 1, param("step", 3))];
  const listed = useApi(step === undefined ? null : `${RECORDING}/steps/${step}`);
  const traced = (listed.data?.groups ?? []).filter((group) => group.traced);
  const group = traced.find((one) => one.index === param("group", -1)) ?? traced[0];
  const full = useApi(group && `${RECORDING}/steps/${step}/groups/${group.index}`);
  const first = full.data?.completions[0]?.sample;
  const lens = useApi(
    group && first !== undefined && full.data.index === group.index ? `${RECORDING}/steps/${step}/groups/${group.index}/tokens/${first}` : null,
  );
  return html`<${Slider} name="step" label="recorded step" min=${0} max=${Math.max(1, steps.length - 1)} step=${1} value=${3}
    show=${(place) => String(steps[place] ?? place)} />
    ${group && html`<p class="prompt"><${Untrusted} text=${group.prompt} /> <span class="soft small">answer</span> <${Untrusted} text=${group.answer} /></p>`}
    <${Fetched} state=${lens} height="24rem">
      ${(data) => html`<${Rows} rows=${data.rows.map((row) => ({ ...row, ...full.data.completions.find((done) => done.sample === row.sample) }))}
        url=${(sample, token) => `${RECORDING}/steps/${step}/groups/${group.index}/tokens/${sample}/${token}`} />
      <p class="small soft">A run of <code>tiny</code> that took eight updates on each
        batch. <${Link} to=${`/runs/~tiny-arithmetic/tokens?step=${step}`}>Open it in the token lens<//></p>`}
    <//>`;
}

function Rows({ rows, url, silent = false }) {
  const offered = OFFERED.filter((key) => rows.some((row) => row.values[key]));
  const exactly = useDepth() !== "intuition";
  const lens = exactly && offered.includes(param("lens", "push")) ? param("lens", "push") : "push";
  const sample = param("sample", rows[0].sample);
  const token = param("token", 2);
  const shown = rows.filter((row) => row.values[lens]);
  const most = Math.max(1e-12, ...shown.map((row) => fullStrength(lens, row.values[lens])));
  const open = rows.find((row) => row.sample === sample);
  const chosen = open && token >= 0 && token < open.pieces.length;
  return html`<div class="own-lens">
    ${exactly && html`<${Segmented} label="Colour by" value=${lens} onChange=${(key) => setQuery({ lens: key === "push" ? undefined : key })}
      options=${offered.map((key) => [key, LENSES[key][0]])} />
    <p class="small soft">${LENSES[lens][1]}</p>`}
    <ol class="lens-rows">
      ${rows.map((row) => html`<li key=${row.sample} class="lens-row ${chosen && row.sample === sample ? "chosen" : ""}">
        <span class="own-marks"><${Reward} value=${row.reward} /> <${Advantage} value=${row.advantage} /></span>
        ${row.values[lens]
          ? html`<${TokenText} row=${row} lens=${lens} most=${most} chosen=${chosen && row.sample === sample ? token : null} />`
          : html`<span class="faint">not trained on</span>`}
      </li>`)}
    </ol>
    ${silent ? html`<p class="warn">All rewards are equal, so every advantage is 0 and no update is taken.</p>` : html`<${Scale} lens=${lens} most=${most} />`}
    ${!exactly
      ? chosen && !silent && html`<${Numbers}
        items=${[
          [
            "push on the chosen token",
            signed(open.values.push?.[token], 3),
            open.values.push?.[token] > 0 ? "becomes more likely" : "becomes less likely",
            "chosen-push",
          ],
          ["tokens that share the advantage", open.pieces.length],
        ]} />`
      : chosen && open.updated
        ? html`<${Worked} url=${url(sample, token)} />`
        : html`<${Empty} title="Choose a token">Its loss is computed here step by step, with the numbers of this update. Arrow keys move between tokens.<//>`}
  </div>`;
}

// One row per update. At the first update all ratios are 1, so nothing is clipped and the loss is 0.
export function UpdateTable({ updates }) {
  return html`<div class="scroll table" tabIndex="0" role="group" aria-label="One row per update">
    <table>
      <thead>
        <tr><th scope="col">update</th><th scope="col">loss</th><th scope="col">gradient norm</th><th scope="col">ratios</th><th scope="col">clipped</th></tr>
      </thead>
    <tbody>
      ${updates.map((update, place) => html`<tr><th scope="row">${place + 1}</th>
        <td class="num" data-number=${`loss-${place + 1}`}>${exact(update.loss, 3)}</td>
        <td class="num" data-number=${`norm-${place + 1}`}>${number(update.grad_norm)}</td>
        <td class="num">${exact(update.ratio_min, 3)} to ${exact(update.ratio_max, 3)}</td>
        <td class="num">${percent(update.clip_low + update.clip_high, 1)}</td></tr>`)}
    </tbody>
    </table>
    </div>`;
}
