// Training runs over ε, β and G; every setting with its default and source.
import { html } from "htm/preact";
import { among, Choice, Code, Fetched, Only, Reported, Slider, Table, Trial, param, useAnswer } from "../lesson.js";
import { exact, number, percent } from "../format.js";

const SIZES = [2, 4, 8, 16, 32, 64];

const ANSWERS = 128; // of every step, in groups of any size
const bySize = {
  charts: { reward_mean: "mean reward", zero_signal_groups: "groups without signal" },
  arms: { "G 2": "groups of 2", "ε 0.2, β 0.04, G 8": "groups of 8", "G 32": "groups of 32" },
};

// One knob, for Intuition.
export function GroupSize() {
  const size = among(SIZES, param("size", 2), 2);
  const settings = (group) => ({ "optimizer.epochs": 2, group_size: group, prompts_per_step: ANSWERS / group });
  const arms = size === 8 ? undefined : [size, 8].map((group) => ({ label: `groups of ${group}`, settings: settings(group) }));
  return html`<div class="play" role="group" aria-label="Group size"><div class="knobs">
      <${Slider} name="size" label="answers to each question" min=${0} max=${5} step=${1} value=${2}
        show=${(place) => `${among(SIZES, place, 2)} (${ANSWERS / among(SIZES, place, 2)} questions)`} />
  </div>
    </div>
    <${Trial} name="dashboard" arms=${arms} plain=${bySize}>
      ${(_, { live, fits }) => (live || !fits
        ? null
        : html`<p>Groups of 32 end lowest: they see only four questions a step. Most groups of 2 have equal rewards and teach nothing, but there are 64 of
          them.</p>`)}
    <//>`;
}

// The reader's settings train first, then the default; every arm samples the same number of answers a step.
export function Dashboard() {
  const [eps, beta, size, epochs] = [param("eps", 0.2), param("kb", 0.04), among(SIZES, param("size", 2), 2), Number(param("epochs", "2"))];
  const changed = eps !== 0.2 || beta !== 0.04 || size !== 8 || epochs !== 2;
  const settings = {
    "optimizer.epochs": epochs,
    "loss.clip_low": Math.min(1, eps),
    "loss.clip_high": eps,
    "loss.beta": beta,
    group_size: size,
    prompts_per_step: ANSWERS / size,
  };
  const arms = changed
    ? [{ label: `yours: ε ${number(eps, 2)}, β ${number(beta, 2)}, G ${size}`, settings }, { label: "ε 0.2, β 0.04, G 8", settings: { "optimizer.epochs": 2 } }]
    : undefined;
  return html`<div class="play" role="group" aria-label="Knobs"><div class="knobs">
      <${Slider} name="eps" label="clip range, ε" min=${0.02} max=${1} step=${0.02} value=${0.2} show=${(value) => number(value, 2)} />
      <${Slider} name="kb" label="KL penalty, β" min=${0} max=${1} step=${0.02} value=${0.04} show=${(value) => number(value, 2)} />
      <${Slider} name="size" label="group size, G" min=${0} max=${5} step=${1} value=${2}
        show=${(place) => `${among(SIZES, place, 2)} (${ANSWERS / among(SIZES, place, 2)} prompts)`} />
      <${Choice} name="epochs" label="epochs per batch" value="2" options=${[["1", "1"], ["2", "2"], ["4", "4"]]} /></div>
      <p class="small soft">
        ${changed
          ? "Press the button: your settings train first, then the default."
          : "Below: the default and four single changes, recorded. Move a slider, then train your own."}
      </p>
    </div>
    <${Trial} name="dashboard" arms=${arms}>
      ${(outcome, { live, fits }) => (live || !fits
        ? null
        : html`<p>At the same number of answers, 16 prompts with 8 each end higher than 4 with 32 each. A ten times smaller ε changes little. β = 0.5 and G = 32
          lower accuracy; three seeds do not separate them.</p>`)}
    <//>`;
}

