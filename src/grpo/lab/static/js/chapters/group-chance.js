// How often a group has no signal: in theory, in the recorded run, and for prompts sampled here.
import { html } from "htm/preact";
import { Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, useAnswer, useDepth, Verdict } from "../lesson.js";
import { number, percent } from "../format.js";
import { Term } from "../glossary.js";
import { Link } from "../route.js";

export function Difficulty() {
  const p = param("p", 0.5);
  const g = 2 ** param("logg", 3);
  const state = useAnswer("group", "chance", { p, g });
  const real = useAnswer("group", "observed", { g });
  return html`<${Section} id="difficulty" title="Neither too easy nor too hard"
    lead=${html`If all answers are right, or all wrong, no one is better than the others: every <${Term} of="advantage">advantage<//> is 0 and the group has
      no <${Term} of="signal">signal<//>.`}>
    <${Play} label="Probability of a group without signal">
      <div class="knobs">
        <${Slider} name="p" label="How often the model is right" min=${0} max=${1} step=${0.01} value=${0.5} show=${(value) => percent(value)} />
        <${Slider} name="logg" label="Answers in a group" min=${1} max=${6} step=${1} value=${3} show=${(value) => String(2 ** value)} /></div>
      <${Fetched} state=${state} height="20rem">${(found) => html`
        <${Figure} label=${`Share of groups without signal by probability of a right answer, group size ${found.group_size}`} height=${260}
          deps=${[found.p, found.group_size, real.data?.group_size, real.data?.prompts.length]}
          legend=${[["expected", "var(--c6)"], ["steps of a recorded run", "var(--c3)", "dot"], ["sampled here", "var(--c4)", "dot"]]}
          build=${(Plot) => ({ x: { label: "how often right", tickFormat: (value) => percent(value) },
            y: { domain: [0, 1], grid: true, label: "groups without signal", tickFormat: (value) => percent(value) }, marks: [
            Plot.lineY(found.curve, { x: "p", y: "zero_signal", stroke: "var(--c6)", strokeWidth: 2 }),
            ...(found.group_size === real.data?.recorded.group_size
              ? [Plot.dot(real.data.recorded.steps, { x: "pass_rate", y: "observed_zero_signal", fill: "var(--c3)", fillOpacity: 0.55, r: 3.5 })]
              : []),
            Plot.dot(real.data?.prompts ?? [], { x: "pass_rate", y: "observed", fill: "var(--c4)", fillOpacity: 0.6, r: 3 }),
            Plot.ruleX([found.p], { stroke: "var(--accent)" }), Plot.dot([found], { x: "p", y: "zero_signal", r: 6, fill: "var(--accent)" })] })}
          table=${{
            columns: ["prompt", "right", "groups without signal", "theory"],
            rows: (real.data?.prompts ?? []).map((row) => [row.prompt, row.pass_rate, row.observed, row.expected]),
          }} />
        <${Numbers}
          items=${[
            ["groups without signal", rare(found.zero_signal), null, "zero-signal"],
            ["at least one right", percent(found.some_right, 1), "larger groups find rare right answers", "some-right"],
          ]} />`}
      <//>
      <${Only} depth="math">
        <${Equation}
          tex=${`\\Pr(\\text{no signal})=p^{G}+(1-p)^{G}=${p.toFixed(2)}^{${g}}+${(1 - p).toFixed(2)}^{${g}}${state.data
            ? `=${Number(state.data.zero_signal.toPrecision(3))}`
            : ""}`}
          spoken="The probability that a group has no signal is p to the G plus one minus p to the G." />
      <//>
      <${Only} depth="code"><${Code} slug="group" source="zero_signal_chance" /><//>
    <//>
    <${Only} depth="math code">
      <p>The curve assumes that all problems of a batch are equally hard. A step of the recorded run has sixteen problems, some easier than others, so its share
        can lie above the curve. As the model learns, steps move to the right and fewer groups have
        signal: <${Link} to="/runs/~tiny-arithmetic/difficulty">the Difficulty view<//>. <code>--algorithm dapo</code> replaces groups without signal (dynamic
        sampling).</p>
    <//>
  <//>`;
}

