// Prerequisites, and every symbol with its name in the code.
import { html } from "htm/preact";
import { chapterOf } from "../chapters.js";
import { Code, Equation, Fetched, Numbers, Only, Play, Section, Slider, Table, Tex, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { GLOSSARY, Term } from "../glossary.js";
import { Link } from "../route.js";

export function Chapter() {
  return html`
    <${Section} title="Prerequisites" lead="What the chapters assume. If you know it, start with chapter 1."><${Softmax} /><${Sequence} /><${Slope} />
      <${Expectation} /><//>
    <${Section} title="Words" depth="intuition" lead="Tap a word for its meaning. The chapters explain each at its first mention; depth Math has the symbols.">
      <${Words} /><//>
    <${Section} title="Symbols" depth="math code"><${Symbols} /><//>
    <${Section} title="Axis letters" depth="math code"><${Axes} /><//>
    <${Section} title="Where to start">
      <ul><li>New to reinforcement learning: <${Link} to="/story">the story in five minutes<//>, then chapters 1 to 8.</li>
        <li>You know REINFORCE: <${Link} to="/learn/advantage">the advantage and its baselines<//>.</li>
        <li>You know PPO: <${Link} to="/learn/loss">the loss<//> is the same; <${Link} to="/learn/costs">there is no critic<//>.</li>
        <li>You know fine-tuning: <${Link} to="/learn/why">why it is not enough<//>.</li>
        <li>You have a run that does not learn: <${Link} to="/learn/train">the clinic<//>.</li></ul>
    <//>`;
}

function Softmax() {
  const logits = ["la", "lb", "lc"].map((name, place) => param(name, 2 - place));
  const state = useAnswer("notation", "softmax", { logits: logits.join(","), t: param("t", 1) });
  return html`<${Play} label="Logits and probabilities"><h3>Softmax turns logits into probabilities</h3>
    <p>A model gives every <${Term} of="token">token<//> a number, its logit. <${Term} of="temperature">Temperature<//> divides them all.</p>
    <div class="knobs">
      ${["la", "lb", "lc"].map((name, place) => html`<${Slider} name=${name} label=${`logit of token ${place + 1}`} min=${-5} max=${5} step=${0.5}
        value=${2 - place} show=${(value) => number(value, 1)} />`)}
      <${Slider} name="t" label="temperature" min=${0.1} max=${3} step=${0.1} value=${1} show=${(value) => number(value, 1)} /></div>
    <${Fetched} state=${state} height="5rem">
      ${(data) => html`<${Numbers}
        items=${[
          ...data.probabilities.map((p, place) => [`token ${place + 1}`, percent(p, 1), `log ${number(data.logp[place], 2)}`, `p-${place}`]),
          ["entropy", number(data.entropy, 3), "nats"],
        ]} />`}
    <//>
    <${Only} depth="math">
      <${Equation} tex=${"p_v=\\frac{e^{z_v/T}}{\\sum_w e^{z_w/T}}"}
        spoken="p of v equals e to the z v over T, divided by the sum over w of e to the z w over T" />
    <//>
    <${Only} depth="code"><${Code} slug="notation" source="softmax" /><//><//>`;
}

function Sequence() {
  const chances = ["sa", "sb", "sc", "sd"].map((name, place) => param(name, [0.9, 0.5, 0.8, 0.95][place]));
  const state = useAnswer("notation", "sequence", { p: chances.join(",") });
  return html`<${Play} label="Probability of a text"><h3>The probability of a text is the product of its tokens' probabilities</h3>
    <div class="knobs">
      ${["sa", "sb", "sc", "sd"].map((name, place) => html`<${Slider} name=${name} label=${`token ${place + 1}`} min=${0.05} max=${1} step=${0.05}
        value=${[0.9, 0.5, 0.8, 0.95][place]} show=${(value) => percent(value)} />`)}
    </div>
    <${Fetched} state=${state} height="5rem">
      ${(data) => html`<${Numbers}
        items=${[["product of the probabilities", percent(data.product, 1), null, "product"], ["sum of their logarithms", number(data.sum, 3)]]} />`}
    <//>
    <${Only} depth="math code"><p class="small soft">Products of many probabilities underflow, so programs store <${Tex}>\\log p<//>, “logp”, and add.</p><//>
    <//>`;
}

function Slope() {
  const state = useAnswer("notation", "slope", {});
  return html`<${Play} label="A gradient"><h3>A gradient is the direction of change for each number</h3>
    <${Fetched} state=${state} height="5rem">
      ${(data) => html`<p>Three tokens have logits 2, 1, 0. The <${Term} of="gradient">gradient<//> of the first
        token's <${Term} of="log-probability">log-probability<//> is ${number(data.gradient[0], 3)} for its own
        logit, ${number(data.gradient[1], 3)} and ${number(data.gradient[2], 3)} for the others: 1 − p for the token itself, −p for the others. The three sum to
        0.</p>`}
    <//>
    <${Only} depth="math">
      <${Equation} tex=${"\\frac{\\partial\\log p_a}{\\partial z_v}=\\mathbb 1[v=a]-p_v"}
        spoken="The derivative of log p of a by z of v is one if v is a, minus p of v" />
    <//>
    <//>`;
}

function Expectation() {
  return html`<${Only} depth="math code">
    <p>An expectation <${Tex}>\\mathbb E<//> is a mean weighted by probability. An estimate is unbiased if its expectation equals the true value. Its variance
      measures its spread around that mean. <${Link} to="/learn/advantage?depth=math">Bias and variance of every baseline<//>.</p>
    <//>`;
}

function Words() {
  return html`<ul class="words-list">${Object.entries(GLOSSARY).map(([of, { title }]) => html`<li key=${of}><${Term} of=${of}>${title}<//></li>`)}</ul>`;
}

function Symbols() {
  const state = useAnswer("notation", "symbols", {});
  return html`<${Fetched} state=${state} height="40rem">
    ${({ symbols }) => html`<${Table} label="Symbols" head=${["spoken", "symbol", "meaning", "in the code", "chapter"]}
      rows=${symbols.map((row) => [
        row.spoken,
        html`<${Tex}>${row.tex}<//>`,
        row.meaning,
        html`<code>${row.code}</code> <span class="tiny faint">${row.where}</span>`,
        html`<${Link} to=${`/learn/${row.chapter}`}>${chapterOf(row.chapter).short}<//>`,
      ])} />`}
    <//>`;
}

function Axes() {
  const state = useAnswer("notation", "symbols", {});
  return html`<p>In tensor code a name ends with its axes: <code>rewards_PG</code> has one row per prompt and one column per answer.</p>
    <${Fetched} state=${state} height="14rem">
      ${({ axes }) => html`<${Table} label="Axis letters" head=${["letter", "counts"]}
        rows=${axes.map((row) => [html`<code>${row.letter}</code>`, row.meaning])} />`}
    <//>`;
}
