// Memory by component, and the models in it.
import { html } from "htm/preact";
import { exact, percent, plural } from "../format.js";
import { Choice, Code, Fetched, Figure, Numbers, Only, param, Play, Section, Slider, Table, useAnswer } from "../lesson.js";
import { Term } from "../glossary.js";
import { setQuery } from "../route.js";

export const GIB = 2 ** 30;
export const gib = (bytes) => {
  if (bytes === 0) return "–";
  return bytes >= 100 * GIB ? `${Math.round(bytes / GIB).toLocaleString("en-US")} GiB` : `${exact(bytes / GIB, 3)} GiB`;
};
export const tera = (flops) => `${Math.round(flops / 1e12).toLocaleString("en-US")}`;
// Several states as one: its data is there when all are.
export const together = (...states) => ({
  data: states.every((state) => state.data !== undefined) ? states.map((state) => state.data) : undefined,
  error: states.find((state) => state.error)?.error ?? null,
  loading: states.some((state) => state.loading),
});
export const COLOURS = {
  weights: "var(--c1)",
  gradients: "var(--c2)",
  optimizer: "var(--c3)",
  reference: "var(--c6)",
  "reward model": "var(--c4)",
  critic: "var(--below)",
  "working copies": "var(--reward-2)",
  "keys/values": "var(--reward-3)",
  activations: "var(--level)",
  logits: "var(--line-strong)",
};
const NAMES = { optimizer: "Adam's moments", critic: "critic (weights, gradients, moments)" };

const memoryParams = () => ({
  size: param("size", 7),
  dtype: param("dtype", "bfloat16"),
  count: param("count", "all"),
  lora: param("lora", "0"),
  reference: param("ref", "yes"),
  judge: param("judge", "rule"),
  g: param("g", 8),
  new_tokens: param("new", 1024),
});

export function Memory() {
  const state = useAnswer("costs", "memory", memoryParams());
  return html`<${Section} title="What fits on the GPU" id="memory"
    lead=${html`PPO trains a second model, the <${Term} of="critic">critic<//>, to predict the <${Term} of="reward">reward<//>. GRPO uses
      the <${Term} of="group">group<//>’s mean instead. These bars are predicted by the planner.`}>
    <${Play} label="Memory planner">
      <div class="knobs"><${Slider} name="size" label="parameters, billions" min=${0.5} max=${70} step=${0.5} value=${7} show=${(v) => `${exact(v, 3)} B`} />
        <${Choice} name="count" label="count" value="all" options=${[["weights", "weights only"], ["states", "training states"], ["all", "everything"]]} />
        <${Choice} name="lora" label="trainable weights" value="0" options=${[["0", "all"], ["16", "LoRA, rank 16"]]} />
        <${Only} depth="math code">
          <${Choice} name="dtype" label="precision" value="bfloat16" options=${[["bfloat16", "bfloat16"], ["mixed", "mixed"], ["float32", "float32"]]} />
        <${Choice} name="ref" label="reference" value="yes" options=${[["yes", "β > 0"], ["no", "β = 0: none"]]} />
        <${Choice} name="judge" label="reward" value="rule" options=${[["rule", "a checker"], ["model", "a reward model of this size"]]} />
        <${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} />
        <${Slider} name="new" label="new tokens" min=${64} max=${4096} step=${64} value=${1024} /><//></div>
      <p class="chips">
        ${[7, 13, 70].map((size) => html`<button type="button" class="chip" aria-pressed=${param("size", 7) === size}
          onClick=${() => setQuery({ size: size === 7 ? undefined : size })}>
          ${size}B</button>`)}
      </p>
      <${Fetched} state=${state} height="30rem">${(data) => html`<${Stacks} data=${data} />
        <${Numbers}
          items=${[
            ["GRPO", gib(data.rows[0].total), null, "grpo-total"],
            ["PPO", gib(data.rows[1].total), null, "ppo-total"],
            ["GRPO saves", percent(data.saved, 1), "of PPO's memory", "saved"],
          ]} />
        <${Only} depth="math code">
          <${Table} label="Memory by component" head=${["component", "GRPO", "PPO"]}
            rows=${Object.keys(data.rows[1].components).filter((name) => data.rows.some((row) => row.components[name])).map(
              (name) => [NAMES[name] ?? name, ...data.rows.map((row) => html`<span class="num">${gib(row.components[name] ?? 0)}</span>`)],
            )}
            foot=${data.count === "all"
              ? "The total is the peak. Not all components exist at that moment, and the backward pass needs memory of its own."
              : ""} />
        <//>
        <${Only} depth="math code">
          <p class="small soft">
            ${data.rows.map((row) => `${row.algorithm === "grpo" ? "GRPO" : "PPO"} fits on ${row.fits.length
              ? row.fits.slice(0, 3).join(", ")
              : "none of the GPUs in the table"}`).join("; ")}.</p>
        <//>`}
      <//>
    <//>
    <${Largest} />
    <${Only} depth="math"><${Shares} /><//>
    <${Only} depth="code"><${Code} slug="costs" source="memory_of" title="The planner's memory" />
      <${Code} slug="costs" source="needs" title="Which models an algorithm needs" />
      <pre class="listing scroll" tabIndex="0" role="group" aria-label="Command">
        <code>grpo plan --params ${param("size", 7)}B --algorithm grpo,ppo --dtype ${param("dtype", "bfloat16")}</code></pre>
    <//>
  <//>`;
}

