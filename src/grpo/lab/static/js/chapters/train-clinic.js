// Runs with one thing wrong with each.
import { html } from "htm/preact";
import { Code, Fetched, Only, Table, Trial, param, useAnswer } from "../lesson.js";
import { useApi } from "../api.js";
import { Loading } from "../parts.js";
import { Curves } from "../trial.js";
import { exact, number, percent } from "../format.js";
import { setQuery } from "../route.js";

export function Clinic() {
  const state = useAnswer("train", "clinic", {});
  const chosen = param("patient", "patient-1");
  return html`<${Fetched} state=${state} height="30rem">${(patients) => {
    const now = patients.find((each) => each.trial === chosen) ?? patients[0];
    return html`<ol class="lineage patients" aria-label="Patients">${patients.map((each, place) => html`<li><button type="button" aria-pressed=${each === now} onClick=${() => setQuery({ patient: each.trial, guess: undefined })}>Patient ${place + 1}</button></li>`)}</ol>
      <${Ward} patient=${now} key=${now.trial} />`;
  }}<//><${Only} depth="code"><${Code} slug="train" source="diagnose" title="diagnose, which looks at every record, and is asked here" /><//>`;
}

function Ward({ patient }) {
  const guess = param("guess", "");
  const known = useApi(`/api/trials/named/${patient.trial}`);
  const outcome = known.data?.recorded?.outcome;
  const sick = outcome && { ...outcome, arms: outcome.arms.slice(0, 1) };
  return html`<div class="play"><p class="claim">${patient.symptom}</p>
      ${sick ? html`<div class="outcome-charts">${sick.trial.metrics.map((metric) => html`<${Curves} outcome=${sick} metric=${metric} by="step" key=${metric} />`)}</div>` : known.data ? html`<p class="soft">This patient was not recorded: <code>python scripts/record_trials.py</code></p>` : html`<${Loading} height="24rem" />`}
      <p class="question-ask" id="ask-clinic">What is wrong with it?</p>
      <div class="question-options" role="group" aria-labelledby="ask-clinic">${Object.entries(patient.causes).map(([key, words]) => html`<button type="button" class=${guess === key ? "picked" : ""} aria-pressed=${guess === key} onClick=${() => setQuery({ guess: key })}>${words}</button>`)}</div>
      ${guess ? html`<${Diagnosis} patient=${patient} guess=${guess} />` : html`<p class="small faint">Choose, and the record is asked.</p>`}</div>
    ${guess && html`<${Trial} name=${patient.trial} note="The patient, and what is said to help." />`}`;
}

function Diagnosis({ patient, guess }) {
  const state = useAnswer("train", "diagnosis", { patient: patient.trial });
  return html`<${Fetched} state=${state} height="12rem">${(data) => html`<div class="verdict" role="status"><p><b class=${guess === data.cause ? "good" : "missed"}>${guess === data.cause ? "So it is." : "No:"}</b> ${data.words}. Planted: ${Object.entries(data.settings).map(([name, value]) => html`<code>${name} = ${typeof value === "number" ? exact(value) : value}</code> `)}</p>
      ${data.findings.length ? html`<p class="small soft">What <code>grpo.record.diagnosis</code> says of the record:</p><ul class="findings-list">${data.findings.map((finding) => html`<li><b>${finding.kind.replaceAll("_", " ")}</b> ${finding.text}</li>`)}</ul>` : html`<p><b data-number="no-finding">No finding.</b> <code>grpo.record.diagnosis</code> sees nothing wrong with this record.</p>`}
      <p>${data.lesson}</p><${Remedies} rows=${data.remedies} /></div>`}<//>`;
}

function Remedies({ rows }) {
  const extra = ["right_share", "kl", "zero_signal_groups", "truncated"].filter((name) => rows.some((row) => row[name] !== undefined));
  return html`<${Table} label="What each remedy did" head=${["", "paid in full, held out", "reward at the end", ...extra.map((name) => name.replaceAll("_", " ")), "findings"]} rows=${rows.map((row) => [row.label, html`<span class="num">${percent(row.before)} → <b>${percent(row.after)}</b></span>`, number(row.reward_mean, 2), ...extra.map((name) => (row[name] === undefined ? "–" : name === "kl" ? number(row[name], 3) : percent(row[name]))), row.findings.map((kind) => kind.replaceAll("_", " ")).join(", ") || "none"])} />`;
}

// The four entries of a tutorial's trouble-shooting list, with what was measured when its advice was taken.
const SYMPTOMS = [
  ["patient-4", "Reward hacking", "high reward, poor answers", "raise the KL penalty; a better reward"],
  ["patient-1", "Instability", "the loss jumps, or is not a number", "lower the learning rate; a larger group"],
  ["patient-2", "Slow learning", "the reward barely rises", "lower the KL penalty; check the reward"],
  ["patient-3", "Mode collapse", "all answers alike", "a higher temperature; an entropy bonus"],
];

export function SymptomTable() {
  const [first, second, third, fourth] = SYMPTOMS.map(([patient]) => useAnswer("train", "diagnosis", { patient }));
  const states = [first, second, third, fourth];
  if (states.some((state) => state.error)) return null;
  if (states.some((state) => !state.data)) return html`<${Loading} height="16rem" />`;
  const measure = (row, place) =>
    row.right_share !== undefined ? `${percent(row.right_share)} truly right` : place === 3 ? `${percent(1 - row.zero_signal_groups)} of groups teach` : `${percent(row.after)} held out`;
  return html`<${Table} label="Symptoms, advice and what came of it" head=${["symptom", "looks like", "advice", "measured: as it was, then with each remedy"]} rows=${SYMPTOMS.map(([, name, looks, advice], place) => [name, looks, advice, html`<ul class="plain">${states[place].data.remedies.map((row, at) => html`<li>${at === 0 ? "as it was" : row.label}: <b class="num">${measure(row, place)}</b></li>`)}</ul>`])} foot="Two seeds, sixty steps of nano each; the patients of the clinic. A loss that jumps is no sign in itself: with one update per batch the loss is about 0 whatever happens." />`;
}
