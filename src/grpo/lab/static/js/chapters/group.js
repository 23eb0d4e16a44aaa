// Chapter 2: the group.
import { html } from "htm/preact";
import {
  Analogy, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, Trial, useAnswer, useDepth, useStyle,
} from "../lesson.js";
import { number, percent, signed } from "../format.js";
import { Term } from "../glossary.js";
import { Link, setQuery } from "../route.js";
import { Answers, Asked, HowToRead } from "./answers.js";
import { Difficulty, Sizes, Variance } from "./group-chance.js";

export function Chapter() {
  useStyle("css/chapter-why.css", "css/chapter-group.css");
  return html`<${Samples} />
    <${Difficulty} />
    <${Sizes} />
    <${Variance} />
    <${Temperature} />
    <${Alone} />
    <${Section} id="prompts" depth="math code" title="Why one baseline per prompt"
      lead="A prompt is the whole initial state. Sampling from it again starts from the same state; only the sampled tokens differ.">
      <${Prompts} /><//>
    <${Section} depth="code" title="The functions behind a group"><${Functions} /><//>
    <${Section} id="questions" title="Predict, then run"><${Questions} /><//>`;
}

function Samples() {
  const asked = { prompt: param("prompt", "37+85+46="), g: param("g", 8), t: param("t", 1), seed: param("seed", 1) };
  const state = useAnswer("group", "samples", asked);
  const exactly = useDepth() !== "intuition";
  return html`<${Section} id="samples" title="Sample a group"
    lead=${html`One question, several answers: a <${Term} of="group">group<//>. Each gets a <${Term} of="reward">reward<//> and is compared with the others.`}>
    <${Play} label="A sampled group">
      <${Asked} prompt=${asked.prompt} />
      <div class="knobs"><${Slider} name="g" label="Answers" min=${2} max=${64} step=${1} value=${8} />
        <${Slider} name="t" label="Temperature" min=${0.1} max=${2} step=${0.1} value=${1} show=${(value) => number(value, 1)} /></div>
      <${Fetched} state=${state} height="24rem">${(found) => html`
        <${Answers} most=${8} label="The group: advantage, answer, reward, probability" head=${["advantage", "answer", "reward", "probability"]}
          rows=${found.completions.map((row) => ({ ...row, more: percent(Math.exp(row.logprob), 1) }))} />
        <${Numbers}
          items=${[
            ["average reward", found.statistics.reward_mean, `right: ${found.answer}`, "group-mean"],
            exactly && ["standard deviation", found.statistics.reward_std, "", "group-std"],
            ["different answers", found.distinct, `of ${found.completions.length}`, "group-distinct"],
            exactly && ["tokens sampled", found.tokens],
          ].filter(Boolean)} />
        <${HowToRead} prompt=${asked.prompt} />
        ${found.statistics.zero_signal_groups === 1 && html`<p class="small warn">All rewards are equal: nothing to learn here.</p>`}`}<//>
      <${Only} depth="math">
        <${Equation} tex="A_i=\\frac{r_i-\\frac1G\\sum_j r_j}{s+10^{-4}},\\qquad \\frac1G\\sum_j r_j\\;\\approx\\;V(q)=\\mathbb{E}_{o\\sim\\pi}\\,r(q,o)"
          spoken="The advantage compares a reward with the mean of its group, which estimates the value of the question." />
      <//>
      <${Only} depth="code"><${Code} slug="group" source="sample" title="The sampler" /><//>
    <//>
    <${Only} depth="math code">
      <p class="small soft">The same seed gives the same answers: every token's random number is a function of seed, problem, sample and position.</p><//>
    <${Only} depth="intuition"><${Essays} /><//>
  <//>`;
}

function Essays() {
  return html`<${Analogy} title="Eight drafts">
    <p>How good is an essay on a new subject? You could train a specialist to predict its mark. GRPO has eight drafts written and compares each with their
      average: all share the subject, so its difficulty cancels.</p>
  <//>`;
}

