// Behaviour that emerged in a recorded run: pinned problems over training, and counts of markers.
import { html } from "htm/preact";
import { Code, Fetched, Figure, Only, param, Play, Reported, Section, Slider, TextField, useAnswer } from "../lesson.js";
import { percent } from "../format.js";
import { useStyle } from "../load.js";
import { Reward } from "../parts.js";
import { Link, setQuery } from "../route.js";
import { visible } from "../text.js";
import { PlayButton, usePlaying } from "./answers.js";

export function Aha() {
  useStyle("css/replay.css");
  const marker = param("marker", "(") || "(";
  const state = useAnswer("why", "aha", { marker });
  return html`<${Section} id="aha" title="Emergent behaviour"
    lead="Nobody showed this model when to write working; only right answers were rewarded. Step through a real run.">
    <${Fetched} state=${state} height="36rem">${(found) => html`<${Player} found=${found} /><${Only} depth="math code"><${Markers} found=${found} /><//>`}<//>
    <p>The famous case: <${Reported} source="DeepSeek-R1, arXiv 2501.12948">R1-Zero began to re-check itself with words such as “wait”<//>. This model has only
      digits, and found the same kind of thing: spend more tokens before the answer.</p>
    <${Only} depth="math code">
      <p>Re-checking can also be trained for
        directly: <${Reported} source="Kumar et al. 2024, arXiv 2409.12917">training on two attempts, with a bonus for a second that improves on the first,
          teaches a model to correct itself; fine-tuning on recorded corrections was often not enough<//>.</p>
    <//>
    <${Only} depth="code"><${Code} slug="why" source="aha" /><//>
  <//>`;
}

function Player({ found }) {
  const steps = found.probes[0].evaluations.map((moment) => moment.step);
  const last = steps.length - 1;
  const at = Math.max(0, Math.min(last, param("eval", 0)));
  const chosen = found.probes[Math.max(0, Math.min(found.probes.length - 1, param("probe", 0)))];
  const [playing, toggle] = usePlaying("eval", at, last, 1100);
  const counted = new Map();
  for (const sample of chosen.evaluations[at].samples) counted.set(sample.text, { ...sample, count: (counted.get(sample.text)?.count ?? 0) + 1 });
  const rows = [...counted.values()].sort((a, b) => b.count - a.count);
  return html`<${Play} label="Pinned problems over training">
    <div class="picks" role="group" aria-label="Pinned problems">
      ${found.probes.map((probe) => html`<button type="button" class=${probe === chosen ? "picked" : ""} aria-pressed=${probe === chosen}
        onClick=${() => setQuery({ probe: probe.index || undefined })}>
        ${probe.prompt}</button>`)}
    </div>
    <div class="play-bar"><${PlayButton} playing=${playing} toggle=${toggle} again=${at === last} /></div>
    <div class="knobs">
      <${Slider} name="eval" label="After training steps" min=${0} max=${last} step=${1} value=${0} show=${(place) => String(steps[place] ?? "")} /></div>
    <p class="small soft">Answers to <b>${chosen.prompt}</b> (right: ${chosen.answer}):</p>
    <ul class="probe-samples aha-samples" aria-label="Samples">
      ${rows.map((row) => html`<li><${Reward} value=${row.reward} /><span class="faint small num">×${row.count}</span>
        <bdi class="untrusted" dir="ltr">${visible(row.text)}</bdi></li>`)}
    </ul>
    <p class="small soft">The working: ${chosen.work.join("; ")}.</p>
  <//>`;
}

function Markers({ found }) {
  const rows = found.counted;
  const now = rows.at(-1);
  return html`<${Play} label="Count a marker">
    <h3>Count a marker</h3>
    <div class="knobs"><${TextField} name="marker" label="Text to count in held-out answers" value="(" most=${40} /></div>
    <${Figure} label=${`Share of held-out answers that contain ${found.marker}, and share that are right, over the steps`} height=${210}
      deps=${[found.marker, rows.length]}
      legend=${[[`contains “${found.marker}”`, "var(--c3)"], ["right", "var(--c4)"]]}
      build=${(Plot) => ({ x: { label: "training steps" }, y: { domain: [0, 1], grid: true, label: "share of answers", tickFormat: (value) => percent(value) },
        marks: [
        Plot.lineY(rows, { x: "step", y: "right", stroke: "var(--c4)", strokeWidth: 2, strokeDasharray: "5 3" }),
        Plot.lineY(rows, { x: "step", y: "share", stroke: "var(--c3)", strokeWidth: 2 }),
        Plot.dot(rows, { x: "step", y: "share", fill: "var(--c3)", r: 3 })] })}
      table=${{
        columns: ["step", "answers", "with marker", "right", "right with it", "right without"],
        rows: rows.map((row) => [row.step, row.answers, row.count, row.right, row.right_with ?? "–", row.right_without ?? "–"]),
      }} />
    <p class="small">Before training ${percent(rows[0].share)} of ${rows[0].answers} answers contain it,
      after ${now.step} steps ${percent(now.share)}.${rows[0].right_with !== null && rows[0].right_without !== null
        ? html` Before training, ${percent(rows[0].right_with)} of the answers with it were right, and ${percent(rows[0].right_without)} of those without.`
        : null}
    </p>
    <div><h3>Words of self-correction</h3>
      <p class="small soft">Counts over all ${found.answers.toLocaleString("en-US")} held-out answers of the run. Their alphabet
        is <code>${found.alphabet.join("")}</code>.</p>
      <ul class="counts">${Object.entries(found.reflection).map(([word, count]) => html`<li>${word} <b class="num">${count}</b></li>`)}</ul></div>
    <p class="small"><${Link} to="/runs/~tiny-arithmetic/replay">The whole run, step by step<//></p>
  <//>`;
}
