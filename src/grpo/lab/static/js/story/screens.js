// The screens of the story: a title, at most fifty words, and something to look at or to move.
import { html } from "htm/preact";
import { cliff } from "../chart/cliff.js";
import { HowToRead } from "../chapters/answers.js";
import { number, percent, signed } from "../format.js";
import { Term } from "../glossary.js";
import { Fetched, Figure, Numbers, param, Question, Slider, useAnswer, Verdict } from "../lesson.js";
import { Link, setQuery } from "../route.js";
import { TrainHere } from "../nano/train-here.js";
import { Rows } from "./rows.js";

const mean = (found) => found.measured.reward_mean;

export const SCREENS = [
  {
    title: "One question, eight answers",
    words: () => html`A small language model answers the same sum eight times. It draws every character at random by its probabilities, so the answers differ.`,
    Demo: ({ found }) => html`<p class="story-prompt">${found.prompt}</p><${Rows} found=${found} /><${HowToRead} prompt=${found.prompt} />`,
  },
  {
    title: "A program scores them",
    words: (found) => html`Is the final number ${found.answer}? Then the <${Term} of="reward">reward<//> is 1, else 0. Nobody looks at the working. Nobody shows
      a solution.`,
    Demo: ({ found }) => html`<${Rows} found=${found} columns=${["reward"]} />`,
  },
  {
    title: "Compare with the group",
    words: (found) => html`The average reward is ${number(mean(found), 2)}. An answer's <b>advantage</b> is how far its reward lies above or below that average,
      in units of the group's <${Term} of="standard-deviation">standard deviation<//> (${number(found.measured.reward_std, 2)}).
      Blue is above, orange below.`,
    Demo: ({ found }) => html`<${Rows} found=${found} columns=${["reward", "advantage"]} /><p class="small soft">${deviation(found)}</p>`,
  },
  {
    title: "Better than the others",
    words: () => html`Drag any reward. All eight advantages move: an answer is good only compared with the others of its group.`,
    Demo: Dragged,
  },
  {
    title: "No difference, no lesson",
    words: () => html`If all eight are right, or all wrong, every advantage is 0 and nothing is learned. That happens when a question is too easy or too hard.`,
    Demo: Silent,
  },
  {
    title: "Advantage becomes push",
    words: (found) => html`Each answer shares its advantage out over its <${Term} of="token">tokens<//>. Blue tokens become more likely, orange ones
      less. ${shares(found)} Here the short answers are wrong: they are pushed hardest.`,
    Demo: ({ found }) => html`<${Rows} found=${found} columns=${["advantage", "push"]} /><p class="small soft">${division(found)} “end” is a token too.</p>`,
  },
  {
    title: "The model moves",
    words: (found) => html`One update of the weights. The worked answer becomes more likely, the guesses less.
      In ${found.after.looks} draws, ${percent(found.after.right[0])} were right before and ${percent(found.after.right[1])} after,
      give or take ${percent(chanceOf(found.after))}.`,
    Demo: ({ found }) => html`<${Rows} found=${found} columns=${["reward", "moved"]} /><p class="small soft">${twice(found)}</p>`,
  },
  {
    title: "A brake: the clip",
    words: () => html`Several updates may use the same answers. Once a good answer's token is a fifth more likely than when it was sampled, it gets no further
      push from this group.`,
    Demo: Brake,
  },
  {
    title: "A leash: the reference",
    words: () => html`Training may also pull the model back towards its starting point, the <${Term} of="reference">reference<//>. A stronger pull keeps it
      closer and lets it learn less. Here the model is a table: twelve answers to one question, and one is right.`,
    Demo: Leash,
  },
  {
    title: "Can you say it?",
    words: () => html`Two questions about what you saw.`,
    Demo: Check,
  },
  {
    title: "Now train it",
    words: () => html`The same update on eight sums a step, for real, in this page. Watch the right answers.`,
    Demo: () => html`<${TrainHere} /><p class="story-onward"><${Link} to="/play">Play the group<//><${Link} to="/learn/why">Chapter 1<//></p>`,
  },
];

