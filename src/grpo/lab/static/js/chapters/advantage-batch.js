// Baselines across prompts, and all advantages of a run.
import { html } from "htm/preact";
import {
  Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Question, Slider, Table, Verdict, param, useAnswer, useDepth,
} from "../lesson.js";
import { number, percent } from "../format.js";
import { Advantage } from "../parts.js";
import { WAYS } from "./advantage-group.js";

export function OwnBaseline() {
  const [p, g] = [param("mp", 0.5), param("mg", 8)];
  const state = useAnswer("advantage", "mean", { p, g });
  return html`<${Play} label="The group's mean as an estimate">
      <div class="knobs">
        <${Slider} name="mp" label="probability of a right answer" min=${0} max=${1} step=${0.05} value=${0.5} show=${(value) => percent(value)} />
        <${Slider} name="mg" label="group size G" min=${1} max=${64} step=${1} value=${8} /></div>
      <${Fetched} state=${state} height="15rem">
        ${(data) => html`<${Figure} label="Probability of each value of the group's mean" height=${170} deps=${[p, g]}
          build=${(Plot) => ({
            x: { domain: [-0.06, 1.06], label: "mean reward of the group", tickFormat: (value) => percent(value) },
            y: { label: "probability", grid: true, tickFormat: (value) => percent(value) },
            marks: [
              Plot.rectY(data.chances, {
                x1: (row) => row.mean - 0.3 / (g + 1),
                x2: (row) => row.mean + 0.3 / (g + 1),
                y: "chance",
                fill: "var(--c1)",
                fillOpacity: 0.7,
              }),
              Plot.ruleX([{ at: data.p }], { x: "at", stroke: "var(--c5)", strokeWidth: 2 }),
            ],
          })}
          legend=${[["probability", "var(--c1)", "square"], ["value of the prompt", "var(--c5)"]]}
          table=${{ columns: ["mean", "probability"], rows: data.chances.map((row) => [row.mean, row.chance]) }} />
        <${Numbers} items=${[["expected mean", percent(data.expected, 1)], ["typical error", percent(data.std, 1), "one standard deviation", "mean-std"]]} />`}
      <//>
    <//>
    <${Only} depth="math">
      <${Equation} tex=${"\\mathbb E[\\bar r]=V,\\qquad \\operatorname{std}(\\bar r)=\\sqrt{p(1-p)/G}"}
        spoken="The expectation of the group's mean is the value of the prompt; its standard deviation is the root of p times one minus p over G" />
    <//>
    <${Question} name="why_groups"
      ask=${"Why one baseline per prompt, and not one for all prompts? In the first ten steps of the recorded run, what share of the reward's variance lies " +
        "between prompts?"}
      options=${[["none", "Hardly any"], ["third", "About a third"], ["most", "Nearly all"]]}>
      ${(picked) => html`<${Between} picked=${picked} />`}<//>
    <${Table} label="State, reward and baseline in PPO and GRPO" head=${["", "PPO", "GRPO"]}
      rows=${[
        ["state", "the prompt and every token so far", "the prompt"],
        ["reward", "at the end, spread over tokens by the critic", "at the end, the same for every token"],
        ["baseline", "learned, with the critic's error", "the group's mean: unbiased, with standard error √(p(1−p)/G)"],
      ]}
      foot="A group's mean is sometimes called exact. It is exact for the group, and an estimate for the prompt." />`;
}

function Between({ picked }) {
  const state = useAnswer("advantage", "own", {});
  return html`<${Fetched} state=${state} height="6rem">${(data) => {
    const share = data.between / data.around_one;
    return html`<${Verdict} picked=${picked} right=${share < 0.1 ? "none" : share < 0.7 ? "third" : "most"}>
      <${Numbers}
        items=${[
          ["variance around one baseline for all", data.around_one],
          ["around one baseline per prompt", data.around_own],
          ["between prompts", percent(share, 0), null, "between"],
        ]} />
      <p>Prompts differ in difficulty, and that difference carries no information about an answer. All answers of a group share the prompt, so subtracting the
        group's mean removes it. No network has to learn it. The method requires sampling from the same prompt again, which a language model allows and a robot
        does not.</p>
      <//>`;
  }}<//>`;
}

