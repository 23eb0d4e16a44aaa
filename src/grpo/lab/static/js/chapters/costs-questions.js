// Questions answered by a computation.
import { html } from "htm/preact";
import { exact, number, percent, signed } from "../format.js";
import { Fetched, Figure, Only, param, Question, Section, Slider, Table, useAnswer, Verdict } from "../lesson.js";
import { Link } from "../route.js";
import { gib, tera } from "./costs-memory.js";

export function Questions() {
  return html`<${Section} title="Predict, then compute" id="questions">
    <${Only} depth="math code">
      <${Question} name="q-open" ask="A judge scores answers from 0 to 1 with an error of 0.5. Does a group's gradient still point in the right direction?"
        options=${[["fine", "Nearly as well as without error"], ["less", "Less than half as well"], ["not", "Not at all"]]}>
        ${(picked) => html`<${OpenEnded} picked=${picked} />`}<//>
    <//>
    <${Question} name="q-reward"
      ask="The checker also accepts one wrong answer, which is more likely than the right one. What happens to the share of right answers?"
      options=${[["up", "It still rises"], ["flat", "It stays the same"], ["down", "It falls to almost 0"]]}>
      ${(picked) => html`<${Imperfect} picked=${picked} />`}<//>
    <${Question} name="q-sft" ask="An untrained model writes four random characters out of 19. After how many groups of 8 does the first group have signal?"
      options=${[["10", "About ten"], ["1000", "About a thousand"], ["16000", "More than ten thousand"]]}>
      ${(picked) => html`<${NoWarmStart} picked=${picked} />`}<//>
    <${Only} depth="math code">
      <${Question} name="q-ppo" ask="Is GRPO better than PPO in everything that this page can compute?" options=${[["yes", "Yes"], ["no", "No"]]}>
        ${(picked) => html`<${BetterThanPpo} picked=${picked} />`}<//>
      <${Question} name="q-state"
        ask=${"Why compare within the group of one prompt, and not with all answers of the step? In a recorded run, how much of the reward's variance does " +
          "the prompt explain?"}
        options=${[["none", "Almost nothing"], ["some", "About a fifth"], ["most", "Most of it"]]}>
        ${(picked) => html`<${WhyGroups} picked=${picked} />`}<//>
      <${Question} name="q-size" ask="An answer is right with probability 0.1. From groups of 2 to groups of 64, which falls most?"
        options=${[["bias", "The shortening of the mean gradient"], ["noise", "The noise of one group"], ["silent", "The share of groups without signal"]]}>
        ${(picked) => html`<${GroupSizes} picked=${picked} />`}<//>
      <${Question} name="q-light" ask="GRPO could use a small critic. What does a critic that shares the policy network cost, compared with a separate one?"
        options=${[["same", "The same"], ["half", "Half"], ["free", "Almost nothing"]]}>
        ${(picked) => html`<${LightCritic} picked=${picked} />`}<//>
      <${Question} name="q-batch"
        ask=${"Suppose advantages are normalised across the whole batch instead of within groups. One prompt is easy (7 of 8 right), one hard (1 of 8). " +
          "Which answers get a larger advantage?"}
        options=${[
          ["easy", "Right answers to the easy prompt"],
          ["hard", "The one right answer to the hard prompt"],
          ["nobody", "None: it makes no difference"],
        ]}>
        ${(picked) => html`<${AcrossBatch} picked=${picked} />`}<//>
    <//>
  <//>`;
}

function OpenEnded({ picked }) {
  const state = useAnswer("costs", "open-ended", { g: param("oe_g", 8) });
  return html`<${Slider} name="oe_g" label="group size" min=${2} max=${32} step=${1} value=${8} />
    <${Fetched} state=${state} height="12rem">
      ${(data) => html`<${Verdict} picked=${picked} right=${data.rows[2].cosine / data.rows[0].cosine < 0.5 ? "less" : "fine"}>
        <${Table} label="A noisy judge"
          head=${["standard deviation of the judge's error", "cosine of one group's push with the true one", "groups without signal"]}
          rows=${data.rows.map((row) => [
            number(row.noise, 1),
            html`<span class="num" data-cosine=${row.noise}>${number(row.cosine, 3)}</span>`,
            percent(row.zero_signal),
          ])}
          foot=${"With a noisy judge every group has some signal, right or wrong. Larger groups and more prompts average random error out. A systematic " +
            "error does not average out; the policy learns it."} />
      <//>`}
    <//>`;
}

