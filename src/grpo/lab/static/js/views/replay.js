// Replay of a run step by step: its curves, the pinned problems, and a group of each step.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { useApi } from "../api.js";
import { Strip } from "../episode.js";
import { Chart } from "../chart.js";
import { metricValue, percent, plural } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Empty, Fetched, Reward, rewardStep, Segmented, StepBar } from "../parts.js";
import { address, Link, setQuery } from "../route.js";
import { Untrusted } from "../text.js";
import { chosenStep, GroupDetail } from "./groups.js";

const SHOWN = [["reward_mean", "reward"], ["zero_signal_groups", "zero signal"], ["length_mean", "length"], ["entropy", "entropy"]];
const SPEEDS = [["1", "1×"], ["4", "4×"], ["16", "16×"]];

export function Replay({ url, about, query, base, version }) {
  useStyle("css/replay.css");
  const step = query.get("step") === null ? 0 : chosenStep(about, query);
  const [playing, setPlaying] = useState(false);
  const speed = query.get("speed") ?? "4";
  const last = about.steps - 1;
  useEffect(() => {
    if (!playing) return;
    if (step >= last) return setPlaying(false);
    const timer = setTimeout(() => setQuery({ step: Math.min(last, step + Math.max(1, Math.round(last / 400))) }), 1000 / Number(speed));
    return () => clearTimeout(timer);
  }, [playing, step, speed]);
  const series = useApi(`${url}/series?names=${SHOWN.map(([name]) => name).join(",")}&points=240`, version);
  return html`
    <${StepBar} step=${step} last=${last} />
    <div class="row">
      <button type="button" class="play-button" onClick=${() => (step >= last ? setQuery({ step: 0 }) : null, setPlaying(!playing))} aria-pressed=${playing}>
        ${playing ? "❚❚ Pause" : "▶ Play"}</button>
      <${Segmented} label="Speed" value=${speed} onChange=${(next) => setQuery({ speed: next })} options=${SPEEDS} />
      <span class="small soft"><kbd>←</kbd> <kbd>→</kbd> move by one step</span></div>
    <${Fetched} state=${series} height="9rem">
      ${({ series: found, width }) => html`<div class="minis">
        ${SHOWN.filter(([name]) => found[name]).map(([name, label]) => html`<${Mini} name=${name} label=${label} points=${found[name]} step=${step}
          width=${width} />`)}
      </div>`}
    <//>
    <${Probes} url=${url} step=${step} query=${query} version=${version} base=${base} />
    <${ExampleGroup} url=${url} step=${step} about=${about} base=${base} />`;
}

function Mini({ name, label, points, step, width }) {
  const rows = points.step.map((at, i) => ({ at, mean: points.mean[i] }));
  const here = rows.filter((row) => row.at <= step).at(-1);
  const unit = name === "zero_signal_groups" ? "share" : "";
  return html`<div class="mini"><p class="tiny faint">${label} <b class="num">${here ? metricValue(here.mean, unit) : "–"}</b></p>
    <${Chart} label=${`${label} up to step ${step}`} height=${64} deps=${[step, rows.length, width]} onPick=${(at) => setQuery({ step: Math.max(0, at) })}
      build=${(Plot) => ({
        marginLeft: 2,
        marginRight: 2,
        marginTop: 4,
        marginBottom: 4,
        x: { axis: null },
        y: { axis: null, zero: true },
        marks: [
          Plot.lineY(rows, { x: "at", y: "mean", stroke: "var(--line-strong)" }),
          Plot.lineY(rows.filter((row) => row.at <= step), { x: "at", y: "mean", stroke: "var(--c1)", strokeWidth: 1.5 }),
          Plot.ruleX([step], { stroke: "var(--ink)", strokeOpacity: 0.35 }),
        ],
      })} />
    </div>`;
}

