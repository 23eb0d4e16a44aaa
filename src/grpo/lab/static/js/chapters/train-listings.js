// What is wrong with a published listing, run beside the engine.
import { html } from "htm/preact";
import { Code, Fetched, Numbers, Play, Slider, Table, param, useAnswer } from "../lesson.js";
import { exact, number, percent, signed } from "../format.js";
import { Link } from "../route.js";

function Bug({ place, title, line, children }) {
  return html`<div class="bug"><h3><span class="bug-number">${place}</span>${title}</h3>${line && html`<pre class="listing scroll" tabIndex="0" role="group" aria-label=${`Line: ${title}`}><code>${line}</code></pre>`}${children}</div>`;
}

export function Listings() {
  return html`<${ClipFraction} /><${Penalty} /><${EachSample} /><${SequenceRatio} /><${Modes} /><${Tokens} /><${Smaller} />`;
}

function ClipFraction() {
  const state = useAnswer("train", "clip_fractions", { epsilon: param("le", 0.2) });
  return html`<${Bug} place="1" title="A share of clipped tokens that counts the wrong ones" line="clipped = ratio != clipped_gain / A">
    <p>Where A is 0 it divides 0 by 0; “not a number” differs from everything, so a token that teaches nothing counts as clipped. It also counts ratios outside the range on the side where the clip removes no gradient.</p>
    <${Play} label="Clip fraction of a listing and of the engine"><${Slider} name="le" label="ε" min=${0.05} max=${0.6} step=${0.05} value=${0.2} show=${(value) => number(value, 2)} />
      <${Fetched} state=${state} height="16rem">${(data) => html`<${Table} label="Clipped or not" head=${["ratio", "A", "listing says", "engine says", "push on the token"]} rows=${data.rows.map((row) => [exact(row.ratio), signed(row.advantage, 1), row.listed ? (row.engine ? "clipped" : html`<b class="missed">clipped</b>`) : "free", row.engine ? "clipped" : "free", signed(row.push, 2)])} /><${Numbers} items=${[["listing's clip fraction", percent(data.listed, 0), null, "listed"], ["share without gradient for the clip", percent(data.engine, 0), null, "clipped"]]} />`}<//><//>
    <${Code} slug="train" source="listed_clip_fraction" /><${Code} slug="train" source="clip_fractions" /><//>`;
}

function Penalty() {
  const state = useAnswer("train", "penalty", {});
  return html`<${Bug} place="2" title="A KL penalty that does nothing" line="loss = loss + β * (logp - ref_logp)">
    <p>The difference of log-probabilities is a fine estimate of the KL's value (k1). As a loss its gradient is that of log π alone, whose mean is 0: it adds noise and no pull. Mean gradient on three answers, for a policy that has moved:</p>
    <${Fetched} state=${state} height="8rem">${(data) => html`<${Table} label="Mean gradient of three estimates used as a loss" head=${["estimate", "answer 1", "answer 2", "answer 3"]} rows=${Object.entries(data).map(([kind, values]) => [kind, ...values.map((value) => (Math.abs(value) < 1e-12 ? "0" : number(value, 4)))])} />`}<//>
    <p class="small"><${Link} to="/learn/loss">More on estimates of the KL, in the chapter on the loss<//></p><//>`;
}

function EachSample() {
  const state = useAnswer("train", "each", { lr: param("elr", 0.5), epochs: param("ee", 4) });
  return html`<${Bug} place="3" title="An optimizer step after every completion" line=${"for completion in batch:\n    loss_of(completion).backward()\n    optimizer.step()"}>
    <p>The group was compared as a whole, and then each completion moves the weights alone. Sixteen prompts with eight answers and four epochs are 512 steps instead of 4, and the later ones look back on a policy that has long moved on.</p>
    <${Play} label="One step per completion or per batch"><div class="knobs"><${Slider} name="elr" label="learning rate" min=${0.05} max=${2} step=${0.05} value=${0.5} show=${(value) => number(value, 2)} /><${Slider} name="ee" label="epochs" min=${1} max=${8} step=${1} value=${4} /></div>
      <${Fetched} state=${state} height="8rem">${(data) => html`<${Table} label="What a batch of eight did" head=${["", "steps", "smallest ratio", "largest ratio", "share clipped"]} rows=${[["after every completion", data.each], ["once per batch", data.batch]].map(([name, row]) => [name, row.updates, number(row.ratio_min, 2), number(row.ratio_max, 2), percent(row.clipped)])} />`}<//><//>
    <${Code} slug="train" source="steps_per_sample" /><//>`;
}