export function TwoPrompts() {
  const asked = { easy: param("easy", 7), hard: param("hard", 1), pay: param("pay", 1) };
  const state = useAnswer("advantage", "prompts", asked);
  const difficulty = useAnswer("advantage", "difficulty", {});
  return html`<${Play} label="Two prompts">
      <div class="knobs"><${Slider} name="easy" label="prompt 1: right of 8" min=${0} max=${8} step=${1} value=${7} />
        <${Slider} name="hard" label="prompt 2: right of 8" min=${0} max=${8} step=${1} value=${1} />
        <${Slider} name="pay" label="prompt 1: reward of a right answer" min=${0.5} max=${10} step=${0.5} value=${1} show=${(value) => number(value, 1)} />
      </div>
      <${Fetched} state=${state} height="16rem">
        ${(data) => html`<${Table} label="Advantages of two prompts by formula"
          head=${["formula", "prompt 1: right", "wrong", "prompt 2: right", "wrong", "push 1 : push 2"]}
          rows=${Object.entries(data.ways).map(([key, way]) => [
            html`${WAYS[key][0]} <span class="tiny faint">${WAYS[key][1]}</span>`,
            html`<${Advantage} value=${way.right[0]} />`,
            html`<${Advantage} value=${way.wrong[0]} />`,
            html`<${Advantage} value=${way.right[1]} />`,
            html`<${Advantage} value=${way.wrong[1]} />`,
            html`<span class="num" data-number=${`push-${key}`}>${way.push[1] ? number(way.push[0] / way.push[1], 2) : "–"}</span>`,
          ])} />`}
      <//>
      <p class="small soft">Push is the sum of |A| over a prompt's answers. Set prompt 1's reward to 10: without a std it gets ten times the push. Normalising
        prevents that.</p>
    <//>
    <${Question} name="batchnorm" ask="Suppose mean and std are those of the whole batch. All 8 answers to a prompt are right. What happens to them?"
      options=${[["zero", "Nothing: A = 0, as with a group baseline"], ["up", "All 8 are pushed up"], ["down", "All 8 are pushed down"]]}>
      ${(picked) => html`<${BatchNorm} picked=${picked} />`}<//>
    <${Fetched} state=${difficulty} height="14rem">
      ${(rows) => html`<div><h3>How dividing by the std weights easy and hard prompts</h3>
        <p class="small soft">The push of a group by its number of right answers, as a share of the push of a group with four right of eight.</p>
        <${Figure} label="Push of a group by its number of right answers, with and without the std" height=${190} deps=${[rows.length]}
          build=${(Plot) => ({
            x: { label: "right of 8" },
            y: { label: "push, of that with four right", grid: true, domain: [0, 1], tickFormat: (value) => percent(value) },
            marks: [
              Plot.lineY(rows, { x: "right", y: (row) => row.push / rows[4].push, stroke: "var(--c1)", strokeWidth: 2, marker: true }),
              Plot.lineY(rows, { x: "right", y: (row) => row.push_without_std / rows[4].push_without_std, stroke: "var(--c2)", strokeWidth: 2, marker: true }),
            ],
          })}
          legend=${[["with std (GRPO)", "var(--c1)"], ["without (Dr. GRPO)", "var(--c2)"]]}
          table=${{ columns: ["right", "with std", "without"], rows: rows.map((row) => [row.right, row.push, row.push_without_std]) }} />
      </div>
      <p>A prompt with one right or one wrong answer of eight gets ${percent(rows[1].push / rows[4].push)} of that push with the std,
        and ${percent(rows[1].push_without_std / rows[4].push_without_std)} without it. Both are valid; they weight prompts differently.</p>`}
    <//>
    <${Only} depth="code"><${Code} slug="advantage" source="group_advantages" /><//>`;
}

