// Ratio and clip: two explorers, the ratios of a recorded run, and the clip fraction.
import { html } from "htm/preact";
import { exact, number, percent, signed, tick } from "../format.js";
import { Term } from "../glossary.js";
import { Choice, Code, Equation, Fetched, Figure, Misconception, Numbers, Only, param, Play, Question, Section, Slider, Table, useAnswer, useDepth, Verdict } from "../lesson.js";

const signs = [["1", "better than its group"], ["-1", "worse"]];
const limitsOf = () => ({ low: param("low", 0.2), high: param("high", 0.2) });

export function Ratio() {
  const state = useAnswer("loss", "ratio", { old: param("old", 0.3), new: param("new", 0.45), advantage: param("ra", "1"), ...limitsOf() });
  const cards = useAnswer("loss", "cards", { ...limitsOf() });
  const exactly = useDepth() !== "intuition";
  return html`<${Section} title="The ratio: how much has a token's probability changed?" id="ratio" lead=${html`After the first update a token is more or less likely than when it was sampled. Their quotient is the <${Term} of="ratio">ratio<//>.`}>
    <${Only} depth="math"><${Equation} tex="\\rho_{t}=\\frac{\\pi_\\theta(o_t\\mid q,o_{<t})}{\\pi_{\\text{old}}(o_t\\mid q,o_{<t})}=e^{\\log\\pi_\\theta-\\log\\pi_{\\text{old}}}" spoken="rho equals the token's probability under the policy now, divided by that under the policy before the first update" /><//>
    <${Play} label="Ratio explorer">
      <div class="knobs"><${Slider} name="old" label="probability when sampled" min=${0.01} max=${0.99} step=${0.01} value=${0.3} show=${(v) => percent(v)} />
        <${Slider} name="new" label="probability now" min=${0.01} max=${0.99} step=${0.01} value=${0.45} show=${(v) => percent(v)} />
        <${Choice} name="ra" label="its answer" options=${signs} value="1" /></div>
      <${Fetched} state=${state} height="19rem">${(data) => html`
        <${Numbers} items=${[["ratio", exact(data.ratio, 4), null, "ratio"], exactly && ["counts as", exact(Math.abs(data.value), 4), "gain ÷ advantage", "ratio-counts"], exactly && ["gain", exact(data.value, 4), null, "ratio-gain"], ["push", signed(data.push, 3), data.held ? "stopped by the clip" : "ratio × advantage", "ratio-push"]].filter(Boolean)} />
        <${Figure} label="Gain and push over the token's probability now" height=${200} deps=${[JSON.stringify(data), exactly]} legend=${[...(exactly ? [["gain", "var(--c1)"]] : []), ["push", "var(--c3)"]]}
          build=${(Plot) => ({
            x: { label: "probability now", tickFormat: (v) => percent(v) },
            y: { grid: true, label: exactly ? "gain and push" : "push", ticks: 5, tickFormat: tick },
            marks: [
              Plot.rectY([data.edges], { x1: (d) => d[0], x2: (d) => d[1], y1: Math.min(...data.curve.value, 0), y2: Math.max(...data.curve.value, 0), fill: "var(--c1)", fillOpacity: 0.08 }),
              Plot.ruleX([data.old], { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
              Plot.ruleY([0], { stroke: "var(--line-strong)" }),
              ...(exactly ? [Plot.lineY(data.curve.new, { x: (d) => d, y: (_, i) => data.curve.value[i], stroke: "var(--c1)", strokeWidth: 2 }), Plot.dot([data], { x: "new", y: "value", r: 5, fill: "var(--c1)" })] : []),
              Plot.lineY(data.curve.new, { x: (d) => d, y: (_, i) => data.curve.push[i], stroke: "var(--c3)", strokeWidth: 2 }),
              Plot.dot([data], { x: "new", y: "push", r: 5, fill: "var(--c3)" }),
            ],
          })}
          table=${{ columns: ["probability now", "gain", "push"], rows: data.curve.new.map((p, i) => [p, data.curve.value[i], data.curve.push[i]]) }} />
        <p class="small soft">Shaded: the ratio is between ${exact(data.limits[0], 3)} and ${exact(data.limits[1], 3)}.</p>`}<//>
    <//>
    ${exactly && html`<${Fetched} state=${cards} height="8rem">${(rows) => html`<div class="cards">${rows.map((card) => html`<div class="mini"><p class="mini-big num">ρ = ${exact(card.ratio, 2)}</p><p class="small">${percent(card.old)} → ${percent(card.new)}: ${card.ratio === 1 ? "unchanged" : card.ratio > 1 ? "1.5 times as likely" : "half as likely"}.</p><p class="small soft">Push with A = 1: <b class="num">${signed(card.push_up, 2)}</b>, with A = −1: <b class="num">${signed(card.push_down, 2)}</b>.</p></div>`)}</div>`}<//>`}
  <//>`;
}

