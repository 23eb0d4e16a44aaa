// Comparisons: PPO and GRPO, values of β, and convergence of exact gradient ascent.
import { html } from "htm/preact";
import { Choice, Code, Equation, Fetched, Figure, Misconception, Numbers, Only, Play, Slider, Table, param, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";

export function Smoothness() {
  const state = useAnswer("train", "smoothness", {});
  return html`<${Misconception} name="smoother" claim="PPO's early steps are noisy because its critic is untrained; GRPO converges more smoothly.">
    <${Fetched} state=${state} height="12rem">
      ${(rows) => html`<${Only} depth="math code">
        <${Table} label="Smoothness of training"
          head=${[
            "", "change of reward per step", "from sampling noise only", "reward, first 20 steps", "last 20", "spread over seeds at the end",
            "spread of the gradient norm",
          ]}
          rows=${rows.map((row) => [
            row.label,
            html`<b data-number=${`jump-${row.label}`}>${number(row.jump, 4)}</b>`,
            number(row.floor, 4),
            percent(row.early, 1),
            percent(row.late, 1),
            row.apart === null ? "–" : percent(row.apart, 1),
            percent(row.grad_spread),
          ])}
          foot=${`${rows[0]?.seeds ?? 0} seeds each, 128 completions a step. Sampled rewards of 0 and 1 vary from step to step. ` +
            "“Sampling noise only” is the change of a policy that never updates."} />
      <//>
      <${Reading} rows=${rows} />`}<//><//>`;
}

function Reading({ rows }) {
  const [grpo, ppo] = ["GRPO", "PPO"].map((name) => rows.find((row) => row.label === name));
  if (!grpo || !ppo) return null;
  const smoother = grpo.jump < ppo.jump ? "GRPO" : "PPO";
  const [less, more] = smoother === "GRPO" ? [grpo, ppo] : [ppo, grpo];
  const near = more.jump / less.jump < 1.1;
  return html`<p>${near ? "In these runs neither is smoother: " : `In these runs ${smoother} is smoother: `}the reward changes
    by ${number(less.jump, 3)} and ${number(more.jump, 3)} per
    step<${Only} depth="math code">, and sampling noise explains ${percent(less.luck)} and ${percent(more.luck)} of that variance<//>. They differ at the
    beginning: over the first 20 steps the reward is ${percent(grpo.early)} (GRPO) and ${percent(ppo.early)} (PPO), whose first ten steps train only the critic.
    Over the last 20 it is ${percent(grpo.late)} and ${percent(ppo.late)}. This task has one reward at the end; longer tasks with partial rewards may
    differ.</p>`;
}

export function Drift() {
  const asked = { beta: param("beta", 0.04), kl: param("kind", "k3") };
  const state = useAnswer("train", "drift", asked);
  const free = useAnswer("train", "drift", { beta: 0 });
  return html`<${Play} label="Drift of a policy over five answers">
    <div class="knobs"><${Slider} name="beta" label="β" min=${0} max=${1} step=${0.01} value=${0.04} show=${(value) => number(value, 2)} />
      <${Choice} name="kind" label="estimate of the KL" value="k3" options=${[["k1", "k1"], ["k2", "k2"], ["k3", "k3"]]} /></div>
    <${Fetched} state=${state} height="18rem">
      ${(data) => html`<${Figure} label="KL divergence from the reference over 200 exact steps" height=${210}
        deps=${[JSON.stringify(asked), free.data?.rows.length]}
        build=${(Plot) => ({
          x: { label: "steps" },
          y: { label: "KL, nats", grid: true, zero: true },
          marks: [
            Plot.lineY(free.data?.rows ?? [], { x: "step", y: "reverse", stroke: "var(--ink-faint)", strokeDasharray: "4 3" }),
            Plot.lineY(data.rows, { x: "step", y: "reverse", stroke: "var(--c1)", strokeWidth: 2 }),
            Plot.lineY(data.rows, { x: "step", y: "forward", stroke: "var(--c2)", strokeWidth: 2 }),
          ],
        })}
        legend=${[["KL(policy ‖ reference)", "var(--c1)"], ["KL(reference ‖ policy)", "var(--c2)"], ["β = 0", "var(--ink-faint)"]]}
        table=${{ columns: ["step", "reverse", "forward", "reward"], rows: data.rows.map((row) => [row.step, row.reverse, row.forward, row.reward]) }} />
      <${Numbers}
        items=${[
          ["KL at the end", data.rows.at(-1).reverse, "nats", "drift-end"],
          ["expected reward", percent(data.rows.at(-1).reward, 1), null, "drift-reward"],
          ["probability of the best answer", percent(data.probabilities[4], 1), `was ${percent(data.start[4])}`],
        ]} />`}
    <//>
    <p class="small soft">Five answers and exact gradients, so there is no sampling noise. With k1 the penalty has no effect, since its expected gradient is 0.
      Below is the same experiment with nano.</p>
    <//>
    <${Only} depth="code"><${Code} slug="train" source="drift" /><//>`;
}

export function Drifted() {
  const state = useAnswer("train", "drifted", {});
  return html`<${Misconception} name="drifts" claim="Without the KL penalty the policy drifts without limit; with it, the drift stops.">
    <${Fetched} state=${state} height="10rem">
      ${(rows) => html`<${Table} label="Drift of nano" head=${["", "KL, steps 50 to 100", "KL, last 50 steps", "reward, last 50", "held-out accuracy"]}
        rows=${rows.map((row) => [
          row.label,
          number(row.kl_middle, 3),
          html`<b data-number=${`kl-${row.label}`}>${number(row.kl, 3)}</b>`,
          percent(row.reward, 1),
          percent(row.accuracy, 1),
        ])} />
      <p>In these runs the drift also stops with almost no penalty. By then the task is solved: rewards within groups are equal, so there is no gradient.
        Solving the task takes a KL divergence of about 0.1 nats with any β. In the example above, the reward can always rise, so the
        drift continues. β = 0.3 lowered accuracy. Replacing the reference by the current policy every 40 steps restored it.</p>`}
    <//>
    <//>`;
}

export function Convergence() {
  const state = useAnswer("train", "convergence", { g: param("cg", 4) });
  const colours = ["var(--c1)", "var(--c2)", "var(--c3)"];
  return html`<p>Gradient ascent with an unbiased gradient and shrinking steps converges to a point with gradient 0 (Robbins and Monro, 1951). This does not
    carry over to PPO and GRPO: the clip changes the objective with every batch, and dividing by the group's std changes the direction. Small cases can be
    computed exactly:</p>
    <${Play} label="Exact ascent by three gradients"><${Slider} name="cg" label="group size G" min=${2} max=${5} step=${1} value=${4} />
      <${Fetched} state=${state} height="16rem">
        ${(data) => html`<${Figure} label="Expected reward over exact steps by three gradients" height=${190} deps=${[data.group_size]}
          build=${(Plot) => ({
            x: { label: "steps" },
            y: { label: "expected reward", domain: [0, 1], grid: true, tickFormat: (value) => percent(value) },
            marks: Object.values(data.ways).map((rows, place) => Plot.lineY(rows, { x: "step", y: "reward", stroke: colours[place], strokeWidth: 2 })),
          })}
          legend=${Object.keys(data.ways).map((name, place) => [name, colours[place]])}
          table=${{
            columns: ["step", ...Object.keys(data.ways)],
            rows: Object.values(data.ways)[0].map((row, at) => [row.step, ...Object.values(data.ways).map((rows) => rows[at].reward)]),
          }} />
        <${Numbers} items=${Object.entries(data.ways).map(([name, rows]) => [name, percent(rows.at(-1).reward, 1), "after 200"])} />`}<//><//>
    <p>All three converge to the best answer here. With the std it is faster, because its steps stay large while the spread of the group shrinks.</p>
    <${Equation} tex=${"\\theta_{t+1}=\\theta_t+\\eta\\,\\mathbb E\\Big[\\tfrac1G\\textstyle\\sum_i A_i\\nabla\\log\\pi(a_i)\\Big]"}
      spoken="Theta at t plus one equals theta at t plus eta times the expectation of the mean over the group of A i times the gradient of log pi of a i" />
    <${Only} depth="code"><${Code} slug="train" source="convergence" /><//>`;
}