function Imperfect({ picked }) {
  const state = useAnswer("costs", "imperfect", { beta: param("im_beta", 0.2) });
  return html`<${Slider} name="im_beta" label="β" min=${0} max=${1} step=${0.02} value=${0.2} /><${Fetched} state=${state} height="14rem">${(data) => {
    const points = Object.entries(data.lines).flatMap(([which, line]) => ["paid", "true"].flatMap((kind) => line[kind].map(
      (y, i) => ({ x: line.steps[i], y, kind, which, id: `${which} ${kind}` }),
    )));
    return html`<${Verdict} picked=${picked} right="down">
      <${Figure} label="Reward and share of right answers over 200 steps" height=${190} deps=${[data.beta]}
        legend=${[["reward", "var(--c2)"], ["right", "var(--c1)"], [`dashed: β = ${exact(data.beta, 2)}`, "var(--ink-faint)"]]}
        build=${(Plot) => ({
          x: { label: "step", ticks: 5 },
          y: { grid: true, label: "share", domain: [0, 1], tickFormat: (v) => percent(v) },
          marks: [
            Plot.lineY(points, {
              x: "x",
              y: "y",
              z: "id",
              stroke: (d) => (d.kind === "paid" ? "var(--c2)" : "var(--c1)"),
              strokeWidth: 2,
              strokeDasharray: "",
            }),
            Plot.lineY(points.filter((p) => p.which === "beta"), {
              x: "x", y: "y", z: "id", stroke: "var(--surface)", strokeWidth: 2.4, strokeDasharray: "3 4",
            }),
          ],
        })}
        table=${{
          columns: ["β", "step", "reward", "right"],
          rows: Object.entries(data.lines).flatMap(([which, line]) => line.steps.map((step, i) => [
            which === "beta" ? data.beta : 0, step, line.paid[i], line.true[i],
          ])),
        }} />
      <p>After 200 steps without a KL penalty <b class="num" data-number="fooled">${percent(data.lines["0"].true.at(-1), 1)}</b> of answers are right, with β
        = ${exact(data.beta, 2)} <b class="num">${percent(data.lines.beta.true.at(-1), 1)}</b>. The checker
        accepts <b class="num">${percent(data.lines["0"].paid.at(-1), 1)}</b> and <b class="num">${percent(data.lines.beta.paid.at(-1), 1)}</b>. The penalty
        keeps the right answer from disappearing, but most accepted answers are still wrong, because training maximises the reward.</p>
      <//>`;
  }}<//>`;
}

function BetterThanPpo({ picked }) {
  const state = useAnswer("costs", "preset", { preset: "ppo" });
  return html`<${Fetched} state=${state} height="6rem">${(data) => {
    const spread = (rows) => Math.max(...rows.map((row) => Math.max(...row.pushes) - Math.min(...row.pushes)));
    return html`<${Verdict} picked=${picked} right="no">
      <p>On the family tree's four answers, the pushes within one answer differ by up to <b class="num">${exact(spread(data.completions), 3)}</b> under PPO,
        even with a critic that predicts 0.5 everywhere, and by <b class="num">${exact(spread(data.grpo), 3)}</b> under GRPO. GRPO needs less memory and gives
        coarser credit. Which one learns faster must be measured: <${Link} to="/learn/train">chapter 7<//> trains both.</p>
      <//>`;
  }}<//>`;
}

