// How often a group teaches nothing: by chance, in the recorded run, and for prompts sampled here.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Section, Slider, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { Link } from "../route.js";

export function Difficulty() {
  const p = param("p", 0.5);
  const g = 2 ** param("logg", 3);
  const state = useAnswer("group", "chance", { p, g });
  const real = useAnswer("group", "observed", { g });
  return html`<${Section} id="difficulty" title="Neither too easy nor too hard" lead="All right or all wrong: then every reward equals the mean, every advantage is 0, and the group was sampled for nothing. How often that happens depends on how hard the problem is.">
    <${Play} label="Chance that a group teaches nothing">
      <div class="knobs"><${Slider} name="p" label="The model's chance of being right" min=${0} max=${1} step=${0.01} value=${0.5} show=${(value) => percent(value)} />
        <${Slider} name="logg" label="Group size G" min=${1} max=${6} step=${1} value=${3} show=${(value) => String(2 ** value)} /></div>
      <${Fetched} state=${state} height="20rem">${(found) => html`
        <${Figure} label=${`Share of groups without signal by chance of being right, group size ${found.group_size}`} height=${260} deps=${[found.p, found.group_size, real.data?.group_size, real.data?.prompts.length]}
          legend=${[["by chance", "var(--c6)"], ["steps of the recorded run", "var(--c3)", "dot"], ["prompts of nano, sampled here", "var(--c4)", "dot"]]}
          build=${(Plot) => ({ x: { label: "chance of being right", tickFormat: (value) => percent(value) }, y: { domain: [0, 1], grid: true, label: "groups that teach nothing", tickFormat: (value) => percent(value) }, marks: [
            Plot.lineY(found.curve, { x: "p", y: "zero_signal", stroke: "var(--c6)", strokeWidth: 2 }),
            ...(found.group_size === real.data?.recorded.group_size ? [Plot.dot(real.data.recorded.steps, { x: "pass_rate", y: "observed_zero_signal", fill: "var(--c3)", fillOpacity: 0.55, r: 3.5 })] : []),
            Plot.dot(real.data?.prompts ?? [], { x: "pass_rate", y: "observed", fill: "var(--c4)", fillOpacity: 0.6, r: 3 }),
            Plot.ruleX([found.p], { stroke: "var(--accent)" }), Plot.dot([found], { x: "p", y: "zero_signal", r: 6, fill: "var(--accent)" })] })}
          table=${{ columns: ["prompt", "right", "level groups", "by chance"], rows: (real.data?.prompts ?? []).map((row) => [row.prompt, row.pass_rate, row.observed, row.expected]) }} />
        <${Numbers} items=${[["teaches nothing", rare(found.zero_signal), `of groups at ${percent(found.p)}`, "zero-signal"], ["teaches something", percent(1 - found.zero_signal, 1)], ["at least one right", percent(found.some_right, 1), "of groups: the more answers, the likelier a rare right one", "some-right"]]} />`}<//>
      <${Only} depth="math"><${Equation} tex=${`\\Pr(\\text{level})=p^{G}+(1-p)^{G}=${p.toFixed(2)}^{${g}}+${(1 - p).toFixed(2)}^{${g}}${state.data ? `=${Number(state.data.zero_signal.toPrecision(3))}` : ""}`} spoken="The chance that a group is level is p to the G plus one minus p to the G." /><//>
      <${Only} depth="code"><${Code} slug="group" source="zero_signal_chance" /><//>
    <//>
    <p>The line assumes that every problem of a batch is equally hard. The recorded run's steps hold sixteen problems each, some easier than others; a step above the line has problems that differ. As the model learns they all drift to the right, and fewer groups teach: <${Link} to="/runs/~tiny-arithmetic/difficulty">the whole map<//>. Leaving level groups out and asking others instead is what <code>--algorithm dapo</code> does.</p>
  <//>`;
}

const WORDS = { none: "reward itself", known: "true mean", mean: "group mean", others: "mean of the others", std: "group mean ÷ deviation" };
const COLOURS = { none: "var(--c6)", known: "var(--c4)", mean: "var(--c1)", others: "var(--c3)", std: "var(--c2)" };

export function Sizes() {
  const p = param("sp", 0.5);
  const state = useAnswer("group", "sizes", { p });
  return html`<${Section} id="sizes" title="How many answers?" lead="The same 64 completions can be two answers to 32 problems, or 64 answers to one.">
    <${Play} label="Group sizes with the same budget">
      <div class="knobs"><${Slider} name="sp" label="The model's chance of being right" min=${0.01} max=${0.99} step=${0.01} value=${0.5} show=${(value) => percent(value)} /></div>
      <${Fetched} state=${state} height="14rem">${({ rows }) => {
        const at = Object.fromEntries(rows.map((row) => [row.group_size, row]));
        return html`<div class="size-cards">
          <${SizeCard} title="G = 2" rows=${[at[2]]} words="One comparison. It speaks only when the two differ; but there are many of them." />
          <${SizeCard} title="G = 8 to 16" rows=${[at[8], at[16]]} words="Nearly every group speaks, and the mean is known well enough. The usual choice." />
          <${SizeCard} title="G = 64" rows=${[at[64]]} words="The mean is known best, of one problem. It pays where right answers are rare." />
        </div>
        <${Only} depth="math"><p class="small soft">The group mean is a Monte Carlo estimate of the value of the prompt, with standard error <i>√(p(1−p)/G)</i>: unbiased, and wrong by ${number(at[8].baseline_error, 3)} at G = 8.</p><//>`;
      }}<//>
    <//>
    <p>What is reported differs: <span class="reported-source">reported: 64 in DeepSeekMath (arXiv 2402.03300), 16 in DeepSeek-R1 (arXiv 2501.12948)</span>. ${state.data && html`${state.data.defaults.group_size} is this program's default, with ${state.data.defaults.prompts_per_step} problems a step. `}Sampling is the price: the answers of a group are the only thing that grows with G, where PPO would train a second network instead.</p>
  <//>`;
}