// The sample's standard deviation: eight squares, divided by seven.
function deviation({ completions, measured }) {
  const squares = completions.reduce((sum, { reward }) => sum + (reward - measured.reward_mean) ** 2, 0);
  const root = `√(${number(squares, 2)} ÷ ${completions.length - 1}) = ${number(measured.reward_std, 2)}`;
  return `Standard deviation: the squared distances from the average add up to ${number(squares, 2)}; divided by one less than the answers, ${root}.`;
}

// The standard deviation of a share that was counted.
const chanceOf = ({ looks, right: [, share] }) => Math.sqrt((share * (1 - share)) / looks);

// Two answers of the group, by the number of tokens that share their advantage.
function shares(found) {
  const right = found.completions.find((row) => row.reward);
  const wrong = found.completions.find((row) => !row.reward);
  return html`<code>${right.text}</code> has ${right.tokens.length}, <code>${wrong.text}</code> only ${wrong.tokens.length}, so each
    gets ${number(Math.abs(wrong.push[0] / right.push[0]), 0)} times the push.`;
}

// The hardest pushed answer's figure, from its advantage.
function division({ completions }) {
  const row = completions.reduce((most, one) => (Math.abs(one.push[0]) > Math.abs(most.push[0]) ? one : most));
  return `Push, in thousandths: ${number(
    Math.abs(row.advantage), 2,
  )} ÷ ${row.tokens.length} tokens ÷ ${completions.length} answers = ${Math.abs(row.push[0]).toFixed(3)}.`;
}

// Why equal pushes move guesses differently: the pushes on a first token that guesses share add up.
function twice({ completions }) {
  const guesses = completions.filter((row) => !row.reward);
  const alike = guesses.map((row) => guesses.filter((other) => other.tokens[0] === row.tokens[0])).find((rows) => rows.length === 2);
  const single = guesses.find((row) => !alike.includes(row));
  return html`<code>${alike[0].text}</code> and <code>${alike[1].text}</code> share their <code>${alike[0].tokens[0]}</code>: it was pushed down twice,
    the <code>${single.tokens[0]}</code> of <code>${single.text}</code> once.`;
}

function Dragged({ found }) {
  const start = found.completions.map((row) => row.reward);
  const asked = String(param("r", start.join(","))).split(",").map(Number);
  const rewards = asked.length === start.length && asked.every((one) => one >= 0 && one <= 1) ? asked : start;
  const state = useAnswer("advantage", "group", { of: "six", rewards: rewards.join(",") });
  const set = (place, value) => setQuery({ r: rewards.map((reward, at) => (at === place ? value : reward)).join(",") });
  return html`<${Fetched} state=${state} height="20rem">
    ${(data) => html`<${Rows} found=${found} columns=${["reward", "advantage"]} rewards=${rewards} advantages=${data.advantages.grpo} onReward=${set} />
    <${Numbers} items=${[["average reward", number(data.mean, 2), null, "story-mean"]]} />`}<//>`;
}

function Silent() {
  const p = param("p", 0.9);
  const state = useAnswer("group", "chance", { p, g: 8 });
  return html`<${Slider} name="p" label="How often the model is right" min=${0} max=${1} step=${0.01} value=${0.9} show=${(value) => percent(value)} />
    <${Fetched} state=${state} height="17rem">
      ${(data) => html`<${Numbers} items=${[["groups of eight without a lesson", percent(data.zero_signal), null, "story-silent"]]} />
      <${Figure} label="Share of groups without a lesson by how often the model is right" height=${200} deps=${[data.p]}
        build=${(Plot) => ({
          x: { label: "how often right", tickFormat: (value) => percent(value) },
          y: { domain: [0, 1], label: "groups without a lesson", grid: true, tickFormat: (value) => percent(value) },
          marks: [
            Plot.lineY(data.curve, { x: "p", y: "zero_signal", stroke: "var(--c3)", strokeWidth: 2 }),
            Plot.dot([data], { x: "p", y: "zero_signal", r: 6, fill: "var(--accent)" }),
          ],
        })}
        table=${{ columns: ["right", "without a lesson"], rows: data.curve.map((row) => [row.p, row.zero_signal]) }} />`}
    <//>`;
}

