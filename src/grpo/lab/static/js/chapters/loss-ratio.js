// The ratio of a token, and of a whole answer.
import { html } from "htm/preact";
import { cliff } from "../chart/cliff.js";
import { exact, number, percent, signed, tick } from "../format.js";
import { Term } from "../glossary.js";
import { Choice, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Section, Slider, Table, useAnswer, useDepth } from "../lesson.js";
import { limitsOf } from "./loss-clip.js";

const signs = [["1", "better than its group"], ["-1", "worse"]];

export function Ratio() {
  const state = useAnswer("loss", "ratio", { old: param("old", 0.3), new: param("new", 0.45), advantage: param("ra", "1"), ...limitsOf() });
  const cards = useAnswer("loss", "cards", { ...limitsOf() });
  const exactly = useDepth() !== "intuition";
  return html`<${Section} title="The ratio: how much has a token's probability changed?" id="ratio"
    lead=${html`After the first update a token is more or less likely than when it was sampled. Their quotient is the <${Term} of="ratio">ratio<//>.`}>
    <${Only} depth="math">
      <${Equation} tex="\\rho_{t}=\\frac{\\pi_\\theta(o_t\\mid q,o_{<t})}{\\pi_{\\text{old}}(o_t\\mid q,o_{<t})}=e^{\\log\\pi_\\theta-\\log\\pi_{\\text{old}}}"
        spoken="rho equals the token's probability under the policy now, divided by that under the policy before the first update" />
    <//>
    <${Play} label="Ratio explorer">
      <div class="knobs"><${Slider} name="old" label="probability when sampled" min=${0.01} max=${0.99} step=${0.01} value=${0.3} show=${(v) => percent(v)} />
        <${Slider} name="new" label="probability now" min=${0.01} max=${0.99} step=${0.01} value=${0.45} show=${(v) => percent(v)} />
        <${Choice} name="ra" label="its answer" options=${signs} value="1" /></div>
      <${Fetched} state=${state} height="19rem">${(data) => html`
        <${Numbers}
          items=${[
            ["ratio", exact(data.ratio, 4), null, "ratio"],
            exactly && ["counts as", exact(Math.abs(data.value), 4), "gain ÷ advantage", "ratio-counts"],
            exactly && ["gain", exact(data.value, 4), null, "ratio-gain"],
            ["push", signed(data.push, 3), data.held ? "stopped by the clip" : "ratio × advantage", "ratio-push"],
          ].filter(Boolean)} />
        <${Figure} label="Gain and push over the token's probability now" height=${200} deps=${[JSON.stringify(data), exactly]}
          legend=${[...(exactly ? [["gain", "var(--c1)"]] : []), ["push", "var(--c3)"]]}
          build=${(Plot) => ({
            x: { label: "probability now", tickFormat: (v) => percent(v) },
            y: { grid: true, label: exactly ? "gain and push" : "push", ticks: 5, tickFormat: tick },
            marks: [
              Plot.rectY([data.edges], {
                x1: (d) => d[0],
                x2: (d) => d[1],
                y1: Math.min(...data.curve.value, 0),
                y2: Math.max(...data.curve.value, 0),
                fill: "var(--c1)",
                fillOpacity: 0.08,
              }),
              Plot.ruleX([data.old], { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
              Plot.ruleY([0], { stroke: "var(--line-strong)" }),
              ...(exactly
                ? [
                  Plot.lineY(data.curve.new, { x: (d) => d, y: (_, i) => data.curve.value[i], stroke: "var(--c1)", strokeWidth: 2 }),
                  Plot.dot([data], { x: "new", y: "value", r: 5, fill: "var(--c1)" }),
                ]
                : []),
              Plot.lineY(cliff(data.curve.new, data.curve.push, data.edges), { x: "at", y: "push", stroke: "var(--c3)", strokeWidth: 2 }),
              Plot.dot([data], { x: "new", y: "push", r: 5, fill: "var(--c3)" }),
            ],
          })}
          table=${{ columns: ["probability now", "gain", "push"], rows: data.curve.new.map((p, i) => [p, data.curve.value[i], data.curve.push[i]]) }} />
        <p class="small soft">Shaded: the ratio is between ${exact(data.limits[0], 3)} and ${exact(data.limits[1], 3)}.</p>`}<//>
    <//>
    ${exactly && html`<${Fetched} state=${cards} height="8rem">
      ${(rows) => html`<div class="cards">
        ${rows.map((card) => html`<div class="mini"><p class="mini-big num">ρ = ${exact(card.ratio, 2)}</p>
          <p class="small">
            ${percent(card.old)} → ${percent(card.new)}: ${card.ratio === 1 ? "unchanged" : card.ratio > 1 ? "1.5 times as likely" : "half as likely"}.</p>
          <p class="small soft">Push with A = 1: <b class="num">${signed(card.push_up, 2)}</b>, with A =
            −1: <b class="num">${signed(card.push_down, 2)}</b>.</p>
        </div>`)}
      </div>`}
    <//>`}
  <//>`;
}

