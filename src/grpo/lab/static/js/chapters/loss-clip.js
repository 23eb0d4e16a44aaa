// The clip: an explorer, the ratios of a recorded run, and the clip fraction.
import { html } from "htm/preact";
import { cliff } from "../chart/cliff.js";
import { exact, number, percent, signed, tick } from "../format.js";
import { Term } from "../glossary.js";
import {
  Choice, Code, Equation, Fetched, Figure, Misconception, Numbers, Only, param, Play, Question, Section, Slider, Table, useAnswer, useDepth, Verdict,
} from "../lesson.js";

export const limitsOf = () => ({ low: param("low", 0.2), high: param("high", 0.2) });

export function Clip() {
  const params = {
    ratio: param("rho", 1.5),
    advantage: param("ca", "1"),
    surrogate: param("surrogate", "clip"),
    cap: param("surrogate", "clip") === "weight" ? 2 : param("cap", 0),
    ...limitsOf(),
  };
  const state = useAnswer("loss", "clip", params);
  const exactly = useDepth() !== "intuition";
  return html`<${Section} title="The clip: a limit on each batch's change" id="clip"
    lead=${html`A token that has moved a fifth in its direction gets no further push from this batch: the <${Term} of="clip">clip<//>.`}>
    <${Question} name="q-clip" ask="A token of a bad answer has become 1.5 times as likely. Does the clip stop its push?"
      options=${[["yes", "Yes: it moved by more than a fifth"], ["no", "No: it is still pushed down"]]}>
      ${(picked) => html`<${Asked} picked=${picked} />`}<//>
    <${Only} depth="math">
      <${Equation} tex="\\ell_t=-\\min\\big(\\rho_tA,\\ \\text{clip}(\\rho_t,1-\\varepsilon,1+\\varepsilon)\\,A\\big)"
        spoken="the loss of a token is minus the smaller of rho times A and clipped rho times A" />
    <//>
    <${Play} label="Clip explorer">
      <div class="knobs"><${Slider} name="rho" label="ratio" min=${0.05} max=${2.5} step=${0.05} value=${1.5} show=${(v) => number(v, 2)} />
        <${Choice} name="ca" label="advantage" options=${[["1", "+1"], ["-1", "−1"], ["0", "0"]]} value="1" />
        ${exactly && html`
        <${Slider} name="low" label="clip below, ε" min=${0} max=${0.9} step=${0.05} value=${0.2} show=${(v) => number(v, 2)} />
        <${Slider} name="high" label="clip above, ε" min=${0} max=${1} step=${0.05} value=${0.2} show=${(v) => number(v, 2)} />
        <${Choice} name="surrogate" label="surrogate" options=${[["clip", "clip"], ["plain", "no clip"], ["gate", "soft gate"], ["weight", "weight, cap 2"]]}
          value="clip" />`}
      </div>
      <${Fetched} state=${state} height="19rem">${(data) => html`
        <${Numbers}
          items=${[
            [
              "push", signed(data.push, 3),
              data.held ? "stopped by the clip" : data.advantage === 0 ? "no advantage, no push" : params.surrogate === "clip" ? "ratio × advantage" : null,
              "clip-push",
            ],
            exactly && ["gain", exact(data.value, 4)],
            exactly && ["range", `${exact(data.limits[0], 3)} to ${exact(data.limits[1], 3)}`],
          ].filter(Boolean)} />
        <div class=${exactly ? "pair" : ""}>${exactly && html`<${Curve} data=${data} name="value" title="gain" colour="var(--c1)" />`}
          <${Curve} data=${data} name="push" title="push" colour="var(--c3)" /></div>`}
      <//>
    <//>
    <${Only} depth="math code"><${Regions} state=${state} /><//>
    <${Only} depth="code"><${Code} slug="loss" source="clip" title="The clip itself" />
      <${Code} slug="loss" source="at_ratio" title="Value and gradient at a ratio" /><//>
  <//>`;
}

function Curve({ data, name, title, colour }) {
  const values = data.curve[name];
  return html`<${Figure} label=${`${title} over the ratio`} height=${190} deps=${[JSON.stringify(data), name]}
    build=${(Plot) => ({
      x: { label: `ratio (dotted: ${data.limits.map((limit) => exact(limit, 3)).join(" and ")})`, ticks: 5 },
      y: { grid: true, label: title, ticks: 5, tickFormat: tick },
      marks: [
        Plot.ruleX(data.limits, { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
        Plot.ruleY([0], { stroke: "var(--line-strong)" }),
        name === "push"
          ? Plot.lineY(cliff(data.curve.ratio, values, data.limits), { x: "at", y: "push", stroke: colour, strokeWidth: 2 })
          : Plot.lineY(data.curve.ratio, { x: (d) => d, y: (_, i) => values[i], stroke: colour, strokeWidth: 2 }),
        Plot.dot([data], { x: "ratio", y: name, r: 5, fill: colour }),
      ],
    })}
    table=${{ columns: ["ratio", title], rows: data.curve.ratio.map((ratio, i) => [ratio, values[i]]) }} />`;
}

function Regions({ state }) {
  const where = { below: "below the range", inside: "inside", above: "above the range" };
  return html`<h3>Six regions; two are flat</h3>
    <${Fetched} state=${state} height="14rem">
      ${(data) => html`<${Table} label="Regions of the clip" head=${["", "example ρ", "gain", "push", ""]}
        rows=${data.regions.filter((row) => row.sign).map((row) => [
          `A ${row.sign > 0 ? "> 0" : "< 0"}, ${where[row.where]}`,
          row.ratio,
          row.value,
          row.push,
          row.held
            ? html`<b>flat: no gradient</b>`
            : row.where === "inside" ? "as without a clip" : row.sign > 0 === (row.where === "below") ? "pushed back towards the range" : "as without a clip",
        ])}
        foot=${"The minimum of two terms is used, so the clip can only lower a gain. Where the ratio moved the wrong way, the unclipped term is smaller and " +
          "its gradient remains."} />`}
    <//>`;
}