const rare = (share) => (share > 0 && share < 1e-4 ? "< 0.01%" : percent(share, share > 0 && share < 0.1 ? 2 : 0));

function SizeCard({ title, rows, words }) {
  return html`<div><h3>${title}</h3><p class="small">${words}</p><dl>${rows.map((row) => html`<div><dt>${rows.length > 1 ? `G = ${row.group_size}: ` : ""}teach nothing</dt><dd class="num" data-number=${`size-${row.group_size}`}>${rare(row.zero_signal)}</dd></div><div><dt>groups that teach</dt><dd class="num">${number(row.groups_with_signal, 1)} of ${row.groups}</dd></div><div><dt>error of the mean</dt><dd class="num">± ${number(row.baseline_error, 3)}</dd></div>`)}</dl></div>`;
}

export function Variance() {
  const p = param("vp", 0.5);
  const state = useAnswer("group", "estimates", { p });
  return html`<${Section} id="variance" depth="math code" title="What a baseline does to the noise" lead="A policy with two answers and one logit. Every group there can be is run through, so these are exact: how large the estimate of the gradient is on average, and how much it scatters, when 64 completions are spent.">
    <${Play} label="Mean and deviation of the gradient estimate">
      <div class="knobs"><${Slider} name="vp" label="The policy's chance p" min=${0.02} max=${0.98} step=${0.02} value=${0.5} show=${(value) => percent(value)} /></div>
      <${Fetched} state=${state} height="24rem">${(found) => html`
        <${Chance} found=${found} y="deviation" label="Scatter of the estimate" note="lower is better" />
        <${Chance} found=${found} y="of_true" label="Mean of the estimate, as a part of the true gradient" note="1 is unbiased" />
        <${Numbers} items=${[["true gradient", number(found.true, 4), "p(1 − p)", "true-gradient"], ["group mean, G = 2", percent(row(found, 2, "mean").of_true), "of it: 1 − 1/G"], ["mean of the others", percent(row(found, 8, "others").of_true), "of it: unbiased"]]} />`}<//>
      <${Equation} tex="\\hat g=\\frac1G\\sum_i A_i\\,\\nabla\\log\\pi(o_i),\\qquad \\mathbb{E}\\,\\hat g_{\\text{mean}}=\\Big(1-\\tfrac1G\\Big)\\nabla J,\\qquad \\mathbb{E}\\,\\hat g_{\\text{others}}=\\nabla J" spoken="The estimate is the mean of advantage times the gradient of the log-probability. With the group mean its expectation is one minus one over G times the true gradient; with the mean of the others it is the true gradient." />
      <${Only} depth="code"><${Code} slug="group" source="group_estimate" /><//>
    <//>
    <p>The group mean contains the answer itself, which pulls every estimate towards 0 by 1 − 1/G: a shorter step in the right direction. It is not unbiased, as is often said; leaving the answer out is. With two answers, dividing by the deviation rescales each group; with more than two it also turns the direction. <${Link} to="/learn/advantage?depth=math">Exactly how far<//>.</p>
  <//>`;
}

const row = (found, size, name) => found.rows.find((one) => one.group_size === size && one.estimator === name);

function Chance({ found, y, label, note }) {
  const rows = found.rows;
  return html`<div><h3>${label} <span class="small soft">${note}</span></h3>
    <${Figure} label=${`${label} by group size and baseline`} height=${200} deps=${[found.p, y]} legend=${Object.entries(WORDS).map(([name, words]) => [words, COLOURS[name]])}
      build=${(Plot) => ({ x: { type: "log", base: 2, label: "group size G", ticks: [2, 4, 8, 16, 32, 64], tickFormat: String }, y: { grid: true, label: null, zero: true }, marks: [Plot.lineY(rows, { x: "group_size", y, z: "estimator", stroke: (one) => COLOURS[one.estimator], strokeWidth: 2 }), Plot.dot(rows, { x: "group_size", y, fill: (one) => COLOURS[one.estimator], r: 3 })] })}
      table=${{ columns: ["G", "baseline", label], rows: rows.map((one) => [one.group_size, WORDS[one.estimator], one[y]]) }} /></div>`;
}
