// Prompts beside each other, and a whole run.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Question, Slider, Table, Verdict, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { Advantage } from "../parts.js";
import { WAYS } from "./advantage-group.js";

export function OwnBaseline() {
  const [p, g] = [param("mp", 0.5), param("mg", 8)];
  const state = useAnswer("advantage", "mean", { p, g });
  return html`<${Play} label="The group's mean as a guess">
      <div class="knobs"><${Slider} name="mp" label="how often the model is right" min=${0} max=${1} step=${0.05} value=${0.5} show=${(value) => percent(value)} /><${Slider} name="mg" label="group size G" min=${1} max=${64} step=${1} value=${8} /></div>
      <${Fetched} state=${state} height="15rem">${(data) => html`<${Figure} label="Chance of each value of the group's mean" height=${170} deps=${[p, g]} build=${(Plot) => ({ x: { domain: [-0.06, 1.06], label: "mean reward of the group", tickFormat: (value) => percent(value) }, y: { label: null, grid: true, tickFormat: (value) => percent(value) }, marks: [Plot.rectY(data.chances, { x1: (row) => row.mean - 0.3 / (g + 1), x2: (row) => row.mean + 0.3 / (g + 1), y: "chance", fill: "var(--c1)", fillOpacity: 0.7 }), Plot.ruleX([{ at: data.p }], { x: "at", stroke: "var(--c5)", strokeWidth: 2 })] })} legend=${[["chance", "var(--c1)", "square"], ["what the prompt is worth", "var(--c5)"]]} table=${{ columns: ["mean", "chance"], rows: data.chances.map((row) => [row.mean, row.chance]) }} />
        <${Numbers} items=${[["right on average", percent(data.expected, 1)], ["and off by about", percent(data.std, 1), "one std", "mean-std"]]} />`}<//><//>
    <${Only} depth="math"><${Equation} tex=${"\\mathbb E[\\bar r]=V,\\qquad \\operatorname{std}(\\bar r)=\\sqrt{p(1-p)/G}"} spoken="The expectation of the group's mean is the value of the prompt; its standard deviation is the root of p times one minus p over G" /><//>
    <${Question} name="why_groups" ask="Why one baseline per prompt, and not one for all prompts? What share of the reward's variance lies between prompts, in the first ten steps of the recorded run?" options=${[["none", "Hardly any"], ["third", "About a third"], ["most", "Nearly all"]]}>${(picked) => html`<${Between} picked=${picked} />`}<//>
    <${Table} label="What PPO and GRPO make of the same parts" head=${["", "PPO", "GRPO"]} rows=${[["state", "the prompt and every token so far", "the prompt"], ["reward comes", "at the end, spread over tokens by the critic", "at the end, the same for every token"], ["baseline", "learned; as wrong as the critic still is", "the group's mean; unbiased, off by √(p(1−p)/G)"]]} foot="A group's mean is sometimes called exact. It is exact about the group, and a guess about the prompt." />`;
}

function Between({ picked }) {
  const state = useAnswer("advantage", "own", {});
  return html`<${Fetched} state=${state} height="6rem">${(data) => {
    const share = data.between / data.around_one;
    return html`<${Verdict} picked=${picked} right=${share < 0.1 ? "none" : share < 0.7 ? "third" : "most"}>
      <${Numbers} items=${[["variance around one baseline", data.around_one], ["around each prompt's own", data.around_own], ["between prompts", percent(share, 0), null, "between"]]} />
      <p>Prompts differ in difficulty, and that difference says nothing about an answer. A group shares its prompt, so its mean takes all of that out, whatever the prompt is: no network has to understand it. It also means asking the same question again, which a language model allows and a robot does not.</p><//>`;
  }}<//>`;
}

