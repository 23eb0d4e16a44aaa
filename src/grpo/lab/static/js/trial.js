// A trial: training runs with a live view. The recorded outcome shows at once; the reader can train it again and cancel.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { definitions, get, listen, post, useApi } from "./api.js";
import { Chart } from "./chart.js";
import { isShare, metricTitle, percent, seconds, tick } from "./format.js";
import { useStyle } from "./load.js";
import { Failed, Loading, MetricHint, Segmented } from "./parts.js";
import { isStatic } from "./route.js";

const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const AXES = [["step", "steps"], ["tokens", "sampled tokens"], ["seconds", "seconds"]];

// The trial that this page shows: started here, or found running when the page was loaded.
function useTrial(name) {
  const [state, setState] = useState(null);
  const [id, setId] = useState(null);
  const [refused, setRefused] = useState(null);
  useEffect(() => {
    if (isStatic() || !name) return;
    let wanted = true;
    get("/api/trials").then(({ running }) => wanted && running?.name === name && setId(running.id), () => {});
    return () => (wanted = false);
  }, [name]);
  useEffect(() => {
    if (!id) return;
    const close = listen(`/api/trials/${id}/events`, (now) => {
      setState(now);
      if (now.status !== "running") close();
    });
    return close;
  }, [id]);
  async function start(trial) {
    setRefused(null);
    try {
      const begun = await post("/api/trials", trial);
      setState({ ...begun, outcome: null });
      setId(begun.id);
    } catch (error) {
      setRefused(error);
    }
  }
  async function cancel(which = id) {
    try {
      await post(`/api/trials/${which}/cancel`);
      setRefused(null);
    } catch (error) {
      setRefused(error);
    }
  }
  return { state, refused, start, cancel };
}

const same = (a, b) => JSON.stringify(shape(a)) === JSON.stringify(shape(b));
const shape = ({ arms, seeds, steps }) => [
  arms.map(({ label, settings }) => [label, Object.entries(settings).map(([key, value]) => [key, String(value)]).sort()]),
  seeds,
  steps,
];

// `name` is a chapter's trial; arms, seeds, steps and metrics, where given, override its settings. `plain` is for
// Intuition: `charts`, the metrics to show with their titles, and `arms`, the recorded arms to show with their names.
// `verdict` and `children` are given the outcome, and shown above and below its charts.
export function Trial({ name, arms, seeds, steps, metrics, plain, verdict, note, children }) {
  useStyle("css/trial.css");
  const known = useApi(name && `/api/trials/named/${name}`);
  const { state, refused, start, cancel } = useTrial(name);
  if (name && !known.data) return known.error ? html`<${Failed} error=${known.error} />` : html`<${Loading} height="24rem" />`;
  const own = known.data?.trial ?? {};
  const asked = { arms: arms ?? own.arms, seeds: seeds ?? own.seeds, steps: steps ?? own.steps, metrics: metrics ?? own.metrics, name: name ?? "" };
  const running = state?.status === "running";
  const recorded = known.data?.recorded;
  const live = !!state?.outcome?.progress.done;
  const outcome = live ? state.outcome : recorded?.outcome;
  const fits = outcome && same(outcome.trial, asked);
  return html`<div class="trial" data-trial=${name} data-status=${state?.status ?? (recorded ? "recorded" : "none")}>
    <div class="trial-bar">
      ${isStatic()
        ? null
        : running
          ? html`<button type="button" onClick=${() => cancel()}>Cancel</button>`
          : html`<button type="button" class="primary" onClick=${() => start(asked)}>
            ${recorded || state ? "Train again on this machine" : "Train on this machine"}</button>`}
      <p class="small soft" role="status">${words(state, recorded, live)}${note && !running && !isStatic() ? html` ${note}` : null}</p>
    </div>
    ${running && html`<progress max=${state.total} value=${state.done} aria-label="Steps trained"></progress>`}
    ${state?.error && html`<${Failed} error=${new Error(state.error)} />`}
    ${refused && html`<div class="refused" role="alert"><p>${refused.message}.</p>
      ${refused.running && html`<button type="button" onClick=${() => cancel(refused.running.id)}>Cancel the running trial</button>`}</div>`}
    ${outcome && !fits && html`<p class="small warn">
      ${live
        ? "The results below were trained with other settings than those now chosen."
        : isStatic()
          ? "The results below are the recorded trial with its own settings; yours can be trained with `grpo lab` on your machine."
          : "The results below are the recorded trial with its own settings; train to see yours."}
    </p>`}
    ${outcome && verdict?.(outcome)}
    ${outcome && html`<${Outcome} outcome=${outcome} name=${name ?? "trial"} plain=${plain} />`}
    ${outcome && children && children(outcome, { live, fits })}
  </div>`;
}

function words(state, recorded, live) {
  if (state?.status === "running") return state.done ? `Training on this machine: ${state.done} of ${state.total} steps.` : "Starting the trainer…";
  if (state?.status === "cancelled") return live ? "Cancelled; the results so far are kept." : "Cancelled.";
  if (state?.status === "finished") return "Trained on this machine.";
  if (recorded) return `Recorded run (torch ${recorded.versions.torch}); training took ${seconds(recorded.seconds)}.${isStatic()
    ? " To train it again, start `grpo lab` on your machine."
    : ""}`;
  return "Nothing recorded yet.";
}