function SequenceRatio() {
  const state = useAnswer("train", "sequence", { tokens: param("st", 200), percent: param("sp", 0.5) });
  return html`<${Bug} place="4" title="One ratio for the whole completion, clipped like a token's" line="logp_of_completion = logp_of_its_tokens.sum()">
    <p>Summed log-probabilities make the product of all token ratios. The longer the answer, the smaller the change of each token that leaves 1 ± 0.2; then the whole completion is clipped at once.</p>
    <${Play} label="Ratio of a sequence"><div class="knobs"><${Slider} name="st" label="tokens" min=${1} max=${1000} step=${1} value=${200} /><${Slider} name="sp" label="each token more likely by" min=${0.05} max=${5} step=${0.05} value=${0.5} show=${(value) => `${number(value, 2)} %`} /></div>
      <${Fetched} state=${state} height="6rem">${(data) => html`<${Numbers} items=${[["ratio of a token", number(data.token_ratio, 4)], ["ratio of the completion", number(data.sequence_ratio, 2), null, "sequence-ratio"], ["clipped from", `${number(data.tokens_to_clip, 0)} tokens on`]]} />`}<//><//>
    <p class="small soft">A ratio per completion is a fair choice if it is the geometric mean over tokens: <code>--algorithm gspo</code>.</p><//>`;
}

function Modes() {
  const state = useAnswer("train", "modes", { dropout: param("drop", 0.1) });
  return html`<${Bug} place="5" title="Old in one mode, new in another" line=${"old = logp(model_as_it_samples, text)\nnew = logp(model_in_training_mode, text)"}>
    <p>The old log-probabilities come from a model as it was generated with, the new ones from training mode. With dropout they differ before anything was learned.</p>
    <${Play} label="Ratios without any update"><${Slider} name="drop" label="dropout" min=${0} max=${0.5} step=${0.05} value=${0.1} show=${(value) => percent(value)} /><${Fetched} state=${state} height="6rem">${(data) => html`<${Numbers} items=${[["smallest ratio", data.ratio_min], ["largest ratio", data.ratio_max], ["outside 1 ± 0.2", percent(data.outside, 1)]]} />`}<//><//><//>`;
}

function Tokens() {
  return html`<${Bug} place="6" title="Text instead of tokens" line=${"text = decode(sampled_tokens)\n…\ntokens = encode(prompt + text)"}>
    <p>What was sampled is a list of tokens. Decoded and encoded again it may be another list: words merge at the border between prompt and answer, and if special tokens are dropped the end of the answer is never trained, so the model does not learn to stop. The ratio then compares different tokens. Here tokens travel from sampler to loss as they are, and <code>sampler_gap</code> measures that both sides agree.</p><//>`;
}

function Smaller() {
  const state = useAnswer("train", "mean_advantage", {});
  return html`<${Bug} place="7" title="Smaller things">
    <ul class="bugs-small">
      <li>The Rust version reports the mean advantage. ${state.data ? html`Of ${state.data.groups} random groups it is ${Math.abs(state.data.mean) < 1e-12 ? "0" : exact(state.data.mean)}` : "It is 0"}: it cannot be anything else.</li>
      <li>A group of one has the std “not a number”, in both versions, and takes all weights with it.</li>
      <li>The std in its formula divides by G, in its code by G − 1.</li>
      <li>Old log-probabilities are computed with gradients on whenever the model is in training mode: memory for nothing.</li>
      <li>The “efficient batch” version ends before the forward pass and returns nothing.</li>
      <li>Nothing masks answers that were cut off, and a reward model is assumed; with a checker there is none.</li>
    </ul><//>`;
}