function Brake() {
  const ratio = param("rho", 1.1);
  const state = useAnswer("loss", "clip", { ratio, advantage: "1" });
  return html`<${Slider} name="rho" label="Its probability, compared with when it was sampled" min=${0.5} max=${1.5} step=${0.05} value=${1.1}
    show=${(value) => `${signed(100 * (value - 1), 0)}%`} />
    <${Fetched} state=${state} height="17rem">
      ${(data) => html`<${Numbers}
        items=${[["push", number(data.push, 2), data.held ? "stopped by the clip" : "times that of the first update", "story-clip"]]} />
      <${Figure} label="Push of a token by the change of its probability" height=${200} deps=${[data.ratio]}
        build=${(Plot) => ({
          x: { label: "change of its probability", domain: [0.5, 1.5], tickFormat: (value) => `${signed(100 * (value - 1), 0)}%` },
          y: { label: "push (first update: 1)", grid: true, zero: true },
          marks: [
            Plot.lineY(cliff(data.curve.ratio, data.curve.push, data.limits), { x: "at", y: "push", stroke: "var(--above)", strokeWidth: 2, clip: true }),
            Plot.dot([data], { x: "ratio", y: "push", r: 6, fill: "var(--accent)" }),
          ],
        })}
        table=${{ columns: ["ratio", "push"], rows: data.curve.ratio.map((one, place) => [one, data.curve.push[place]]) }} />`}
    <//>`;
}

function Leash() {
  const state = useAnswer("loss", "drift", { beta: param("beta", 0.2), kl: "k3" });
  return html`<${Slider} name="beta" label="Strength of the pull" min=${0} max=${1} step=${0.1} value=${0.2} show=${(value) => number(value, 1)} />
    <${Fetched} state=${state} height="17rem">
      ${(data) => html`<${Numbers}
        items=${[
          ["distance from the start", number(data.ends.at(-1).reverse, 2), `no pull: ${number(data.ends[0].reverse, 2)}`, "story-distance"],
          ["right answers after 200 steps", percent(data.ends.at(-1).reward), `no pull: ${percent(data.ends[0].reward)}`, "story-reward"],
        ]} />
      <${Figure} label="Distance from the reference over 200 steps, with and without the pull" height=${200} deps=${[data.beta]}
        legend=${[["no pull", "var(--c6)"], ...(data.beta ? [["this pull", "var(--c1)"]] : [])].map(([name, colour]) => [`${name}, three runs`, colour])}
        build=${(Plot) => ({
          x: { label: "step" },
          y: { label: "distance from the start", grid: true, zero: true },
          marks: data.lines.map((line) => Plot.lineY(line.reverse, {
            x: (_, place) => data.steps[place],
            y: (one) => one,
            stroke: line.beta ? "var(--c1)" : "var(--c6)",
            strokeWidth: 1.6,
          })),
        })}
        table=${{
          columns: ["step", "pull", "distance"],
          rows: data.lines.flatMap((line) => line.reverse.map((one, place) => [data.steps[place], line.beta, one])),
        }} />`}
    <//>`;
}

// What each answer of the questions is told.
const WHY = {
  reward: "A reward of 1 has advantage 0 where all eight have it.",
  group: "In units of the group's standard deviation.",
  length: "The length divides the push; the advantage comes from rewards only.",
  more: "All wrong answers of this group have the same advantage, whatever their length.",
  share: "Every answer counts the same. Few tokens, more push for each.",
  wrong: "Here a wrong answer's advantage is as large as a right one's.",
};

function Check() {
  return html`<${Question} name="what" ask="What is an answer's advantage?"
    options=${[["reward", "Its reward"], ["group", "How far its reward is above or below its group's average"], ["length", "How long it is"]]}>
    ${(picked) => html`<${Verdict} picked=${picked} right="group"><p>${WHY[picked]}</p><//>`}<//>
    <${Question} name="short" ask="Why is a short wrong answer pushed hardest?"
      options=${[["more", "Short answers have larger advantages"], ["share", "Few tokens share its advantage"], ["wrong", "Wrong answers count double"]]}>
      ${(picked) => html`<${Verdict} picked=${picked} right="share"><p>${WHY[picked]}</p><//>`}<//>`;
}