function Probes({ url, step, query, version, base }) {
  const state = useApi(`${url}/probes`, version);
  return html`<${Fetched} state=${state} height="20rem">${(probes) => {
    if (!probes.length) return html`<${Empty} title="No pinned problem">Train with <code>--evaluation.probes N</code> to record the completions of N problems at
      each evaluation.<//>`;
    const chosen = probes[Number(query.get("probe") ?? 0)] ?? probes[0];
    const moments = chosen.evaluations;
    // Step n makes the weights that the evaluation after n + 1 steps measures.
    const place = Math.max(0, moments.findLastIndex((moment) => moment.step <= step + 1));
    const now = moments[place];
    return html`<${Card} title="Pinned problems"
      note=${`The same problems with the same random numbers at every evaluation; only the policy changes. Now: ${now.step
        ? `after ${plural(now.step, "step")}`
        : "before training"}.`}>
      <div class="probe-list" role="group" aria-label="Pinned problems">
        ${probes.map((probe) => html`<button type="button" class="probe ${probe === chosen ? "chosen" : ""}" aria-pressed=${probe === chosen}
          onClick=${() => setQuery({ probe: probe.index })}>
        <${Untrusted} text=${probe.prompt} class="clip" />
        <span class="probe-history" aria-hidden="true">
          ${probe.evaluations.map((moment, i) => html`<i class="reward-${rewardStep(share(moment))} ${i === place ? "now" : ""}"></i>`)}</span>
        <span class="tiny faint num">
          ${isJudged(probe.evaluations[0])
            ? `${percent(share(probe.evaluations[0]))} → ${percent(share(probe.evaluations.at(-1)))} right`
            : `reward ${share(probe.evaluations[0]).toFixed(2)} → ${share(probe.evaluations.at(-1)).toFixed(2)}`}
        </span>
      </button>`)}</div>
      <div class="probe-columns"><div><h3>Before training</h3><${Samples} moment=${moments[0]} /></div>
        <div>${place ? html`<h3>After ${plural(now.step, "step")}</h3><${Samples} moment=${now} />` : html`<${NothingYet} next=${moments[1]} />`}</div></div>
      <p class="small soft">Answer: <${Untrusted} text=${chosen.answer} />
        ${moments.length > 1 && html` · <${Link} to=${address(`${base}/prompts`, { prompt: `pinned-${chosen.index}` })}>What changed in the answers<//>`}</p>
    <//>`;
  }}<//>`;
}

// Beside the samples from before training.
function NothingYet({ next }) {
  if (!next) return html`<h3>After training</h3><p class="small soft">No evaluation was recorded after training began.</p>`;
  return html`<h3>Next evaluation</h3><p class="small soft">The next evaluation comes after ${plural(next.step, "step")}.</p>
    <button type="button" class="small" onClick=${() => setQuery({ step: next.step - 1 })}>Go to it</button>`;
}

const isJudged = (moment) => moment.samples.some((sample) => sample.correct !== null);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
// The share of right answers, or the mean reward where nobody can say what is right.
const share = (moment) => mean(moment.samples.map((sample) => (isJudged(moment) ? Number(sample.correct) : sample.reward ?? 0)));

function Samples({ moment }) {
  const counted = new Map();
  for (const sample of moment.samples) {
    const key = JSON.stringify([sample.reward, sample.text, sample.turns]);
    counted.set(key, { ...sample, count: (counted.get(key)?.count ?? 0) + 1 });
  }
  const rows = [...counted.values()].sort((a, b) => b.reward - a.reward || b.count - a.count);
  return html`<ul class="probe-samples">
    ${rows.map((sample) => html`<li><${Reward} value=${sample.reward} /><span class="faint small num">×${sample.count}</span>
      ${sample.turns ? html`<${Strip} turns=${sample.turns} />` : html`<${Untrusted} text=${sample.text.slice(0, 600)} />`}</li>`)}
    </ul>`;
}

function ExampleGroup({ url, step, about, base }) {
  const state = useApi(`${url}/steps/${step}`);
  return html`<${Fetched} state=${state} height="24rem">${(data) => {
    const group = data.groups.find((one) => one.kind === "mixed") ?? data.groups[0];
    return group && html`<h2 class="section-title">A group of step ${data.step}</h2>
      <${GroupDetail} url=${url} step=${data.step} index=${group.index} about=${about} base=${base} />`;
  }}<//>`;
}