const WORDS = { none: "reward itself", known: "true mean", mean: "group mean", others: "mean of the others", std: "group mean ÷ std" };
const COLOURS = { none: "var(--c6)", known: "var(--c4)", mean: "var(--c1)", others: "var(--c3)", std: "var(--c2)" };

export function Sizes() {
  const p = param("sp", 0.5);
  const state = useAnswer("group", "sizes", { p });
  return html`<${Section} id="sizes" title="Which group size?" lead="The same 64 answers: two to each of 32 questions, or 64 to one.">
    <${Play} label="Group sizes with the same budget">
      <div class="knobs">
        <${Slider} name="sp" label="How often the model is right" min=${0.01} max=${0.99} step=${0.01} value=${0.5} show=${(value) => percent(value)} /></div>
      <${Fetched} state=${state} height="14rem">${({ rows }) => {
        const at = Object.fromEntries(rows.map((row) => [row.group_size, row]));
        return html`<div class="size-cards">
          <${SizeCard} title="2 answers" rows=${[at[2]]} words="Many questions, one comparison each." />
          <${SizeCard} title="8 to 16" rows=${[at[8], at[16]]} words="The usual choice." />
          <${SizeCard} title="64 answers" rows=${[at[64]]} words="One question, its average known best." />
        </div>
        <${Only} depth="math">
          <p class="small soft">The group mean is a Monte Carlo estimate of the value of the prompt, with standard error <i>√(p(1−p)/G)</i>: unbiased, with an
            error of ${number(at[8].baseline_error, 3)} at G = 8.</p>
        <//>`;
      }}<//>
    <//>
    <${Only} depth="math code">
      <p>Papers use different
        sizes: <span class="reported-source">reported: 64 in DeepSeekMath (arXiv 2402.03300), 16 in DeepSeek-R1 (arXiv
          2501.12948)</span>. ${state.data && html`${state.data.defaults.group_size} is the default here, with ${state.data.defaults.prompts_per_step} problems
            a step. `}The
        cost of a larger G is sampling. PPO trains a second network instead.</p>
    <//>
  <//>`;
}

const rare = (share) => (share > 0 && share < 1e-4 ? "< 0.01%" : percent(share, share > 0 && share < 0.1 ? 2 : 0));

// All that a card says of a size is computed at the reader's probability; its words hold at any.
function SizeCard({ title, rows, words }) {
  const exactly = useDepth() !== "intuition";
  const which = (row) => (rows.length > 1 ? `${row.group_size}: ` : "");
  return html`<div><h3>${title}</h3><p class="small">${words}</p>
    <dl>
      ${rows.map((row) => html`<div><dt>${which(row)}no signal</dt><dd class="num" data-number=${`size-${row.group_size}`}>${rare(row.zero_signal)}</dd></div>
        ${exactly && html`<div><dt>groups with signal</dt><dd class="num">${number(row.groups_with_signal, 1)} of ${row.groups}</dd></div>`}
        <div><dt>${which(row)}error of the average</dt><dd class="num">± ${number(row.baseline_error, exactly ? 3 : 2)}</dd></div>`)}
    </dl>
    </div>`;
}