export function Clip() {
  const params = { ratio: param("rho", 1.5), advantage: param("ca", "1"), surrogate: param("surrogate", "clip"), cap: param("surrogate", "clip") === "weight" ? 2 : param("cap", 0), ...limitsOf() };
  const state = useAnswer("loss", "clip", params);
  const exactly = useDepth() !== "intuition";
  return html`<${Section} title="The clip: a limit on each batch's change" id="clip" lead=${html`A token that has moved a fifth in its direction gets no further push from this batch: the <${Term} of="clip">clip<//>.`}>
    <${Question} name="q-clip" ask="A token of a bad answer has become 1.5 times as likely. Does the clip stop its push?" options=${[["yes", "Yes: it moved by more than a fifth"], ["no", "No: it is still pushed down"]]}>${(picked) => html`<${Asked} picked=${picked} />`}<//>
    <${Only} depth="math"><${Equation} tex="\\ell_t=-\\min\\big(\\rho_tA,\\ \\text{clip}(\\rho_t,1-\\varepsilon,1+\\varepsilon)\\,A\\big)" spoken="the loss of a token is minus the smaller of rho times A and clipped rho times A" /><//>
    <${Play} label="Clip explorer">
      <div class="knobs"><${Slider} name="rho" label="ratio" min=${0.05} max=${2.5} step=${0.05} value=${1.5} show=${(v) => number(v, 2)} />
        <${Choice} name="ca" label="advantage" options=${[["1", "+1"], ["-1", "−1"], ["0", "0"]]} value="1" />
        ${exactly && html`
        <${Slider} name="low" label="clip below, ε" min=${0} max=${0.9} step=${0.05} value=${0.2} show=${(v) => number(v, 2)} />
        <${Slider} name="high" label="clip above, ε" min=${0} max=${1} step=${0.05} value=${0.2} show=${(v) => number(v, 2)} />
        <${Choice} name="surrogate" label="surrogate" options=${[["clip", "clip"], ["plain", "no clip"], ["gate", "soft gate"], ["weight", "weight, cap 2"]]} value="clip" />`}</div>
      <${Fetched} state=${state} height="19rem">${(data) => html`
        <${Numbers} items=${[["push", signed(data.push, 3), data.held ? "stopped by the clip" : data.advantage === 0 ? "no advantage, no push" : params.surrogate === "clip" ? "ratio × advantage" : null, "clip-push"], exactly && ["gain", exact(data.value, 4)], exactly && ["range", `${exact(data.limits[0], 3)} to ${exact(data.limits[1], 3)}`]].filter(Boolean)} />
        <div class=${exactly ? "pair" : ""}>${exactly && html`<${Curve} data=${data} name="value" title="gain" colour="var(--c1)" />`}<${Curve} data=${data} name="push" title="push" colour="var(--c3)" /></div>`}<//>
    <//>
    <${Only} depth="math code"><${Regions} state=${state} /><//>
    <${Only} depth="code"><${Code} slug="loss" source="clip" title="The clip itself" /><${Code} slug="loss" source="at_ratio" title="Value and gradient at a ratio" /><//>
  <//>`;
}

function Curve({ data, name, title, colour }) {
  const values = data.curve[name];
  return html`<${Figure} label=${`${title} over the ratio`} height=${190} deps=${[JSON.stringify(data), name]}
    build=${(Plot) => ({
      x: { label: "ratio", ticks: 5 },
      y: { grid: true, label: title, ticks: 5, tickFormat: tick },
      marks: [
        Plot.ruleX(data.limits, { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
        Plot.ruleY([0], { stroke: "var(--line-strong)" }),
        Plot.lineY(data.curve.ratio, { x: (d) => d, y: (_, i) => values[i], stroke: colour, strokeWidth: 2 }),
        Plot.dot([data], { x: "ratio", y: name, r: 5, fill: colour }),
      ],
    })}
    table=${{ columns: ["ratio", title], rows: data.curve.ratio.map((ratio, i) => [ratio, values[i]]) }} />`;
}