export function Histogram() {
  const state = useAnswer("loss", "histogram", limitsOf());
  return html`<${Section} title="The clip does not bound the ratio" id="overshoot" depth="math code"
    lead="The clip sets gradients to 0; it does not limit ratios. A clipped token still moves when other tokens change the shared weights.">
    <${Play} label="Ratios of a recorded run">
      <${Fetched} state=${state} height="20rem">${(data) => html`
        <${Figure} label="Ratios of the recorded tokens that moved" height=${210} deps=${[JSON.stringify(data.limits)]}
          legend=${[["inside the range", "var(--c1)", "square"], ["outside it", "var(--below)", "square"]]}
          build=${(Plot) => ({
            x: { label: "ratio at the last update", ticks: 7 },
            y: { grid: true, label: "tokens", type: "symlog", ticks: [0, 1, 10, 100, 1000], tickFormat: tick },
            marks: [
              Plot.rectY(data.bins.filter((bin) => bin.count), {
                x1: "from",
                x2: "to",
                y: "count",
                inset: 0.5,
                fill: (bin) => (bin.to <= data.limits[0] + 1e-9 || bin.from >= data.limits[1] - 1e-9 ? "var(--below)" : "var(--c1)"),
              }),
              Plot.ruleX(data.limits, { stroke: "var(--ink-faint)", strokeDasharray: "3 3" }),
            ],
          })}
          table=${{ columns: ["from", "to", "tokens"], rows: data.bins.map((bin) => [bin.from, bin.to, bin.count]) }} />
        <${Numbers}
          items=${[
            ["tokens recorded", data.tokens],
            ["moved by less than a thousandth", percent(data.still / data.tokens, 1)],
            ["outside the range", data.outside, null, "outside"],
            ["of these, gradient clipped to 0", data.clip_low + data.clip_high, null, "held"],
            ["smallest ratio", exact(data.smallest, 3)],
            ["largest ratio", exact(data.largest, 3)],
          ]} />
        <p class="small soft">The recorded run that ships with the lab, with eight updates per batch. Ratios are those of the last update. The range is set by ε
          above.</p>`}
      <//>
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
    return html`<p>Eight updates on four answers with the preset <code>grpo</code>: at the last update the clip sets the gradient
      of <b class="num" data-number="preset-clipped">${percent(last.clip_low + last.clip_high, 1)}</b> of the tokens to 0. GRPO drops PPO's critic and keeps its
      clip. The range is <code>loss.clip_low</code> and <code>loss.clip_high</code>.</p>
      <p class="soft small">With one update per batch the clip has no effect: see “Does the loss show progress?” below.</p>`;
  }}<//>`;
}

function Asked({ picked }) {
  const state = useAnswer("loss", "clip", { ratio: 1.5, advantage: -1 });
  return html`<${Fetched} state=${state} height="4rem">
    ${(data) => html`<${Verdict} picked=${picked} right=${data.held ? "yes" : "no"}>
      <p>The push is <b class="num">${signed(data.push, 2)}</b>: ratio × advantage. The clip stops tokens that moved far enough in the right direction, never
        those that moved the wrong way. Choose advantage −1 below to see it.</p>
      <${Only} depth="math code"><p class="small soft">Minus 1.5 is smaller than minus 1.2, so the minimum selects the unclipped term.</p><//><//>`}
    <//>`;
}

export function Fraction() {
  const state = useAnswer("loss", "fraction", { advantage: param("fa", "0") });
  return html`<${Section} title="The clip fraction" id="fraction" depth="math code"
    lead=${"A common line of code divides the clipped gain by the advantage and counts a token as clipped where the result differs from the ratio. It counts " +
      "three cases that are not clipping."}>
    <${Only} depth="code"><${Code} slug="loss" source="listed_clip_fraction" open=${true} title="The comparison and its errors" /><//>
    <${Play} label="Two counts">
      <${Choice} name="fa" label="advantage of five tokens with ratios 0.7, 0.9, 1, 1.1 and 1.5" options=${[["0", "A = 0"], ["1", "A = +1"], ["-1", "A = −1"]]}
        value="0" />
      <${Fetched} state=${state} height="10rem">${(data) => html`
        <${Numbers}
          items=${[
            ["by comparison", percent(data.by_comparison), null, "by_comparison"],
            ["by gradients set to 0", percent(data.by_gradient), "as in grpo.core", "by_gradient"],
          ]} />
        <ul class="points"><li><b>A = 0.</b> 0 divided by 0 is NaN, which equals nothing: every token of a group without signal counts as clipped.</li>
          <li><b>The wrong side.</b> With A = −1 the token at 1.5 is counted as clipped, although its push
            is ${signed(data.advantage === -1 ? data.pushes[4] : -1.5, 2)}.</li>
          <li><b>Rounding.</b> After multiplication and division by A in float32, <b class="num" data-number="rounding">${percent(data.rounding, 1)}</b> of
            10,000 ratios inside the range differ from their original value.</li>
        </ul>`}
      <//>
    <//>
    <${Fetched} state=${state} height="4rem">
      ${(data) => html`<p>A clip fraction of 10% to 30% is sometimes called typical. It depends on the number of updates per batch and on the learning rate.
        With one update it is exactly 0. The recorded run learned well with eight updates and
        had <b class="num" data-number="recorded-share">${percent(data.recorded, 2)}</b> on average.</p>`}
    <//>
  <//>`;
}