export function Variance() {
  const p = param("vp", 0.5);
  const state = useAnswer("group", "estimates", { p });
  return html`<${Section} id="variance" depth="math code" title="How a baseline changes the noise"
    lead=${"A policy with two answers and one logit. We enumerate every possible group, so the mean and the standard deviation of the gradient estimate are " +
      "exact. The budget is 64 completions."}>
    <${BiasQuestion} />
    <${Play} label="Mean and standard deviation of the gradient estimate">
      <div class="knobs">
        <${Slider} name="vp" label="Probability p of a right answer" min=${0.02} max=${0.98} step=${0.02} value=${0.5} show=${(value) => percent(value)} />
      </div>
      <${Fetched} state=${state} height="24rem">${(found) => html`
        <${Chance} found=${found} y="deviation" label="Standard deviation of the estimate" note="standard deviation" />
        <${Chance} found=${found} y="of_true" label="Mean of the estimate, as a share of the true gradient" note="share of the true gradient" />
        <${Numbers}
          items=${[
            ["true gradient", number(found.true, 4), "p(1 − p)", "true-gradient"],
            ["group mean, G = 2", percent(row(found, 2, "mean").of_true), "of it: 1 − 1/G"],
            ["mean of the others", percent(row(found, 8, "others").of_true), "of it: unbiased"],
          ]} />`}
      <//>
      <${Equation}
        tex=${"\\hat g=\\frac1G\\sum_i A_i\\,\\nabla\\log\\pi(o_i),\\qquad \\mathbb{E}\\,\\hat g_{\\text{mean}}=\\Big(1-\\tfrac1G\\Big)\\nabla J,\\qquad " +
          "\\mathbb{E}\\,\\hat g_{\\text{others}}=\\nabla J"}
        spoken=${"The estimate is the mean of advantage times the gradient of the log-probability. With the group mean its expectation is one minus one over " +
          "G times the true gradient; with the mean of the others it is the true gradient."} />
      <${Only} depth="code"><${Code} slug="group" source="group_estimate" /><//>
    <//>
    <p>The group mean includes the answer itself, which scales every estimate by 1 − 1/G: a shorter step in the right direction. It is often called unbiased,
      but it is not; leave-one-out is. With two possible answers, dividing by the standard deviation rescales each group. With more than two it also changes the
      direction: <${Link} to="/learn/advantage?depth=math">by how much<//>.</p>
  <//>`;
}

const row = (found, size, name) => found.rows.find((one) => one.group_size === size && one.estimator === name);

function Chance({ found, y, label, note }) {
  const rows = found.rows;
  return html`<div><h3>${label}</h3>
    <${Figure} label=${`${label} by group size and baseline`} height=${200} deps=${[found.p, y]}
      legend=${Object.entries(WORDS).map(([name, words]) => [words, COLOURS[name]])}
      build=${(Plot) => ({
        x: { type: "log", base: 2, label: "group size G", ticks: [2, 4, 8, 16, 32, 64], tickFormat: String },
        y: { grid: true, label: note, zero: true },
        marks: [
          Plot.lineY(rows, { x: "group_size", y, z: "estimator", stroke: (one) => COLOURS[one.estimator], strokeWidth: 2 }),
          Plot.dot(rows, { x: "group_size", y, fill: (one) => COLOURS[one.estimator], r: 3 }),
        ],
      })}
      table=${{ columns: ["G", "baseline", label], rows: rows.map((one) => [one.group_size, WORDS[one.estimator], one[y]]) }} /></div>`;
}

function BiasQuestion() {
  return html`<${Question} name="q-bias" ask="Does a small group give a gradient that points the wrong way on average?"
    options=${[["yes", "Yes, it is biased"], ["no", "No, only shorter and noisier"]]}>
    ${(picked) => html`<${Bias} picked=${picked} />`}<//>`;
}

function Bias({ picked }) {
  const state = useAnswer("group", "estimates", { p: 0.3 });
  return html`<${Verdict} picked=${picked} right="no">
    <${Fetched} state=${state} height="8rem">
      ${(found) => html`<${Table} label="Estimates at p = 0.3"
        head=${["G", "group mean: share of the true gradient", "std, 64 completions", "leave-one-out: share", "std"]} rows=${[2, 8, 64].map((size) => {
      const [mean, others] = ["mean", "others"].map((name) => found.rows.find((row) => row.group_size === size && row.estimator === name));
      return [String(size), percent(mean.of_true, 1), number(mean.deviation, 4), percent(others.of_true, 1), number(others.deviation, 4)];
    })} />`}<//>
    <p>Without division the group mean only scales the gradient by 1 − 1/G, for any answers. The real cost of a small group is noise. Dividing by the standard
      deviation also changes the direction: <${Link} to="/learn/advantage?depth=math">the next chapter measures by how much<//>.</p>
    <//>`;
}