function NoWarmStart({ picked }) {
  const state = useAnswer("costs", "no-warm-start", { g: param("ws_g", 8) });
  return html`<${Slider} name="ws_g" label="group size" min=${2} max=${64} step=${1} value=${8} />
    <${Fetched} state=${state} height="6rem">
      ${(data) => html`<${Verdict} picked=${picked} right="16000">
        <p>A random answer is right once in <b class="num">${number(1 / data.untaught)}</b>, so one group
          of ${data.g} in <b class="num" data-number="untaught-wait">${number(Math.round(data.untaught_wait))}</b> has signal. The recorded run, after
          supervised training, had ${percent(data.taught)} right in its first step, so one group in <b class="num">${number(data.taught_wait, 2)}</b> has
          signal. R1-Zero could skip supervised training because its base model was already right sometimes (reported: arXiv 2501.12948; it also reports mixed
          languages and poor readability, which supervised examples fix).</p>
      <//>`}
    <//>`;
}

function WhyGroups({ picked }) {
  const state = useAnswer("costs", "why-groups", {});
  return html`<${Fetched} state=${state} height="6rem">
    ${(data) => html`<${Verdict} picked=${picked} right="some">
      <p>In the first ${data.steps} steps of the recorded run the prompt explains <b class="num" data-number="by-prompt">${percent(data.by_prompt, 1)}</b> of
        the reward's variance within a step: ${exact(data.batch, 3)} around the batch mean, ${exact(data.group, 3)} around group means. A prompt can be sampled
        any number of times, so its value can be estimated from samples, without a network.</p>
    <//>`}
    <//>`;
}

function GroupSizes({ picked }) {
  const state = useAnswer("costs", "group-sizes", {});
  return html`<${Fetched} state=${state} height="10rem">
    ${(rows) => html`<${Verdict} picked=${picked} right="silent">
      <${Table} label="Group sizes"
        head=${["G", "groups without signal", "mean ÷ true gradient", "theory: 1 − 1/G", "noise of one group", "angle when divided by the std"]}
        rows=${rows.map((row) => [
          String(row.g),
          html`<span class="num" data-silent=${row.g}>${percent(row.zero_signal, 1)}</span>`,
          row.along,
          row.expected_along,
          row.noise,
          `${number(row.angle, 1)}°`,
        ])}
        foot=${"Noise falls only with the square root of the number of answers. For a hard prompt, the main benefit of a larger group is that it has signal " +
          "at all."} />
    <//>`}
    <//>`;
}

function LightCritic({ picked }) {
  const state = useAnswer("costs", "critics", { size: param("size", 7) });
  return html`<${Fetched} state=${state} height="10rem">
    ${(rows) => html`<${Verdict} picked=${picked} right="free">
      <${Table} label="Critics" head=${["critic", "peak memory", "10¹² FLOPs"]} rows=${rows.map((row) => [row.critic, gib(row.peak), tera(row.flops)])}
        foot=${"--critic.model shared adds one output to the policy's network. It is cheap but less accurate: in the runs of docs/algorithm.md its explained " +
          "variance stayed below 0 where a separate critic's reached 0.4, and held-out accuracy ended at 91% against 93%."} />
    <//>`}
    <//>`;
}

function AcrossBatch({ picked }) {
  const state = useAnswer("costs", "batch", {});
  return html`<${Fetched} state=${state} height="10rem">${(data) => {
    const cell = (kind, prompt, place) => signed(data.advantages[kind][prompt].at(place), 2);
    return html`<${Verdict} picked=${picked} right="easy">
      <${Table} label="Within groups and across the batch"
        head=${["normalised by", "easy prompt: right", "easy prompt: wrong", "hard prompt: right", "hard prompt: wrong"]}
        rows=${Object.keys(data.advantages).map((kind) => [kind, cell(kind, "easy", 0), cell(kind, "easy", -1), cell(kind, "hard", 0), cell(kind, "hard", -1)])}
        foot=${"Within groups, the rare case weighs most: one right answer to a hard prompt, one wrong answer to an easy one. With the batch mean, every " +
          "right answer gets the same advantage, so easy prompts dominate the batch."} />
      <//>`;
  }}<//>`;
}
