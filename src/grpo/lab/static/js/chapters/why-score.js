// The reader's answer, scored by the tasks' checker within a group.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Numbers, Only, param, Play, Section, TextField, useAnswer, useDepth } from "../lesson.js";
import { setQuery } from "../route.js";
import { visible } from "../text.js";
import { Answers } from "./answers.js";

const FORMS = {
  box: "in a box", hashes: "after ####", tag: "between tags", sentence: "after “the answer is”", bare: "the whole text", "last number": "the last number",
  "last line": "the last line", "last letter": "the last letter",
};
const CLASSMATES = [
  "3 × 4 = 12, and 2 + 12 = 14. The answer is 14.", "2 + 3 = 5, times 4 makes 20.", "14", "It is about 13, I think.", "\\boxed{24}",
].join("\n");
const PRESETS = [
  ["2 + 3 × 4", { gold: undefined, group: undefined }],
  ["A capital", { gold: "Paris", group: "Paris\nThe answer is Paris.\nLyon\nIt is Rome, I believe." }],
  ["All right", { gold: "14", group: "14\nIt is 14.\n#### 14" }],
  ["One answer", { gold: "14", group: "14" }],
];

export function Score() {
  const asked = { gold: param("gold", "14"), group: param("group", CLASSMATES), own: param("own", "") };
  const state = useAnswer("why", "score", asked);
  const exactly = useDepth() !== "intuition";
  return html`<${Section} id="score" title="Score your own answer" lead="What is 2 + 3 × 4? Type an answer in any words and see what the checker reads.">
    <${Play} label="Your answer in a group">
      <div class="knobs"><${TextField} name="own" label="Your answer" value="" most=${400} /></div>
      <${Fetched} state=${state} height="20rem">${(found) => html`
        <${Answers} label="The group"
          rows=${found.rows.map((row) => ({
            ...row,
            note: html`${row.own ? html`<b>yours</b> · ` : ""}
              ${row.form ? html`read <b>${visible(row.extracted)}</b> (${FORMS[row.form] ?? row.form}): ${row.why}` : row.why}
              ${row.reward === 1 && !row.strict ? " · a strict checker would give 0" : ""}`,
          }))} />
        <${Numbers}
          items=${[
            ["mean", found.statistics.reward_mean, "", "score-mean"],
            exactly && ["standard deviation", found.statistics.reward_std, "", "score-std"],
          ].filter(Boolean)} />
        ${found.statistics.zero_signal_groups === 1 && html`<p class="small warn">All rewards are equal: nothing to learn here.</p>`}
        <${Only} depth="math">
          <${Equation} tex=${`A_i=\\frac{r_i-${found.statistics.reward_mean.toFixed(3)}}{${found.statistics.reward_std.toFixed(4)}+10^{-4}}`}
            spoken="Each advantage is the reward minus the group mean, divided by the group's standard deviation." />
        <//>`}
      <//>
      <${Only} depth="math code"><details class="inspect" open=${asked.group !== CLASSMATES || asked.gold !== "14"}><summary>Edit the group</summary>
        <div class="row" role="group" aria-label="Presets">
          ${PRESETS.map(([name, values]) => html`<button type="button" class="small" onClick=${() => setQuery({ own: undefined, ...values })}>${name}
          </button>`)}
        </div>
        <div class="knobs"><${TextField} name="gold" label="The right answer: a number, a letter or words" value="14" most=${60} /></div>
        <div class="knobs"><${TextField} name="group" label="One answer per line" value=${CLASSMATES} most=${4000} rows=${6} /></div></details><//>
      <${Only} depth="code"><${Code} slug="why" source="check" /><//>
    <//>
  <//>`;
}