export function TwoPrompts() {
  const asked = { easy: param("easy", 7), hard: param("hard", 1), pay: param("pay", 1) };
  const state = useAnswer("advantage", "prompts", asked);
  const difficulty = useAnswer("advantage", "difficulty", {});
  return html`<${Play} label="Two prompts">
      <div class="knobs"><${Slider} name="easy" label="prompt 1: right of 8" min=${0} max=${8} step=${1} value=${7} /><${Slider} name="hard" label="prompt 2: right of 8" min=${0} max=${8} step=${1} value=${1} /><${Slider} name="pay" label="prompt 1 pays for a right answer" min=${0.5} max=${10} step=${0.5} value=${1} show=${(value) => number(value, 1)} /></div>
      <${Fetched} state=${state} height="16rem">${(data) => html`<${Table} label="Advantages of two prompts in every way" head=${["compared with", "prompt 1: right", "wrong", "prompt 2: right", "wrong", "push 1 : push 2"]} rows=${Object.entries(data.ways).map(([key, way]) => [html`${WAYS[key][0]} <span class="tiny faint">${WAYS[key][1]}</span>`, html`<${Advantage} value=${way.right[0]} />`, html`<${Advantage} value=${way.wrong[0]} />`, html`<${Advantage} value=${way.right[1]} />`, html`<${Advantage} value=${way.wrong[1]} />`, html`<span class="num" data-number=${`push-${key}`}>${way.push[1] ? number(way.push[0] / way.push[1], 2) : "–"}</span>`])} />`}<//>
      <p class="small soft">Push is the sum of |A| over a prompt's answers. Pay one prompt ten times as much: without a std it gets ten times the push. That is why one normalises.</p><//>
    <${Question} name="batchnorm" ask="What if the mean and std were those of the whole batch? A prompt that the model gets right 8 times of 8:" options=${[["zero", "teaches nothing, as before"], ["up", "is pushed up, every answer"], ["down", "is pushed down"]]}>${(picked) => html`<${BatchNorm} picked=${picked} />`}<//>
    <${Fetched} state=${difficulty} height="14rem">${(rows) => html`<div><h3>What dividing by the std does to easy and hard prompts</h3><p class="small soft">The push of a group, as a share of an even group's, by how many of its eight answers are right.</p><${Figure} label="Push of a group by its number of right answers, with and without the std" height=${190} deps=${[rows.length]} build=${(Plot) => ({ x: { label: "right of 8" }, y: { label: null, grid: true, domain: [0, 1], tickFormat: (value) => percent(value) }, marks: [Plot.lineY(rows, { x: "right", y: (row) => row.push / rows[4].push, stroke: "var(--c1)", strokeWidth: 2, marker: true }), Plot.lineY(rows, { x: "right", y: (row) => row.push_without_std / rows[4].push_without_std, stroke: "var(--c2)", strokeWidth: 2, marker: true })] })} legend=${[["with std (GRPO)", "var(--c1)"], ["without (Dr. GRPO)", "var(--c2)"]]} table=${{ columns: ["right", "with std", "without"], rows: rows.map((row) => [row.right, row.push, row.push_without_std]) }} /></div>
      <p>Prompts at the edge, one right or one wrong of eight, count for ${percent(rows[1].push / rows[4].push)} of an even group with the std, and for ${percent(rows[1].push_without_std / rows[4].push_without_std)} without. Neither is wrong; they are different wishes.</p>`}<//>
    <${Only} depth="code"><${Code} slug="advantage" source="group_advantages" /><//>`;
}

function BatchNorm({ picked }) {
  const state = useAnswer("advantage", "prompts", { easy: 8, hard: 1 });
  return html`<${Fetched} state=${state} height="5rem">${(data) => html`<${Verdict} picked=${picked} right=${data.ways.batch.right[0] > 0 ? "up" : "zero"}>
    <p>Compared with its own group: <${Advantage} value=${data.ways.grpo.right[0]} />. Compared with the batch: <span data-number="batchnorm"><${Advantage} value=${data.ways.batch.right[0]} /></span>, for all eight. Easy prompts are pushed up for being easy, hard ones down for being hard: the difference between prompts is back in. Only the std of the batch (REINFORCE++) keeps the group's mean and shares one scale.</p><//>`}<//>`;
}

export function Batches() {
  const steps = param("steps", 80);
  const state = useAnswer("advantage", "histogram", { steps });
  const values = useAnswer("advantage", "values", {});
  return html`<${Play} label="Advantages of the recorded run"><${Slider} name="steps" label="the first steps" min=${1} max=${80} step=${1} value=${80} />
      <${Fetched} state=${state} height="18rem">${(data) => html`<${Figure} label="Histogram of the recorded advantages, beside a normal distribution" height=${220} deps=${[steps]} build=${(Plot) => ({ x: { label: "advantage" }, y: { label: null, grid: true, tickFormat: (value) => percent(value) }, marks: [Plot.rectY(data.bins, { x1: "low", x2: "high", y: "share", fill: "var(--c1)", insetLeft: 1, insetRight: 1 }), Plot.lineY(data.bins, { x: (bin) => (bin.low + bin.high) / 2, y: "normal", stroke: "var(--c5)", strokeWidth: 2, curve: "natural" })] })} legend=${[["recorded", "var(--c1)", "square"], ["normal, of the same mean and std", "var(--c5)"]]} table=${{ columns: ["from", "to", "recorded", "normal"], rows: data.bins.map((bin) => [bin.low, bin.high, bin.share, bin.normal]) }} />
        <${Numbers} items=${[["advantages", data.values, null, "values"], ["mean", Math.abs(data.mean) < 1e-6 ? "0" : number(data.mean, 3)], ["std", data.std, null, "std-all"], ["exactly 0", percent(data.zero, 0), null, "zero"], ["different values", data.distinct.length, null, "distinct"], ["kurtosis", number(data.kurtosis, 1), "normal: 3"]]} />`}<//><//>
    <${Misconception} name="normal" claim="Advantages are normally distributed across batches: centred, with a spread of 1.">
      <p>Centred they are: every group sums to 0. Normal they are not. With rewards of 0 and 1 a group of eight has exactly two advantages, or none, and which two depends only on how many were right:</p>
      <${Fetched} state=${values} height="14rem">${(rows) => html`<${Table} label="The two advantages of a group of eight" head=${["right of 8", "A of the right", "A of the wrong"]} rows=${rows.map((row) => [row.right, html`<${Advantage} value=${row.above} />`, html`<${Advantage} value=${row.below} />`])} foot="Seven pairs and 0: fifteen values in the whole run." />`}<//>
      <p>And the spread falls below 1 as groups lose their signal: those without spread have advantage 0. A std of 1 would mean that every group still teaches.</p>
    <//>
    <${Only} depth="code"><${Code} slug="advantage" source="histogram" /><//>`;
}