function Largest() {
  const { dtype, lora, reference, g, new_tokens } = memoryParams();
  const state = useAnswer("costs", "largest", { card: param("card", "h200"), dtype, lora, reference, g, new_tokens });
  return html`<${Play} label="Largest model on one GPU">
    <${Choice} name="card" label="GPU" value="h200"
      options=${[["4090", "4090, 24 GiB"], ["a100-80", "A100, 80 GiB"], ["h200", "H200, 141 GiB"], ["b200", "B200, 180 GiB"]]} />
    <${Fetched} state=${state} height="5rem">
      ${(data) => html`<${Numbers}
        items=${[
          ["usable", gib(data.usable), `of ${gib(data.bytes)}`, "usable"],
          ["largest model with GRPO", data.largest.grpo ? `${exact(data.largest.grpo, 3)} B` : "none", null, "largest-grpo"],
          ["largest with PPO", data.largest.ppo ? `${exact(data.largest.ppo, 3)} B` : "none", null, "largest-ppo"],
        ]} />
        <${Only} depth="math code"><p class="small soft">Same precision, group size and length as above. Without a critic, a larger policy fits.</p><//>`}
    <//>
    <//>`;
}

function Shares() {
  const counted = ["weights", "states", "all"].map((count) => useAnswer("costs", "memory", { ...memoryParams(), count }));
  return html`<${Fetched} state=${together(...counted)} height="6rem">
    ${([weights, states, all]) => html`<p>The share saved without a critic depends on what is counted: weights
      only, <b class="num">${percent(weights.saved)}</b>; with gradients and moments, <b class="num">${percent(states.saved)}</b>; the peak of everything on the
      GPU, <b class="num" data-number="saved-all">${percent(all.saved)}</b>, because activations need the same memory in both cases.</p>`}
    <//>`;
}

function Stacks({ data }) {
  const parts = data.rows.flatMap((row) => Object.entries(row.components).filter(([, size]) => size).map(([name, size]) => ({
    algorithm: row.algorithm.toUpperCase(),
    name,
    size: size / GIB,
  })));
  const names = [...new Set(parts.map((part) => part.name))];
  return html`<${Figure} label="Memory by component, GRPO and PPO" height=${150} deps=${[JSON.stringify(parts)]}
    legend=${names.map((name) => [NAMES[name] ?? name, COLOURS[name], "square"])}
    build=${(Plot) => ({
      marginLeft: 52,
      x: { label: "GiB", grid: true, ticks: 6 },
      y: { label: null },
      marks: [Plot.barX(parts, { x: "size", y: "algorithm", fill: (d) => COLOURS[d.name], insetRight: 1, order: names, z: "name" })],
    })}
    table=${{ columns: ["algorithm", "component", "GiB"], rows: parts.map((part) => [part.algorithm, NAMES[part.name] ?? part.name, part.size]) }} />`;
}

// The models in memory, for PPO and for GRPO.
export function Models() {
  const state = useAnswer("costs", "memory", memoryParams());
  const words = {
    policy: ["samples the answers", "trainable"],
    reference: ["the starting model", "frozen"],
    critic: ["predicts the reward", "trainable"],
    "reward model": ["scores the answers", "frozen"],
  };
  const absent = {
    critic: "none: the group’s mean",
    "reward model": "none: a checker",
    reference: param("lora", "0") === "0" ? "none: β is 0" : "none: the policy without its adapter",
  };
  return html`<${Section} title="Models in memory" id="models" depth="intuition code"
    lead="PPO trains two models and keeps a frozen reference, often a reward model too. GRPO trains one.">
    <${Fetched} state=${state} height="14rem">
      ${(data) => html`<div class="models">
        ${data.rows.map((row) => html`<div class="model-column">
          <h3>
            ${row.algorithm.toUpperCase()} <span class="soft small" data-models=${row.algorithm}>
              ${plural(row.models.filter((model) => model.there).length, "model")}</span>
          </h3>
          <ul>
            ${row.models.map((model) => html`<li class="model ${model.there ? "" : "absent"} ${model.trainable ? "learns" : ""}"><b>${model.name}</b>
              <span class="small">${model.there ? words[model.name][0] : absent[model.name]}</span>
              <span class="tiny soft">${model.there ? words[model.name][1] : ""}</span></li>`)}
          </ul>
        </div>`)}
      </div>`}
    <//>
  <//>`;
}