function Temperature() {
  const state = useAnswer("group", "temperatures", { g: 8 });
  const at = param("sweep", 4);
  const exactly = useDepth() !== "intuition";
  return html`<${Section} id="temperature" title="Temperature, measured"
    lead=${html`A higher <${Term} of="temperature">temperature<//> makes answers vary more. Move it: do groups teach more?`}>
    <${Play} label="Temperature sweep">
      <${Fetched} state=${state} height="30rem">${(found) => {
        const now = found.rows[Math.max(0, Math.min(found.rows.length - 1, at))];
        return html`<div class="knobs">
          <${Slider} name="sweep" label="Temperature" min=${0} max=${found.rows.length - 1} step=${1} value=${4}
            show=${(place) => number(found.rows[place]?.temperature, 1)} />
          </div>
        <${Numbers}
          items=${[
            ["different answers", number(now.distinct, 2), `of ${found.group_size}`, "t-distinct"],
            ["groups without signal", percent(now.zero_signal, 1), "", "t-zero"],
            ["right", percent(now.reward_mean, 1)],
            exactly && ["gradient norm", number(now.grad_norm, 2), "", "t-norm"],
          ].filter(Boolean)} />
        <div class="minis-3">
          ${[
            ["distinct", "different answers"],
            ["zero_signal", "groups without signal"],
            ...(exactly ? [["grad_norm", "gradient norm"]] : []),
          ].map(([key, label]) => html`<${Sweep} rows=${found.rows} y=${key} label=${label} now=${now} />`)}
        </div>
        ${!exactly
          ? null
          : now.temperature === 1
            ? html`<p class="small soft">At T = 1 sampler and trainer use the same distribution without any correction.</p>`
            : html`<p class="small warn">If the trainer computed log-probabilities at T = 1 while the sampler uses T = ${number(now.temperature, 1)}, they would
              differ by <b data-number="t-gap">${number(now.gap, 3)}</b> per token on average, and ${percent(now.outside, 1)} of the ratios would lie outside 1
              ± 0.2 before the first update. So this trainer divides its logits by the same T.</p>`}`;
      }}<//>
      <${Only} depth="code"><${Code} slug="group" source="mismatch" title="Sampler against trainer" />
        <${Code} slug="group" source="gradient_norm" title="The gradient's norm" /><//>
    <//>
    <${Only} depth="math code">
      <p>The same 24 problems, sampled at eight temperatures; the gradient comes from the trainer's backward pass. Variety rises with T. Groups without signal
        are most frequent at the lowest T, where answers repeat; the other differences are one or two groups of 24, as chance makes them. The gradient norm
        does not follow: the gradient of a log-probability at temperature T contains a factor 1/T, so groups sampled at low T push harder. What does that do to
        training?</p>
    <${Trial} name="temperature">
      ${(outcome) => html`<p>Held-out accuracy is measured at each run's own temperature. Here runs at low T learn fastest and runs at high T slowest: the model
        samples both kinds of answer at any temperature, and a high T only adds arithmetic errors. Keep T = 1 unless groups have no signal because their answers
        are identical. In its last steps, ${outcome.arms[0].label} had mostly groups without signal.</p>`}
    <//>
    <//>
    <${Only} depth="intuition"><p>Each point is ${state.data?.problems ?? "…"} groups, so small differences are chance. Groups without signal stand out only at
      the lowest temperatures, where answers repeat. Usual: 1.</p><//>
  <//>`;
}

function Sweep({ rows, y, label, now }) {
  return html`<div><${Figure} label=${`${label} by temperature`} height=${150} deps=${[y, now.temperature]}
    build=${(Plot) => ({
      x: { label: "temperature", ticks: [0.5, 1, 1.5, 2] },
      y: { zero: true, grid: true, label, ticks: 4, tickFormat: y === "zero_signal" ? (value) => percent(value) : undefined },
      marks: [
        Plot.ruleX([now.temperature], { stroke: "var(--accent)" }),
        Plot.lineY(rows, { x: "temperature", y, stroke: "var(--c1)", strokeWidth: 2 }),
        Plot.dot(rows, { x: "temperature", y, fill: "var(--c1)", r: 3 }),
      ],
    })}
    table=${{ columns: ["T", label], rows: rows.map((row) => [row.temperature, row[y]]) }} /></div>`;
}

function Alone() {
  const state = useAnswer("group", "group_of_one", { r: param("r", 1) });
  const exactly = useDepth() !== "intuition";
  return html`<${Section} id="alone" title="A group of one" lead="One answer has no other to compare with. What can it teach?">
    <${Play} label="One answer">
      <div class="knobs"><${Slider} name="r" label="Its reward" min=${0} max=${1} step=${0.1} value=${1} show=${(value) => number(value, 1)} /></div>
      <${Fetched} state=${state} height="12rem">
        ${(found) => html`<${Numbers}
          items=${[["its advantage", number(found.advantage, 2), "for any reward: the average of one reward is that reward", "one-advantage"]]} />
        <${Only} depth="math code"><${Table} label="A group of one and of two" head=${["quantity", "sample std (n − 1)", "population std (n)"]} rows=${[
          [
            "std of one reward",
            found.sample_std === null ? html`<b data-number="one-std">not a number</b>, 0/0` : found.sample_std,
            number(found.population_std),
          ],
          ["advantage of one", html`${number(found.advantage)}, by definition in this code`, "0"],
          [
            "advantage of two, rewards 1 and 0",
            html`<b data-number="two-sample">±${number(found.two.sample, 4)}</b>`,
            html`<b>±${number(found.two.population, 4)}</b>`,
          ],
        ]} />
        <p>The mean of one reward is that reward, so the advantage is always 0 and nothing is learned. With the population std it is 0/(0 + ε) = 0. With the
          sample std, which most code uses, it is not a number (NaN), and one such group would make every weight NaN. So a run rejects G = 1:</p>
        <p class="refusal"><code>${found.refusal}</code></p><//>`}<//>
      <${Only} depth="code"><${Code} slug="group" source="group_advantages" /><//>
    <//>
    ${exactly && state.data && html`<p class="small soft">The two conventions differ most where groups are
      small: ${state.data.conventions.map((row, place) => html`${place ? ", " : ""}at G = ${row.group_size} by ${percent(row.factor - 1, 1)}`)}. Papers often
      write one and their code uses the other. This page uses the sample std.</p>`}
  <//>`;
}

