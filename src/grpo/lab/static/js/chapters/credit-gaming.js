// Blind spots of a reward, and how a policy exploits them.
import { html } from "htm/preact";
import { Code, Fetched, Numbers, Only, param, Play, Question, Section, Table, TextField, Trial, useAnswer, useDepth, Verdict } from "../lesson.js";
import { number, percent } from "../format.js";
import { Term } from "../glossary.js";
import { Advantage, Reward } from "../parts.js";
import { Link, setQuery } from "../route.js";
import { visible } from "../text.js";

const STRATEGIES = { reasons: "right with working", recalls: "right without working", lucky: "right with wrong working", wrong: "wrong", yours: "yours" };
const GUESSES = ["(18;16)168", "168", "161", "174", "190"].join("\n");

export function Blind() {
  const state = useAnswer("credit", "strategies", { own: param("own", "") });
  const chosen = param("look", "reasons");
  return html`<${Section} id="blind" title="What an outcome reward cannot see"
    lead="What is 2 + 3 × 4? Three answers end in 14. Choose one and see its reward.">
    <${Play} label="Three ways to the same answer">
      <${Fetched} state=${state} height="16rem">${(found) => {
        const row = found.rows.find((one) => one.name === chosen) ?? found.rows[0];
        return html`<div class="picks words" role="group" aria-label="Answers">
          ${found.rows.map((one) => html`<button type="button" class=${one === row ? "picked" : ""} aria-pressed=${one === row}
            onClick=${() => setQuery({ look: one.name === "reasons" ? undefined : one.name })}>
            ${STRATEGIES[one.name]}</button>`)}
          </div>
          <blockquote class="said-text"><bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi></blockquote>
          <${Numbers}
            items=${[
              ["extracted answer", row.extracted ? visible(row.extracted) : "none", "by the checker"],
              ["reward", number(row.reward), "", "strategy-reward"],
              ["advantage", html`<${Advantage} value=${row.advantage} />`, "for every token", "strategy-advantage"],
            ]} />
          <p class="small soft">
            ${row.reward ? "Every answer that ends in 14 gets the same reward, with any working." : "Every token is pushed down, also those that were right."}
          </p>`;
      }}<//>
      <div class="knobs"><${TextField} name="own" label="Your own wording" value="" most=${400} /></div>
    <//>
  <//>`;
}

export function Gaming() {
  const depth = useDepth();
  const state = useAnswer("credit", "gamed", { guesses: param("guesses", GUESSES) });
  return html`<${Section} id="gaming" title="A reward that can be gamed"
    lead=${"Suppose we want right and short answers. This checker accepts any answer within 10 and subtracts a little for every extra character. It looks " +
      "sensible."}>
    <${Play} label="Two checkers on the same answers">
      <${Fetched} state=${state} height="16rem">${(found) => html`
        <${Table} label="The same answers with both checkers" head=${[`answer to ${found.prompt}`, "", "gameable", "advantage", "corrected", "advantage"]}
          rows=${found.rows.map((row) => [
            html`<bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi>`,
            row.right ? "right" : "wrong",
            html`<${Reward} value=${row.gameable.reward} />`,
            html`<${Advantage} value=${row.gameable.advantage} />`,
            html`<${Reward} value=${row.mended.reward} />`,
            html`<${Advantage} value=${row.mended.advantage} />`,
          ])} />`}
      <//>
      <details class="inspect"><summary>Edit the answers</summary>
        <div class="knobs"><${TextField} name="guesses" label="One answer per line" value=${GUESSES} most=${600} rows=${5} /></div></details>
      <${Only} depth="code"><${Code} slug="credit" source="close_and_brief" title="The gameable checker" open />
        <${Code} slug="credit" source="exact" title="The corrected checker" open /><//>
    <//>
    <p>A close guess earns the full reward, and working costs characters. Answer, and see a model trained with each checker.</p>
    <${Question} name="q-imperfect" ask=${html`A penalty, β, can keep the model near its <${Term} of="reference">reference<//>. Does it prevent the gaming?`}
      options=${[["yes", "Yes, with β large enough"], ["slows", "It only slows it down"], ["no", "It makes no difference"]]}>
      ${(picked) => html`<${Verdict} picked=${picked} right="slows">
        <${Trial} name="gamed" plain=${depth === "intuition" ? { charts: { reward_mean: "reward", right_share: "right answers" } } : undefined}>
          ${(outcome) => html`<${Measured} outcome=${outcome} />`}<//>
      <//>`}
    <//>
  <//>`;
}

// Held-out results before and after training: the range over seeds.
function seedsOf(arm, metric) {
  return [0, -1].map((place) => {
    const seeds = arm.evals.map(({ rows }) => rows.at(place)[metric]);
    const [low, high] = [percent(Math.min(...seeds)), percent(Math.max(...seeds))];
    return low === high ? low : `${low.slice(0, -1)}–${high}`;
  });
}

function Measured({ outcome }) {
  const arms = outcome.arms.filter((arm) => arm.evals.length);
  if (!arms.length) return null;
  const cells = (arm, metric) => seedsOf(arm, metric).map((text, place) => (place ? html`<b>${text}</b>` : text));
  return html`<${Table} label="Held-out problems: exactly right and with working, before and after, range over seeds"
    head=${["checker", "exactly right before", "… after", "with working before", "… after"]}
    rows=${arms.map((arm) => [arm.label, ...cells(arm, "right_share"), ...cells(arm, "worked_share")])}
    foot="200 held-out problems; lowest to highest seed. The table above counts what each checker accepts: a gamed checker reports success." />
    <p>With the gameable checker the reward rises while accuracy falls: the algorithm maximises the reward it is given. A larger β slows good changes as well as
      bad ones. Fix the checker. In a run the sign is a reward that rises while exact held-out accuracy does
      not: <${Link} to="/learn/train">the clinic has such a run<//>.</p>`;
}

export function Api() {
  const state = useAnswer("credit", "rewards");
  const cell = (one) => (one.fault
    ? html`<span class="fault">${one.fault === "failure" ? "unscored" : "the run stops"}</span> <span class="tiny soft">${one.why}</span>`
    : one.value === null ? html`<span class="soft">does not apply</span>` : html`<${Reward} value=${one.value} />`);
  return html`<p>Any Python function can be a reward. It takes either a problem and a text, or lists as in TRL. A run calls it in a separate process and checks
    every value it returns.</p>
    <${Code} slug="credit" source="near" title="One completion at a time" open />
    <${Code} slug="credit" source="near_as_in_trl" title="Lists, as in TRL" open />
    <${Code} slug="credit" source="careless" title="A function with errors" open />
    <${Fetched} state=${state} height="16rem">
      ${(found) => html`<${Table} label="How a run handles the returned values" head=${["completion", ...found.functions.map((one) => one.name)]}
        rows=${found.texts.map((text, place) => [
          html`<bdi class="untrusted" dir="ltr">${visible(text)}</bdi>`,
          ...found.functions.map((one) => cell(one.outcomes[place])),
        ])}
        foot=${`Called when this page loaded, as in a run: ${found.problem.prompt} ${found.problem.answer}.`} />`}
    <//>
    <pre class="listing" tabIndex="0" role="group" aria-label="Commands"><code>grpo train --reward mine.py:near
grpo train --reward "mine.py:near*0.5, task"        # several, weighted
grpo train --reward judge:URL   # a language model that grades</code></pre>
    <${Code} slug="credit" source="invoke" title="One guarded call" />`;
}
