// Errors in a published trainer, run next to this trainer's functions.
import { html } from "htm/preact";
import { Code, Fetched, Numbers, Play, Slider, Table, param, useAnswer } from "../lesson.js";
import { exact, number, percent, signed } from "../format.js";
import { Link } from "../route.js";

function Bug({ place, title, line, children }) {
  return html`<div class="bug"><h3><span class="bug-number">${place}</span>${title}</h3>
    ${line && html`<pre class="listing scroll" tabIndex="0" role="group" aria-label=${`Line: ${title}`}><code>${line}</code></pre>`}${children}</div>`;
}

export function Listings() {
  return html`<${ClipFraction} /><${Penalty} /><${EachSample} /><${SequenceRatio} /><${Modes} /><${Tokens} /><${Smaller} />`;
}

function ClipFraction() {
  const state = useAnswer("train", "clip_fractions", { epsilon: param("le", 0.2) });
  return html`<${Bug} place="1" title="A clip fraction that counts the wrong tokens" line="clipped = ratio != clipped_gain / A">
    <p>With A = 0 it divides 0 by 0. NaN differs from every number, so a token without signal counts as clipped. It also counts ratios outside the range on the
      side where the clip removes no gradient.</p>
    <${Play} label="Clip fraction: published code and grpo.core">
      <${Slider} name="le" label="ε" min=${0.05} max=${0.6} step=${0.05} value=${0.2} show=${(value) => number(value, 2)} />
      <${Fetched} state=${state} height="16rem">
        ${(data) => html`<${Table} label="Clipped or not" head=${["ratio", "A", "published code", "grpo.core", "push on the token"]}
          rows=${data.rows.map((row) => [
            exact(row.ratio),
            signed(row.advantage, 1),
            row.listed ? (row.trainer ? "clipped" : html`<b class="missed">clipped</b>`) : "not clipped",
            row.trainer ? "clipped" : "not clipped",
            signed(row.push, 2),
          ])} />
          <${Numbers}
            items=${[
              ["clip fraction, published code", percent(data.listed, 0), null, "listed"],
              ["share of gradients set to 0 by the clip", percent(data.trainer, 0), null, "clipped"],
            ]} />`}
      <//>
    <//>
    <${Code} slug="train" source="listed_clip_fraction" /><${Code} slug="train" source="clip_fractions" /><//>`;
}

function Penalty() {
  const state = useAnswer("train", "penalty", {});
  return html`<${Bug} place="2" title="A KL penalty without effect" line="loss = loss + β * (logp - ref_logp)">
    <p>The difference of log-probabilities (k1) is an unbiased estimate of the KL. Its gradient as a loss is ∇log π, which has mean 0: it adds noise and no
      penalty. Mean gradient over three answers, for a policy away from the reference:</p>
    <${Fetched} state=${state} height="8rem">
      ${(data) => html`<${Table} label="Mean gradient of three estimates used as a loss" head=${["estimate", "answer 1", "answer 2", "answer 3"]}
        rows=${Object.entries(data).map(([kind, values]) => [kind, ...values.map((value) => (Math.abs(value) < 1e-12 ? "0" : number(value, 4)))])} />`}
    <//>
    <p class="small"><${Link} to="/learn/loss">KL estimates in chapter 4<//></p><//>`;
}

function EachSample() {
  const state = useAnswer("train", "each", { lr: param("elr", 0.5), epochs: param("ee", 4) });
  return html`<${Bug} place="3" title="An optimizer step after every completion"
    line=${"for completion in batch:\n    loss_of(completion).backward()\n    optimizer.step()"}>
    <p>Advantages are computed for the whole group, but each completion then updates the weights separately. Sixteen prompts with eight answers and four epochs
      make 512 optimizer steps instead of 4, and the later ones are far off-policy.</p>
    <${Play} label="One step per completion or per batch">
      <div class="knobs"><${Slider} name="elr" label="learning rate" min=${0.05} max=${2} step=${0.05} value=${0.5} show=${(value) => number(value, 2)} />
        <${Slider} name="ee" label="epochs" min=${1} max=${8} step=${1} value=${4} /></div>
      <${Fetched} state=${state} height="8rem">
        ${(data) => html`<${Table} label="Ratios after a batch of eight" head=${["", "steps", "smallest ratio", "largest ratio", "clip fraction"]}
          rows=${[["after every completion", data.each], ["once per batch", data.batch]].map(([name, row]) => [
            name, row.updates, number(row.ratio_min, 2), number(row.ratio_max, 2), percent(row.clipped),
          ])} />`}
      <//>
    <//>
    <${Code} slug="train" source="steps_per_sample" /><//>`;
}

