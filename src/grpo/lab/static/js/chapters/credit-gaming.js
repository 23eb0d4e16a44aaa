// What a reward cannot see, and what a policy does with it.
import { html } from "htm/preact";
import { Code, Fetched, Numbers, Only, param, Play, Section, Table, TextField, Trial, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { Advantage, Reward } from "../parts.js";
import { Link, setQuery } from "../route.js";
import { visible } from "../text.js";

const STRATEGIES = { reasons: "works it out", recalls: "only says it", lucky: "wrong on the way, right at the end", wrong: "wrong", yours: "yours" };
const GUESSES = ["(18;16)168", "168", "161", "174", "190"].join("\n");

export function Blind() {
  const state = useAnswer("credit", "strategies", { own: param("own", "") });
  const chosen = param("look", "reasons");
  return html`<${Section} id="blind" title="What the reward cannot see" lead="What is 2 + 3 × 4? Three answers end in 14. One reasons, one recalls, one stumbles into it. Choose one, and see what GRPO sees.">
    <${Play} label="Ways to reach the same answer">
      <${Fetched} state=${state} height="16rem">${(found) => {
        const row = found.rows.find((one) => one.name === chosen) ?? found.rows[0];
        return html`<div class="picks words" role="group" aria-label="Answers">${found.rows.map((one) => html`<button type="button" class=${one === row ? "picked" : ""} aria-pressed=${one === row} onClick=${() => setQuery({ look: one.name === "reasons" ? undefined : one.name })}>${STRATEGIES[one.name]}</button>`)}</div>
          <blockquote class="said-text"><bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi></blockquote>
          <${Numbers} items=${[["read as", row.extracted ? visible(row.extracted) : "nothing", "by the checker"], ["reward", number(row.reward), "", "strategy-reward"], ["advantage", html`<${Advantage} value=${row.advantage} />`, "on every token", "strategy-advantage"]]} />
          <p class="small soft">${row.reward ? "The same number as for every other answer that ends in 14: to GRPO they are one." : "Below the group: every token of it is pushed down, those that were right too."}</p>`;
      }}<//>
      <div class="knobs"><${TextField} name="own" label="Another way to say it: yours" value="" most=${400} /></div>
    <//>
  <//>`;
}

export function Gaming() {
  const state = useAnswer("credit", "gamed", { guesses: param("guesses", GUESSES) });
  return html`<${Section} id="gaming" title="A reward that can be gamed" lead="Somebody wants right answers and few words. Their check takes an answer for right that is within ten of it, and charges for every character that is not needed. It looks sensible. Score some answers under it, and under its mended form.">
    <${Play} label="Two checks on the same answers">
      <${Fetched} state=${state} height="16rem">${(found) => html`
        <${Table} label="The same answers under both checks" head=${[`answer to ${found.prompt}`, "truly", "gameable pays", "advantage", "mended pays", "advantage"]}
          rows=${found.rows.map((row) => [html`<bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi>`, row.right ? "right" : "wrong", html`<${Reward} value=${row.gameable.reward} />`, html`<${Advantage} value=${row.gameable.advantage} />`, html`<${Reward} value=${row.mended.reward} />`, html`<${Advantage} value=${row.mended.advantage} />`])} />`}<//>
      <details class="inspect"><summary>Other answers</summary><div class="knobs"><${TextField} name="guesses" label="One answer per line" value=${GUESSES} most=${600} rows=${5} /></div></details>
      <${Only} depth="code"><${Code} slug="credit" source="close_and_brief" title="The check that can be gamed" open /><${Code} slug="credit" source="exact" title="Mended" open /><//>
    <//>
    <p>A guess that is close is paid in full, and working the sum out costs characters. Now let a model train on each, and watch two curves: what it is paid, and how often it is truly right, which the first check never asks.</p>
    <${Trial} name="gamed">${(outcome) => html`<${Told} outcome=${outcome} />`}<//>
  <//>`;
}

// Held-out problems before and after: the lowest and the highest of the seeds.
export function seedsOf(arm, metric) {
  return [0, -1].map((place) => {
    const seeds = arm.evals.map(({ rows }) => rows.at(place)[metric]);
    const [low, high] = [percent(Math.min(...seeds)), percent(Math.max(...seeds))];
    return low === high ? low : `${low.slice(0, -1)}–${high}`;
  });
}

function Told({ outcome }) {
  const arms = outcome.arms.filter((arm) => arm.evals.length);
  if (!arms.length) return null;
  const cells = (arm, metric) => seedsOf(arm, metric).map((text, place) => (place ? html`<b>${text}</b>` : text));
  return html`<${Table} label="Held-out problems: taken for right, truly right and worked out, before and after, by seed" head=${["check", "truly right before", "… after", "worked out before", "… after"]} rows=${arms.map((arm) => [arm.label, ...cells(arm, "right_share"), ...cells(arm, "worked_share")])} foot="200 held-out problems; from the lowest to the highest of the seeds. The table above it counts what each check itself takes for right: a check that is gamed reports success." />
    <p>Under the first check the pay rises while the model unlearns what it could do. Nothing in the algorithm went wrong: it did what was paid for. A stronger leash (β) slows it and does not stop it, and it holds back what is learned from the mended check as well. Mending the check is what helps. On a run's page the sign is pay that rises while held-out answers do not: <${Link} to="/learn/train">the clinic has such a run<//>.</p>`;
}

export function Api() {
  const state = useAnswer("credit", "rewards");
  const cell = (one) => (one.fault ? html`<span class="fault">${one.fault === "failure" ? "unscored" : "the run stops"}</span> <span class="tiny soft">${one.why}</span>` : one.value === null ? html`<span class="soft">does not apply</span>` : html`<${Reward} value=${one.value} />`);
  return html`<p>Any Python function can pay. One takes a problem and a text, one takes lists as TRL's do; a run calls them in processes of their own and decides what becomes of everything they return.</p>
    <${Code} slug="credit" source="near" title="One completion at a time" open />
    <${Code} slug="credit" source="near_as_in_trl" title="Lists, as TRL has them" open />
    <${Code} slug="credit" source="careless" title="And a careless one" open />
    <${Fetched} state=${state} height="16rem">${(found) => html`<${Table} label="What a run makes of what they return" head=${["completion", ...found.functions.map((one) => one.name)]} rows=${found.texts.map((text, place) => [html`<bdi class="untrusted" dir="ltr">${visible(text)}</bdi>`, ...found.functions.map((one) => cell(one.outcomes[place]))])} foot=${`Called just now as a run calls them: ${found.problem.prompt} ${found.problem.answer}.`} />`}<//>
    <pre class="listing" tabIndex="0" role="group" aria-label="Commands"><code>grpo train --reward mine.py:near
grpo train --reward "mine.py:near*0.5, task"        # several, weighted
grpo train --reward judge:URL   # a language model that grades</code></pre>
    <${Code} slug="credit" source="call" title="One call, whatever happens" />`;
}
