// Credit per token: GRPO's advantage, a critic's, and the true gain.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Section, Slider, Table, useAnswer } from "../lesson.js";
import { number, percent, signed } from "../format.js";
import { Term } from "../glossary.js";
import { Advantage, Segmented } from "../parts.js";
import { setQuery } from "../route.js";
import { PROBLEMS } from "../offline/problems.js";
import { Asked, Tokens } from "./answers.js";

const VIEWS = [["grpo", "GRPO"], ["gae", "PPO’s critic"], ["true_gain", "true gain"]];

export function WhichToken() {
  const asked = {
    prompt: param("prompt", "37+85+46="),
    seed: param("seed", 1),
    gamma: param("gamma", 1),
    lam: param("lam", 0.95),
    sample: param("sample", ""),
  };
  const state = useAnswer("credit", "tokens", asked);
  const view = param("by", "grpo");
  return html`<${Section} id="tokens" title="Which token earned the reward?"
    lead=${html`GRPO gives every <${Term} of="token">token<//> of an answer the same <${Term} of="advantage">advantage<//>.
      PPO’s <${Term} of="critic">critic<//> gives each token its own. Compare both with the truth, and click a token.`}>
    <${Play} label="Credit for every token">
      <${Asked} prompt=${asked.prompt} recorded=${PROBLEMS} />
      <${Fetched} state=${state} height="30rem">${(found) => html`
        <div class="picks" role="group" aria-label="Answers of the group">
          ${found.texts.map((one, place) => html`<button type="button" class=${place === found.sample ? "picked" : ""} aria-pressed=${place === found.sample}
            onClick=${() => setQuery({ sample: place, token: undefined })}>
            ${one.text} ${one.reward ? "✓" : "✗"}</button>`)}
        </div>
        <${Segmented} label="Credit by" options=${VIEWS} value=${view} onChange=${(key) => setQuery({ by: key === "grpo" ? undefined : key })} />
        <${Row} found=${found} view=${view} />
        <${Curves} found=${found} />
        <${Picked} found=${found} />
        <${Only} depth="math"><${Worked} found=${found} asked=${asked} /><//>`}<//>
      <${Only} depth="math code">
        <div class="knobs">
          <${Slider} name="lam" label="λ: weight of later TD errors" min=${0} max=${1} step=${0.05} value=${0.95} show=${(value) => number(value, 2)} />
          <${Slider} name="gamma" label="γ: discount per token" min=${0.5} max=${1} step=${0.01} value=${1} show=${(value) => number(value, 2)} /></div>
      <//>
      <${Only} depth="code"><${Code} slug="credit" source="gae" title="GAE" /><${Code} slug="credit" source="values" title="The critic's values" />
        <${Code} slug="credit" source="true_value" title="True values, by sampling continuations" /><//>
    <//>
    <p>The truth is measured: we restart ${state.data?.tries ?? "many"} times from each token and count right answers. Nearly all of the gain is in the opening
      parenthesis, the decision to write the working down. A trained critic sees that. GRPO pushes all tokens alike and still learns: over many groups, pushes
      on tokens that do not matter cancel.</p>
  <//>`;
}

function Row({ found, view }) {
  const values = found.tokens.map((token) => token[view]);
  return html`<${Tokens} tokens=${found.tokens.map((token) => token.text)} values=${values} unit=${0.5} chosen=${chosenToken(found)}
    onChoose=${(place) => setQuery({ token: place })} label="Tokens of the answer" />`;
}

const chosenToken = (found) => Math.max(0, Math.min(found.tokens.length - 1, param("token", 0)));

function Curves({ found }) {
  const rows = found.tokens.map((token, place) => ({ ...token, place, label: token.text }));
  const at = chosenToken(found);
  return html`<${Figure} label="Credit of every token: GRPO, critic with GAE, true gain" height=${220} deps=${[JSON.stringify(found.tokens), at]}
    legend=${[["GRPO", "var(--c1)"], ["PPO’s critic", "var(--c2)"], ["true gain", "var(--c4)"]]}
    build=${(Plot) => ({ x: { label: "token", ticks: rows.map((row) => row.place), tickFormat: (place) => rows[place]?.label ?? "" },
      y: { grid: true, label: "credit" },
      marks: [Plot.ruleY([0], { stroke: "var(--line-strong)" }), Plot.ruleX([at], { stroke: "var(--accent)", strokeOpacity: 0.5 }),
      ...[["grpo", "var(--c1)"], ["gae", "var(--c2)"], ["true_gain", "var(--c4)"]].flatMap(([y, stroke]) => [
        Plot.lineY(rows, { x: "place", y, stroke, strokeWidth: 2 }),
        Plot.dot(rows, { x: "place", y, fill: stroke, r: 3 }),
      ])] })}
    table=${{
      columns: ["token", "GRPO", "critic's value", "GAE", "true value", "true gain"],
      rows: found.tokens.map((token) => [token.text, token.grpo, token.value, token.gae, token.true_value, token.true_gain]),
    }} />`;
}

const two = (value) => (Math.abs(value) < 0.005 ? "0.00" : signed(value));

function Picked({ found }) {
  const place = chosenToken(found);
  const token = found.tokens[place];
  return html`<${Numbers} items=${[
    [`token ${place + 1} of ${found.tokens.length}`, html`<code>${token.text}</code>`, found.reward ? "right answer" : "wrong answer"],
    ["GRPO's advantage", signed(token.grpo), "all tokens", "token-grpo"],
    ["PPO’s critic", two(token.gae), `expected before it: ${number(token.value, 2)}`, "token-gae"],
    ["true gain", two(token.true_gain), `right before it: ${percent(token.true_value)}`, "token-true"],
  ]} />`;
}

function Worked({ found, asked }) {
  const place = chosenToken(found);
  const [token, next] = [found.tokens[place], found.tokens[place + 1]];
  const reward = next ? 0 : found.reward;
  return html`<${Equation}
    tex=${`\\delta_t=r_t+\\gamma V_{t+1}-V_t=${reward}+${asked.gamma}\\cdot${next
      ? next.value.toFixed(3)
      : 0}-${token.value.toFixed(3)}=${token.surprise.toFixed(3)}`}
    spoken="The TD error of a token is its reward plus the discounted value after it, minus the value before it." />
    <${Equation}
      tex=${`A_t=\\delta_t+\\gamma\\lambda A_{t+1}=${token.surprise.toFixed(3)}+${asked.gamma}\\cdot${asked.lam}\\cdot${next
        ? `(${next.gae.toFixed(3)})`
        : 0}=${token.gae.toFixed(3)}`}
      spoken="The advantage of a token is its TD error plus gamma lambda times the advantage of the next token." />`;
}

export function SameForAll() {
  const state = useAnswer("credit", "presets", { prompt: param("prompt", "37+85+46="), seed: param("seed", 1) });
  return html`<${Fetched} state=${state} height="20rem">
    ${(found) => html`<${Table} label="Number of distinct token advantages in one answer, by preset"
      head=${["preset", "distinct advantages in one answer", "first token", "last token"]}
    rows=${found.rows.map((row) => [
      row.label,
      html`<b class="num" data-number=${`distinct-${row.label.replaceAll(" ", "-")}`}>${row.distinct}</b>`,
      html`<${Advantage} value=${row.advantages[0]} />`,
      html`<${Advantage} value=${row.advantages.at(-1)} />`,
    ])}
    foot=${`The same eight answers to ${found.prompt} for every preset, without the KL term.`} />`}
    <//>`;
}