function SequenceRatio() {
  const state = useAnswer("train", "sequence", { tokens: param("st", 200), percent: param("sp", 0.5) });
  return html`<${Bug} place="4" title="One ratio for the whole completion, clipped like a token's" line="logp_of_completion = logp_of_its_tokens.sum()">
    <p>Summing log-probabilities gives the product of all token ratios. In a long answer a small change of each token moves this product outside 1 ± 0.2, and
      the whole completion is clipped at once.</p>
    <${Play} label="Ratio of a sequence">
      <div class="knobs"><${Slider} name="st" label="tokens" min=${1} max=${1000} step=${1} value=${200} />
        <${Slider} name="sp" label="increase of each token's probability" min=${0.05} max=${5} step=${0.05} value=${0.5}
          show=${(value) => `${number(value, 2)} %`} />
      </div>
      <${Fetched} state=${state} height="6rem">
        ${(data) => html`<${Numbers}
          items=${[
            ["ratio of a token", number(data.token_ratio, 4)],
            ["ratio of the completion", number(data.sequence_ratio, 2), null, "sequence-ratio"],
            ["clipped if longer than", `${number(data.tokens_to_clip, 0)} tokens`],
          ]} />`}
      <//>
    <//>
    <p class="small soft">One ratio per completion works if it is the geometric mean over tokens: <code>--algorithm gspo</code>.</p><//>`;
}

function Modes() {
  const state = useAnswer("train", "modes", { dropout: param("drop", 0.1) });
  return html`<${Bug} place="5" title="Old and new log-probabilities in different modes"
    line=${"old = logp(model_as_it_samples, text)\nnew = logp(model_in_training_mode, text)"}>
    <p>The old log-probabilities are computed in evaluation mode, the new ones in training mode. With dropout they differ before the first update.</p>
    <${Play} label="Ratios without any update">
      <${Slider} name="drop" label="dropout" min=${0} max=${0.5} step=${0.05} value=${0.1} show=${(value) => percent(value)} />
      <${Fetched} state=${state} height="6rem">
        ${(data) => html`<${Numbers}
          items=${[["smallest ratio", data.ratio_min], ["largest ratio", data.ratio_max], ["outside 1 ± 0.2", percent(data.outside, 1)]]} />`}
      <//>
    <//>
    <//>`;
}

function Tokens() {
  return html`<${Bug} place="6" title="Re-encoded text instead of sampled tokens" line=${"text = decode(sampled_tokens)\n…\ntokens = encode(prompt + text)"}>
    <p>Decoding and encoding again can change the tokens: pieces merge at the border between prompt and answer. If special tokens are dropped, the end of the
      answer is never trained, so the model does not learn to stop. The ratio then compares different tokens. In this trainer tokens go from sampler to loss
      unchanged, and the metric <code>sampler_gap</code> measures the agreement.</p>
    <//>`;
}

function Smaller() {
  const state = useAnswer("train", "mean_advantage", {});
  return html`<${Bug} place="7" title="Smaller errors">
    <ul class="bugs-small">
      <li>The Rust version reports the mean advantage, which is always
        0. ${state.data ? html`Over ${state.data.groups} random groups it is ${Math.abs(state.data.mean) < 1e-12 ? "0" : exact(state.data.mean)}.` : ""}</li>
      <li>In both versions the std of a group of one is NaN, which makes all weights NaN.</li>
      <li>The std divides by G in the formula and by G − 1 in the code.</li>
      <li>Old log-probabilities are computed with gradients enabled, which wastes memory.</li>
      <li>The “efficient batch” version ends before the forward pass and returns nothing.</li>
      <li>Truncated answers are not masked, and the code requires a reward model even with a checker.</li>
    </ul><//>`;
}
