// Every symbol with its name in the code, and small things to know beforehand.
import { html } from "htm/preact";
import { chapterOf } from "../chapters.js";
import { Code, Equation, Fetched, Numbers, Only, Play, Section, Slider, Table, Tex, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { Link } from "../route.js";

export function Chapter() {
  return html`
    <${Section} title="What to know beforehand" lead="Four small things. If they hold no surprise, begin with chapter 1."><${Softmax} /><${Sequence} /><${Slope} /><${Expectation} /><//>
    <${Section} title="Symbols"><${Symbols} /><//>
    <${Section} title="Letters of shapes" depth="math code"><${Axes} /><//>
    <${Section} title="Where to go on">
      <ul><li>New to all this: <${Link} to="/learn">the way from a first run to why it worked<//>, then chapters 1 to 7.</li><li>You know REINFORCE: <${Link} to="/learn/advantage">the advantage<//>, and what it is compared with.</li><li>You know PPO: <${Link} to="/learn/loss">the loss<//> is the same; <${Link} to="/learn/costs">the critic is gone<//>.</li><li>You know fine-tuning: <${Link} to="/learn/why">why that is not enough<//>.</li><li>You have a run that does not work: <${Link} to="/learn/train">the clinic<//>.</li></ul>
    <//>`;
}

function Softmax() {
  const logits = ["la", "lb", "lc"].map((name, place) => param(name, 2 - place));
  const state = useAnswer("notation", "softmax", { logits: logits.join(","), t: param("t", 1) });
  return html`<${Play} label="Logits and probabilities"><h3>A model gives numbers; softmax makes them probabilities</h3>
    <div class="knobs">${["la", "lb", "lc"].map((name, place) => html`<${Slider} name=${name} label=${`logit of token ${place + 1}`} min=${-5} max=${5} step=${0.5} value=${2 - place} show=${(value) => number(value, 1)} />`)}<${Slider} name="t" label="temperature" min=${0.1} max=${3} step=${0.1} value=${1} show=${(value) => number(value, 1)} /></div>
    <${Fetched} state=${state} height="5rem">${(data) => html`<${Numbers} items=${[...data.probabilities.map((p, place) => [`token ${place + 1}`, percent(p, 1), `log ${number(data.logp[place], 2)}`, `p-${place}`]), ["entropy", number(data.entropy, 3), "nats"]]} />`}<//>
    <${Only} depth="math"><${Equation} tex=${"p_v=\\frac{e^{z_v/T}}{\\sum_w e^{z_w/T}}"} spoken="p of v equals e to the z v over T, divided by the sum over w of e to the z w over T" /><//>
    <${Only} depth="code"><${Code} slug="notation" source="softmax" /><//><//>`;
}

function Sequence() {
  const chances = ["sa", "sb", "sc", "sd"].map((name, place) => param(name, [0.9, 0.5, 0.8, 0.95][place]));
  const state = useAnswer("notation", "sequence", { p: chances.join(",") });
  return html`<${Play} label="Probability of a text"><h3>A text is as likely as all its tokens one after another</h3>
    <div class="knobs">${["sa", "sb", "sc", "sd"].map((name, place) => html`<${Slider} name=${name} label=${`token ${place + 1}`} min=${0.05} max=${1} step=${0.05} value=${[0.9, 0.5, 0.8, 0.95][place]} show=${(value) => percent(value)} />`)}</div>
    <${Fetched} state=${state} height="5rem">${(data) => html`<${Numbers} items=${[["product of the probabilities", percent(data.product, 1), null, "product"], ["sum of their logarithms", number(data.sum, 3)]]} />`}<//>
    <${Only} depth="math code"><p class="small soft">Sums are kinder to computers than products, so programs keep <${Tex}>\\log p<//>, “logp”.</p><//><//>`;
}

function Slope() {
  const state = useAnswer("notation", "slope", {});
  return html`<${Play} label="A gradient"><h3>A gradient says which way to turn each number</h3>
    <${Fetched} state=${state} height="5rem">${(data) => html`<p>Three tokens with logits 2, 1, 0. To make the first more likely: turn its logit up by ${number(data.gradient[0], 3)}, the others by ${number(data.gradient[1], 3)} and ${number(data.gradient[2], 3)}. That is 1 − p for the one, −p for the others; they sum to 0.</p>`}<//>
    <${Only} depth="math"><${Equation} tex=${"\\frac{\\partial\\log p_a}{\\partial z_v}=\\mathbb 1[v=a]-p_v"} spoken="The derivative of log p of a by z of v is one if v is a, minus p of v" /><//><//>`;
}

function Expectation() {
  return html`<${Only} depth="math code"><p>An expectation <${Tex}>\\mathbb E<//> is a mean over chance, each case by its probability. An estimate is unbiased when its expectation is the truth, and good when it also scatters little: that is its variance. <${Link} to="/learn/advantage?depth=math">Both, exactly, for every baseline<//>.</p><//>`;
}

function Symbols() {
  const state = useAnswer("notation", "symbols", {});
  return html`<${Fetched} state=${state} height="40rem">${({ symbols }) => html`<${Table} label="Symbols" head=${["said", "symbol", "meaning", "in the code", "chapter"]} rows=${symbols.map((row) => [row.spoken, html`<${Tex}>${row.tex}<//>`, row.meaning, html`<code>${row.code}</code> <span class="tiny faint">${row.where}</span>`, html`<${Link} to=${`/learn/${row.chapter}`}>${chapterOf(row.chapter).short}<//>`])} />`}<//>`;
}

function Axes() {
  const state = useAnswer("notation", "symbols", {});
  return html`<p>In tensor code a name ends with its axes: <code>rewards_PG</code> has one row per prompt and one column per answer.</p>
    <${Fetched} state=${state} height="14rem">${({ axes }) => html`<${Table} label="Axis letters" head=${["letter", "counts"]} rows=${axes.map((row) => [html`<code>${row.letter}</code>`, row.meaning])} />`}<//>`;
}