export function Levels() {
  const state = useAnswer("loss", "levels", { length: param("length", 20), drift: param("shift", 0.02), jump: param("jump", 0.5) });
  return html`<${Section} title="One ratio per token, or one per answer" id="levels" depth="math code"
    lead="The ratio of a whole answer is the product of its tokens' ratios. A product of many numbers near 1 can be far from 1.">
    <${Play} label="Sequence or token">
      <div class="knobs"><${Slider} name="length" label="tokens in the answer" min=${1} max=${200} step=${1} value=${20} />
        <${Slider} name="shift" label="change of each token's log-probability" min=${-0.1} max=${0.1} step=${0.005} value=${0.02} />
        <${Slider} name="jump" label="additional change of one token" min=${-2} max=${2} step=${0.1} value=${0.5} show=${(v) => number(v, 1)} /></div>
      <${Fetched} state=${state} height="12rem">${(data) => {
        const held = data.token_pushes.filter((push) => push === 0).length;
        return html`<${Table} label="Three ratios" head=${["ratio", "value", "effect of the clip, A = 1"]} rows=${[
          [
            html`per token <span class="soft">(GRPO)</span>`,
            `${exact(Math.min(...data.token_ratios), 4)} to ${exact(Math.max(...data.token_ratios), 4)}`,
            `${held} of ${data.length} tokens lose their push`,
          ],
          [
            html`per answer: geometric mean <span class="soft">(GSPO)</span>`,
            exact(data.sequence_ratio, 4),
            data.sequence_pushes[0] === 0 ? "the whole answer loses its push" : "no token loses its push",
          ],
          [
            html`per answer: product <span class="soft">(sum of log-probabilities)</span>`,
            exact(data.product_ratio, 4),
            data.product_held ? "the whole answer loses its push" : "no token loses its push",
          ],
        ]}
        foot=${"Some published code sums log-probabilities over an answer and clips that ratio at 1 ± 0.2. With 200 tokens, a change of 0.001 per token " +
          "already exceeds this range."} />`;
      }}<//>
    <//>
    <${Only} depth="math">
      <${Equation}
        tex=${"\\rho_{\\text{token}}=e^{d_t},\\qquad \\rho_{\\text{GSPO}}=e^{\\frac1{|o|}\\sum_t d_t},\\qquad \\rho_{\\text{product}}=e^{\\sum_t " +
          "d_t},\\qquad d_t=\\log\\pi_\\theta(o_t)-\\log\\pi_{\\text{old}}(o_t)"}
        spoken="three ratios: e to the d of each token, e to the mean of d, e to the sum of d" />
    <//>
    <${Only} depth="code"><${Code} slug="loss" source="policy_ratio" /><//>
  <//>`;
}