function Outcome({ outcome: whole, name, plain }) {
  const [by, setBy] = useState("step");
  const outcome = plain?.arms ? { ...whole, arms: renamed(whole.arms, plain.arms) } : whole;
  const charts = plain ? Object.entries(plain.charts) : outcome.trial.metrics.map((metric) => [metric]);
  return html`<div class="outcome">
    <div class="outcome-head">
      <ul class="legend arms">${outcome.arms.map((arm, place) => html`<li><i class="key" style=${{ "--key": COLOURS[place] }}></i>${arm.label}</li>`)}</ul>
      ${!plain && html`<${Segmented} label=${`Axis of ${name}`} options=${AXES} value=${by} onChange=${setBy} />`}</div>
    <div class="outcome-charts">
      ${charts.map(([metric, title]) => html`<${Curves} outcome=${outcome} metric=${metric} title=${title} by=${by} key=${metric} />`)}</div>
    <${Accuracy} outcome=${outcome} />
  </div>`;
}

// The arms that have a plain name, under that name; all where none has (the reader's own).
function renamed(arms, names) {
  const known = Object.keys(names).flatMap((label) => arms.filter((arm) => arm.label === label).map((arm) => ({ ...arm, label: names[label] })));
  return known.length ? known : arms;
}

export function Curves({ outcome, metric, title = null, by }) {
  const unit = definitions.value?.training?.[metric]?.unit;
  const isPart = isShare(unit) || title?.endsWith("answers"); // the mean of rewards of 0 and 1 is the share of right answers
  const seeds = outcome.arms.flatMap((arm, place) => arm.curves[metric].flatMap((curve) => curve.value.map((value, at) => ({
    x: curve[by][at],
    y: value,
    arm: place,
    run: `${place} ${curve.seed}`,
  }))));
  const bands = outcome.arms.flatMap((arm, place) => arm.bands[metric].map((point) => ({ ...point, x: point[by], arm: place })));
  const colour = (point) => COLOURS[point.arm];
  // A band can reach beyond the measured values; the axis is limited to them.
  const lowest = seeds.reduce((least, point) => Math.min(least, point.y), Infinity);
  const highest = seeds.reduce((most, point) => Math.max(most, point.y), 0);
  const span = by === "step" ? { domain: [1, Math.max(2, outcome.trial.steps)] } : {};
  const axis = AXES.find(([key]) => key === by)[1];
  return html`<div class="outcome-chart"><h3>${title ?? metric.replaceAll("_", " ")}<${MetricHint} name=${metric} /></h3>
    <${Chart}
      label=${`${title ??
        metric} over ${axis}, ${outcome.arms.map((arm) => arm.label).join(", ")}; the line is the mean over seeds, the band one standard deviation`}
      height=${190}
      deps=${[seeds.length, bands.length, by, metric, title]}
      build=${(Plot) => ({
        x: { label: axis, ticks: 5, tickFormat: tick, ...span },
        y: {
          grid: true,
          label: title ?? metricTitle(metric, unit),
          ticks: 5,
          tickFormat: (value) => (isPart ? percent(value, highest < 0.1 ? 1 : 0) : tick(value)),
        },
        marks: [
          Plot.areaY(bands, {
            x: "x",
            y1: (point) => Math.max(lowest, point.low),
            y2: (point) => Math.min(highest, point.high),
            z: "arm",
            fill: colour,
            fillOpacity: 0.16,
          }),
          Plot.lineY(seeds, { x: "x", y: "y", z: "run", stroke: colour, strokeWidth: 1, strokeOpacity: bands.length ? 0.25 : 0.8 }),
          Plot.lineY(bands, { x: "x", y: "mean", z: "arm", stroke: colour, strokeWidth: 2, ariaLabel: (point) => outcome.arms[point.arm].label }),
        ],
      })}
      table=${{
        columns: [axis, "arm", "mean", "low", "high"],
        rows: bands.map((point) => [point.x, outcome.arms[point.arm].label, point.mean, point.low, point.high]),
      }} />
    </div>`;
}

function Accuracy({ outcome }) {
  const arms = outcome.arms.filter((arm) => arm.accuracy);
  if (!arms.length) return null;
  const cell = ({ mean, std }) => html`${percent(mean, 1)}${std === null ? "" : html` <span class="soft">± ${percent(std, 1)}</span>`}`;
  return html`<div class="scroll table" tabIndex="0" role="group" aria-label="Held-out accuracy"><table>
    <thead><tr><th scope="col">held-out accuracy, 200 problems</th><th scope="col">before</th><th scope="col">after</th><th scope="col">seeds</th></tr></thead>
    <tbody>
      ${arms.map((arm) => html`<tr><th scope="row">${arm.label}</th><td class="num">${cell(arm.accuracy.before)}</td>
        <td class="num"><b>${cell(arm.accuracy.after)}</b></td><td class="num">${arm.accuracy.after.seeds.length}</td></tr>`)}
    </tbody>
  </table></div>`;
}