function Prompts() {
  const step = param("step", 3);
  const state = useAnswer("group", "baselines", { step });
  return html`<${Play} label="Baselines of a recorded step">
      <div class="knobs"><${Slider} name="step" label="Step of the recorded run" min=${0} max=${79} step=${1} value=${3} show=${String} /></div>
      <${Fetched} state=${state} height="22rem">${(found) => {
        const easy = [...found.groups].sort((a, b) => b.pass_rate - a.pass_rate);
        const shown = [easy[0], easy.at(-1)];
        return html`<${Numbers}
          items=${[
            ["variance across all answers", number(found.variance.across, 3), "", "across"],
            ["within one prompt", number(found.variance.within, 3), "", "within"],
            ["explained by the prompt", percent(found.between_prompts), "noise in a comparison across prompts"],
          ]} />
          <${Table} label="The easiest and the hardest prompt of the step"
            head=${["prompt", "right", "A of a right answer, batch baseline", "… group baseline", "A of a wrong answer, batch baseline", "… group baseline"]}
            rows=${shown.map((group) => [
            html`<code>${group.prompt}</code>`, percent(group.pass_rate),
            ...[1, 0].flatMap((reward) => { const place = group.rewards.indexOf(reward); return place < 0
              ? ["–", "–"]
              : [signed(group.by_batch[place]), signed(group.by_group[place])]; }),
          ])}
          foot=${"With a batch baseline every right answer has the same advantage. With a group baseline a right answer counts more the rarer it is in its " +
            "group."} />`;
      }}<//>
    <//>
    <p>Two facts make this possible. A language model can be sampled again from the same prompt, which a robot in the world cannot. And the group measures the
      difficulty of its prompt directly; a critic would have to learn it from the text.</p>
    <p class="small"><${Link} to="/learn/advantage">What batch and group normalisation do to the gradient<//></p>`;
}

function Functions() {
  const state = useAnswer("group", "sizes");
  return html`${[
    ["sample_token", "One token: inverse transform"],
    ["score", "The reward of the task"],
    ["group_advantages", "Advantages"],
    ["zero_signal_chance", "Probability of a group without signal"],
    ["true_gradient", "The exact gradient"],
  ].map(([source, title]) => html`<${Code} slug="group" source=${source} title=${title} key=${source} />`)}
    <p class="small soft">A step
      samples <code>prompts_per_step</code> × <code>group_size</code> completions${state.data &&
        html`: ${state.data.defaults.prompts_per_step} × ${state.data.defaults.group_size} by
        default`}.
      Prompts are computed once per group, in sampling and in training.</p>`;
}

function Questions() {
  return html`<${Question} name="q-size" ask="128 answers a step: as 64 pairs, 16 groups of 8, or two groups of 64. Which learns fastest?"
    options=${[["pairs", "Pairs: most problems"], ["eight", "Groups of 8"], ["sixtyfour", "Groups of 64: best average"], ["same", "It hardly matters here"]]}>
    ${(picked) => html`<${SizeTrial} picked=${picked} />`}<//>`;
}

function SizeTrial({ picked }) {
  return html`<${Trial} name="group-size">${(outcome) => {
    const after = outcome.arms.map((arm) => [arm.label, arm.accuracy?.after.mean ?? null, arm.accuracy?.after.std ?? null]);
    return html`<p>Measured
      accuracy: ${after.map(([label, mean, std], place) => html`${place ? ", " : ""}${label}: <b>${percent(mean, 1)}</b>
        ${std === null ? "" : ` ± ${percent(std, 1)}`}`)}.
      On this task all problems are about equally hard, so pairs often differ, and 64 problems carry more information than two.</p>
      <${Rare} />
      <p class="small soft">Your prediction: ${{ pairs: "pairs", eight: "groups of 8", sixtyfour: "groups of 64", same: "it hardly matters" }[picked]}.</p>`;
  }}<//>`;
}

function Rare() {
  const state = useAnswer("group", "sizes", { p: 0.01 });
  const signal = (found, size) => percent(1 - found.rows.find((row) => row.group_size === size).zero_signal, 1);
  return html`<${Fetched} state=${state} height="3rem">
    ${(found) => html`<p>Where right answers are rare the order reverses: with a probability of ${percent(found.p)}, rewards differ
      within ${signal(found, 2)} of pairs, and within ${signal(found, 64)} of groups of
      64. <button type="button" class="small" onClick=${() => setQuery({ sp: found.p })}>Use this probability in the cards above</button></p>`}
    <//>`;
}
