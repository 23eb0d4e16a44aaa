// Runs with one wrong setting each. Intuition shows the metrics that have a plain name, and no findings.
import { html } from "htm/preact";
import { Code, Fetched, Only, Table, Trial, param, useAnswer, useDepth } from "../lesson.js";
import { useApi } from "../api.js";
import { Loading } from "../parts.js";
import { Curves } from "../trial.js";
import { exact, number, percent } from "../format.js";
import { setQuery } from "../route.js";

const PLAIN = {
  reward_mean: "mean reward", right_share: "exactly right answers", worked_share: "answers with working", kl: "distance from the start",
  zero_signal_groups: "groups without signal", truncated: "answers cut off",
};

export function Clinic() {
  const state = useAnswer("train", "clinic", {});
  const chosen = param("patient", "patient-1");
  return html`<${Fetched} state=${state} height="30rem">${(patients) => {
    const now = patients.find((each) => each.trial === chosen) ?? patients[0];
    return html`<ol class="lineage patients" aria-label="Patients">
      ${patients.map((each, place) => html`<li>
        <button type="button" aria-pressed=${each === now} onClick=${() => setQuery({ patient: each.trial, guess: undefined })}>Patient ${place + 1}</button>
      </li>`)}
      </ol>
      <${Ward} patient=${now} key=${now.trial} />`;
  }}<//><${Only} depth="code"><${Code} slug="train" source="diagnose" title="diagnose: finds problems in any run's record" /><//>`;
}

function Ward({ patient }) {
  const guess = param("guess", "");
  const known = useApi(`/api/trials/named/${patient.trial}`);
  const outcome = known.data?.recorded?.outcome;
  const plain = useDepth() === "intuition";
  const metrics = outcome && (plain ? outcome.trial.metrics.filter((metric) => PLAIN[metric]) : outcome.trial.metrics);
  const sick = outcome && { ...outcome, arms: outcome.arms.slice(0, 1) };
  return html`<div class="play"><p class="claim">${patient.symptom}</p>
      ${sick
        ? html`<div class="outcome-charts">
          ${metrics.map((metric) => html`<${Curves} outcome=${sick} metric=${metric} title=${plain ? PLAIN[metric] : null} by="step" key=${metric} />`)}</div>`
        : known.data
          ? html`<p class="soft">This run was not recorded. Record it with <code>python scripts/record_trials.py</code></p>`
          : html`<${Loading} height="24rem" />`}
      <p class="question-ask" id="ask-clinic">What is the cause?</p>
      <div class="question-options" role="group" aria-labelledby="ask-clinic">
        ${Object.entries(patient.causes).map(([key, words]) => html`<button type="button" class=${guess === key ? "picked" : ""} aria-pressed=${guess === key}
          onClick=${() => setQuery({ guess: key })}>
          ${words}</button>`)}
      </div>
      ${guess ? html`<${Diagnosis} patient=${patient} guess=${guess} />` : html`<p class="small faint">Choose a cause to see the diagnosis.</p>`}</div>
    ${guess && html`<${Only} depth="math code"><${Trial} name=${patient.trial} note="The faulty run and the advised remedies." /><//>`}`;
}

function Diagnosis({ patient, guess }) {
  const state = useAnswer("train", "diagnosis", { patient: patient.trial });
  return html`<${Fetched} state=${state} height="12rem">
    ${(data) => html`<div class="verdict" role="status">
      <p><b class=${guess === data.cause ? "good" : "missed"}>${guess === data.cause ? "Correct:" : "No, it is:"}</b> ${data.words}.
        Setting: ${Object.entries(data.settings).map(([name, value]) => html`<code>${name} = ${typeof value === "number" ? exact(value) : value}</code> `)}</p>
      <${Only} depth="math code">
        ${data.findings.length
          ? html`<p class="small soft">Findings of <code>grpo.record.diagnosis</code> in the record:</p>
            <ul class="findings-list">${data.findings.map((finding) => html`<li><b>${finding.kind.replaceAll("_", " ")}</b> ${finding.text}</li>`)}</ul>`
          : html`<p><b data-number="no-finding">No finding.</b> <code>grpo.record.diagnosis</code> finds no problem in this record.</p>`}
      <//>
      <p>${data.lesson}</p><${Remedies} rows=${data.remedies} /></div>`}<//>`;
}

function Remedies({ rows }) {
  const extra = ["right_share", "kl", "zero_signal_groups", "truncated"].filter((name) => rows.some((row) => row[name] !== undefined));
  if (useDepth() === "intuition") return html`<${Table} label="Result of each remedy"
    head=${["", "accuracy by the run's reward", ...extra.filter((name) => name === "right_share").map((name) => PLAIN[name])]}
    rows=${rows.map((row) => [
      row.label,
      html`<span class="num">${percent(row.before)} → <b>${percent(row.after)}</b></span>`,
      ...(row.right_share === undefined ? [] : [percent(row.right_share)]),
    ])} />`;
  return html`<${Table} label="Result of each remedy"
    head=${["", "held-out accuracy by the run's reward", "reward at the end", ...extra.map((name) => name.replaceAll("_", " ")), "findings"]}
    rows=${rows.map((row) => [
      row.label,
      html`<span class="num">${percent(row.before)} → <b>${percent(row.after)}</b></span>`,
      number(row.reward_mean, 2),
      ...extra.map((name) => (row[name] === undefined ? "–" : name === "kl" ? number(row[name], 3) : percent(row[name]))),
      row.findings.map((kind) => kind.replaceAll("_", " ")).join(", ") || "none",
    ])} />`;
}

// The four entries of a tutorial's troubleshooting list, and the measured result of its advice.
const SYMPTOMS = [
  ["patient-4", "Reward hacking", "high reward, poor answers", "raise the KL penalty; a better reward"],
  ["patient-1", "Instability", "the loss jumps or is NaN", "lower the learning rate; a larger group"],
  ["patient-2", "Slow learning", "the reward barely rises", "lower the KL penalty; check the reward"],
  ["patient-3", "Mode collapse", "all answers are the same", "a higher temperature; an entropy bonus"],
];

export function SymptomTable() {
  const [first, second, third, fourth] = SYMPTOMS.map(([patient]) => useAnswer("train", "diagnosis", { patient }));
  const states = [first, second, third, fourth];
  if (states.some((state) => state.error)) return null;
  if (states.some((state) => !state.data)) return html`<${Loading} height="16rem" />`;
  const measure = (row, place) =>
    row.right_share !== undefined
      ? `${percent(row.right_share)} exactly right`
      : place === 3 ? `${percent(1 - row.zero_signal_groups)} of groups with signal` : `${percent(row.after)} held-out accuracy`;
  return html`<${Table} label="Symptoms, advice and results" head=${["problem", "symptom", "advice", "measured: without and with each remedy"]}
    rows=${SYMPTOMS.map(([, name, looks, advice], place) => [
      name,
      looks,
      advice,
      html`<ul class="plain">
        ${states[place].data.remedies.map((row, at) => html`<li>${at === 0 ? "without remedy" : row.label}: <b class="num">${measure(row, place)}</b></li>`)}
      </ul>`,
    ])}
    foot="The runs of the clinic: nano, two seeds, sixty steps each. The loss is not a useful sign: with one update per batch it is always about 0." />`;
}