function BatchNorm({ picked }) {
  const state = useAnswer("advantage", "prompts", { easy: 8, hard: 1 });
  return html`<${Fetched} state=${state} height="5rem">${(data) => html`<${Verdict} picked=${picked} right=${data.ways.batch.right[0] > 0 ? "up" : "zero"}>
    <p>With a group baseline: <${Advantage} value=${data.ways.grpo.right[0]} />. With a batch
      baseline: <span data-number="batchnorm"><${Advantage} value=${data.ways.batch.right[0]} /></span>, for all eight. Answers to easy prompts are pushed up
      and answers to hard prompts down, so the difference between prompts is back as noise. REINFORCE++ takes only the std from the batch and keeps the group's
      mean.</p>
  <//>`}
    <//>`;
}

export function Batches() {
  const steps = param("steps", 80);
  const exactly = useDepth() !== "intuition";
  const state = useAnswer("advantage", "histogram", { steps });
  const values = useAnswer("advantage", "values", {});
  return html`<${Play} label="Advantages of the recorded run"><${Slider} name="steps" label="first steps" min=${1} max=${80} step=${1} value=${80} />
      <${Fetched} state=${state} height="18rem">
        ${(data) => html`<${Figure} label="Histogram of the recorded advantages" height=${220} deps=${[steps, exactly]}
          build=${(Plot) => ({
            x: { label: "advantage" },
            y: { label: "share of all advantages", grid: true, tickFormat: (value) => percent(value) },
            marks: [
              Plot.rectY(data.bins, { x1: "low", x2: "high", y: "share", fill: "var(--c1)", insetLeft: 1, insetRight: 1 }),
              ...(exactly
                ? [Plot.lineY(data.bins, { x: (bin) => (bin.low + bin.high) / 2, y: "normal", stroke: "var(--c5)", strokeWidth: 2, curve: "natural" })]
                : []),
            ],
          })}
          legend=${exactly ? [["recorded", "var(--c1)", "square"], ["normal with the same mean and std", "var(--c5)"]] : undefined}
          table=${{ columns: ["from", "to", "recorded", "normal"], rows: data.bins.map((bin) => [bin.low, bin.high, bin.share, bin.normal]) }} />
        <${Numbers}
          items=${[
            ["advantages", data.values, null, "values"],
            exactly && ["mean", Math.abs(data.mean) < 1e-6 ? "0" : number(data.mean, 3)],
            exactly && ["std", data.std, null, "std-all"],
            ["exactly 0", percent(data.zero, 0), null, "zero"],
            ["different values", data.distinct.length, null, "distinct"],
            exactly && ["kurtosis", number(data.kurtosis, 1), "normal: 3"],
          ].filter(Boolean)} />`}
      <//>
    <//>
    <${Only} depth="math code"><${Misconception} name="normal" claim="Advantages are normally distributed across batches: centred, with a spread of 1.">
      <p>They are centred: every group sums to 0. They are not normal. With rewards of 0 and 1, a group of eight has two distinct advantages, or only 0. The two
        depend only on the number of right answers:</p>
      <${Fetched} state=${values} height="14rem">
        ${(rows) => html`<${Table} label="The two advantages of a group of eight" head=${["right of 8", "A of a right answer", "A of a wrong answer"]}
          rows=${rows.map((row) => [row.right, html`<${Advantage} value=${row.above} />`, html`<${Advantage} value=${row.below} />`])}
          foot="Seven pairs and 0: fifteen values in the whole run." />`}
      <//>
      <p>The std falls below 1 as more groups have no signal, since their advantages are 0. A std of 1 would mean that every group has signal.</p>
    <//><//>
    <${Only} depth="code"><${Code} slug="advantage" source="histogram" /><//>`;
}