function Regions({ state }) {
  const where = { below: "below the range", inside: "inside", above: "above the range" };
  return html`<h3>Six regions; two are flat</h3><${Fetched} state=${state} height="14rem">${(data) => html`<${Table} label="Regions of the clip" head=${["", "example ρ", "gain", "push", ""]} rows=${data.regions.filter((row) => row.sign).map((row) => [`A ${row.sign > 0 ? "> 0" : "< 0"}, ${where[row.where]}`, row.ratio, row.value, row.push, row.held ? html`<b>flat: no gradient</b>` : row.where === "inside" ? "as without a clip" : row.sign > 0 === (row.where === "below") ? "pushed back towards the range" : "as without a clip"])} foot="The minimum of two terms is used, so the clip can only lower a gain. Where the ratio moved the wrong way, the unclipped term is smaller and its gradient remains." />`}<//>`;
}

export function Histogram() {
  const state = useAnswer("loss", "histogram", limitsOf());
  return html`<${Section} title="The clip does not bound the ratio" id="overshoot" depth="math code" lead="The clip sets gradients to 0; it does not limit ratios. A clipped token still moves when other tokens change the shared weights.">
    <${Play} label="Ratios of a recorded run">
      <${Fetched} state=${state} height="20rem">${(data) => html`
        <${Figure} label="Ratios of the recorded tokens that moved" height=${210} deps=${[JSON.stringify(data.limits)]} legend=${[["inside the range", "var(--c1)", "square"], ["outside it", "var(--below)", "square"]]}
          build=${(Plot) => ({
            x: { label: "ratio at the last update", ticks: 7 },
            y: { grid: true, label: "tokens", type: "symlog", ticks: [0, 1, 10, 100, 1000], tickFormat: tick },
            marks: [
              Plot.rectY(data.bins.filter((bin) => bin.count), { x1: "from", x2: "to", y: "count", inset: 0.5, fill: (bin) => (bin.to <= data.limits[0] + 1e-9 || bin.from >= data.limits[1] - 1e-9 ? "var(--below)" : "var(--c1)") }),
              Plot.ruleX(data.limits, { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
            ],
          })}
          table=${{ columns: ["from", "to", "tokens"], rows: data.bins.map((bin) => [bin.from, bin.to, bin.count]) }} />
        <${Numbers} items=${[["tokens recorded", data.tokens], ["moved by less than a thousandth", percent(data.still / data.tokens, 1)], ["outside the range", data.outside, null, "outside"], ["of these, gradient clipped to 0", data.clip_low + data.clip_high, null, "held"], ["smallest ratio", exact(data.smallest, 3)], ["largest ratio", exact(data.largest, 3)]]} />
        <p class="small soft">The recorded run that ships with the lab, with eight updates per batch. Ratios are those of the last update. The range is set by ε above.</p>`}<//>
    <//>
    <${Misconception} name="no-clipping" claim="GRPO drops PPO's clipping; that makes it simple.">
      <${PresetClipped} />
    <//>
  <//>`;
}

function PresetClipped() {
  const state = useAnswer("loss", "own", { updates: 8, lr: 0.001 });
  return html`<${Fetched} state=${state} height="8rem">${({ updates }) => {
    const last = updates.at(-1);
    return html`<p>Eight updates on four answers with the preset <code>grpo</code>: at the last update the clip sets the gradient of <b class="num" data-number="preset-clipped">${percent(last.clip_low + last.clip_high, 1)}</b> of the tokens to 0. GRPO drops PPO's critic and keeps its clip. The range is <code>loss.clip_low</code> and <code>loss.clip_high</code>.</p>
      <p class="soft small">With one update per batch the clip has no effect: see “Does the loss show progress?” below.</p>`;
  }}<//>`;
}

function Asked({ picked }) {
  const state = useAnswer("loss", "clip", { ratio: 1.5, advantage: -1 });
  return html`<${Fetched} state=${state} height="4rem">${(data) => html`<${Verdict} picked=${picked} right=${data.held ? "yes" : "no"}><p>The push is <b class="num">${signed(data.push, 2)}</b>: ratio × advantage. The clip stops tokens that moved far enough in the right direction, never those that moved the wrong way.</p><${Only} depth="math code"><p class="small soft">Minus 1.5 is smaller than minus 1.2, so the minimum selects the unclipped term.</p><//><//>`}<//>`;
}

export function Fraction() {
  const state = useAnswer("loss", "fraction", { advantage: param("fa", "0") });
  return html`<${Section} title="The clip fraction" id="fraction" depth="math code" lead="A common line of code divides the clipped gain by the advantage and counts a token as clipped where the result differs from the ratio. It counts three cases that are not clipping.">
    <${Only} depth="code"><${Code} slug="loss" source="listed_clip_fraction" open=${true} title="The comparison and its errors" /><//>
    <${Play} label="Two counts">
      <${Choice} name="fa" label="advantage of five tokens with ratios 0.7, 0.9, 1, 1.1 and 1.5" options=${[["0", "A = 0"], ["1", "A = +1"], ["-1", "A = −1"]]} value="0" />
      <${Fetched} state=${state} height="10rem">${(data) => html`
        <${Numbers} items=${[["by comparison", percent(data.by_comparison), null, "by_comparison"], ["by gradients set to 0", percent(data.by_gradient), "as in grpo.core", "by_gradient"]]} />
        <ul class="points"><li><b>A = 0.</b> 0 divided by 0 is NaN, which equals nothing: every token of a group without signal counts as clipped.</li><li><b>The wrong side.</b> With A = −1 the token at 1.5 is counted as clipped, although its push is ${signed(data.advantage === -1 ? data.pushes[4] : -1.5, 2)}.</li><li><b>Rounding.</b> After multiplication and division by A in float32, <b class="num" data-number="rounding">${percent(data.rounding, 1)}</b> of 10,000 ratios inside the range differ from their original value.</li></ul>`}<//>
    <//>
    <${Fetched} state=${state} height="4rem">${(data) => html`<p>A clip fraction of 10% to 30% is sometimes called typical. It depends on the number of updates per batch and on the learning rate. With one update it is exactly 0. The recorded run learned well with eight updates and had <b class="num" data-number="recorded-share">${percent(data.recorded, 2)}</b> on average.</p>`}<//>
  <//>`;
}

export function Levels() {
  const state = useAnswer("loss", "levels", { length: param("length", 20), drift: param("shift", 0.02), jump: param("jump", 0.5) });
  return html`<${Section} title="One ratio per token, or one per answer" id="levels" depth="math code" lead="The ratio of a whole answer is the product of its tokens' ratios. A product of many numbers near 1 can be far from 1.">
    <${Play} label="Sequence or token">
      <div class="knobs"><${Slider} name="length" label="tokens in the answer" min=${1} max=${200} step=${1} value=${20} />
        <${Slider} name="shift" label="change of each token's log-probability" min=${-0.1} max=${0.1} step=${0.005} value=${0.02} />
        <${Slider} name="jump" label="additional change of one token" min=${-2} max=${2} step=${0.1} value=${0.5} show=${(v) => number(v, 1)} /></div>
      <${Fetched} state=${state} height="12rem">${(data) => {
        const held = data.token_pushes.filter((push) => push === 0).length;
        return html`<${Table} label="Three ratios" head=${["ratio", "value", "effect of the clip, A = 1"]} rows=${[
          [html`per token <span class="soft">(GRPO)</span>`, `${exact(Math.min(...data.token_ratios), 4)} to ${exact(Math.max(...data.token_ratios), 4)}`, `${held} of ${data.length} tokens lose their push`],
          [html`per answer: geometric mean <span class="soft">(GSPO)</span>`, exact(data.sequence_ratio, 4), data.sequence_pushes[0] === 0 ? "the whole answer loses its push" : "no token loses its push"],
          [html`per answer: product <span class="soft">(sum of log-probabilities)</span>`, exact(data.product_ratio, 4), data.product_held ? "the whole answer loses its push" : "no token loses its push"],
        ]} foot="Some published code sums log-probabilities over an answer and clips that ratio at 1 ± 0.2. With 200 tokens, a change of 0.001 per token already exceeds this range." />`;
      }}<//>
    <//>
    <${Only} depth="math"><${Equation} tex="\\rho_{\\text{token}}=e^{d_t},\\qquad \\rho_{\\text{GSPO}}=e^{\\frac1{|o|}\\sum_t d_t},\\qquad \\rho_{\\text{product}}=e^{\\sum_t d_t},\\qquad d_t=\\log\\pi_\\theta(o_t)-\\log\\pi_{\\text{old}}(o_t)" spoken="three ratios: e to the d of each token, e to the mean of d, e to the sum of d" /><//>
    <${Only} depth="code"><${Code} slug="loss" source="policy_ratio" /><//>
  <//>`;
}