export function MetricRanges() {
  const state = useAnswer("train", "ranges", {});
  const show = (name, value) => (name === "reward_mean" || name.startsWith("clip") ? percent(value, 1) : number(value, 3));
  return html`<${Fetched} state=${state} height="20rem">
    ${(rows) => html`<${Table} label="Four metrics: claimed and measured ranges" head=${["metric", "tutorial", "measured, first → last step", "healthy"]}
      rows=${rows.map((row) => [
        row.metric.replaceAll("_", " "),
        html`${row.claim}${row.comment && html`<br /><span class="small soft">${row.comment}</span>`}`,
        html`<ul class="plain">
          ${row.measured.map((each) => html`<li>
            <span class="num">${show(row.metric, each.first)} → <b>${show(row.metric, each.last)}</b></span> <span class="tiny faint">${each.arm}</span></li>`)}
        </ul>`,
        html`<span class="small">${row.healthy}</span>`,
      ])}
      foot="Means over three seeds of the trial above. The last column comes from the table of metrics, as on every run's page." />`}
    <//>`;
}

export function Hyperparameters() {
  const state = useAnswer("train", "hyperparameters", {});
  return html`<p>The defaults are read from the code. Reported values elsewhere differ, because no number fits every model.</p>
    <${Fetched} state=${state} height="24rem">
      ${(rows) => html`<${Table} label="Hyperparameters with their defaults and origins"
        head=${["setting", "default here", "source", "effect", "reported elsewhere"]}
        rows=${rows.map((row) => [
          html`<code>${row.flag}</code> <span class="faint">${row.symbol}</span>`,
          html`<b class="num" data-number=${`default-${row.setting.replaceAll(".", "-")}`}>${exact(row.default)}</b>`,
          html`<span class="small">${row.from}</span>`,
          html`<span class="small">${row.effect}</span>`,
          html`<ul class="plain">${row.reported.map((each) => html`<li><${Reported} source=${each.source}>${each.value}<//></li>`)}</ul>`,
        ])} />`}
    <//>
    <p class="small soft">The tutorial calls its values “DeepSeek default”. G = 8, β = 0.1, four epochs and 5e-6 are in neither of DeepSeek's papers;
      DeepSeekMath reports 64, 0.04, one and 1e-6.</p>
    <${Only} depth="code"><${Presets} /><${Code} slug="train" source="hyperparameters" /><//>`;
}

function Presets() {
  const state = useAnswer("train", "presets", {});
  return html`<${Fetched} state=${state} height="20rem">
    ${(rows) => html`<${Table} label="Presets" head=${["--algorithm", "baseline", "scale", "surrogate", "clip", "β", "paper"]}
      rows=${rows.map((row) => [
        html`<code>${row.name}</code>`,
        row.baseline,
        row.scale,
        row.surrogate,
        row.surrogate === "clip" ? row.clip.map((value) => exact(value)).join(" / ") : "–",
        exact(row.beta),
        html`<span class="tiny paper">${row.paper}</span>`,
      ])} />`}
    <//>`;
}

// Four rules of thumb and the recorded runs that test them.
export function Tips() {
  const state = useAnswer("train", "rules", {});
  const show = (metric, value) => (metric === "kl" ? number(value, 3) : percent(value, 1));
  return html`<h3>Four rules of thumb, measured</h3>
    <${Fetched} state=${state} height="16rem">
      ${(rows) => html`<${Table} label="Rules of thumb and measurements"
        head=${["rule", "changed", "metric", "whole run", "last 20 steps", "change of reward per step", "held-out accuracy"]}
        rows=${rows.map(({ rule, metric, words, base, changed }) => [
          rule,
          changed.label,
          words,
          ...[
            (arm) => show(metric, arm.whole),
            (arm) => show(metric, arm.late),
            (arm) => number(arm.jump, 3),
            (arm) => percent(arm.accuracy, 1),
          ].map((of) => html`<span class="num">${of(base)} → <b>${of(changed)}</b></span>`),
        ])}
        foot=${"Default → changed, three seeds each. The change of reward per step is over the last 20 steps. G 32 has four prompts a step instead of " +
          "sixteen: the same number of answers."} />`}
    <//>`;
}
