// The costs of training: memory by component, two ways to count it, measurements on a GPU, and FLOPs.
import { html } from "htm/preact";
import { exact, percent, plural } from "../format.js";
import { Choice, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Reported, Section, Slider, Table, useAnswer } from "../lesson.js";
import { Term } from "../glossary.js";
import { Link, setQuery } from "../route.js";

const GIB = 2 ** 30;
export const gib = (bytes) => (bytes === 0 ? "–" : bytes >= 100 * GIB ? `${Math.round(bytes / GIB).toLocaleString("en-US")} GiB` : `${exact(bytes / GIB, 3)} GiB`);
export const tera = (flops) => `${Math.round(flops / 1e12).toLocaleString("en-US")}`;
// Several states as one: its data is there when all are.
export const together = (...states) => ({ data: states.every((state) => state.data !== undefined) ? states.map((state) => state.data) : undefined, error: states.find((state) => state.error)?.error ?? null, loading: states.some((state) => state.loading) });
export const COLOURS = { weights: "var(--c1)", gradients: "var(--c2)", optimizer: "var(--c3)", reference: "var(--c6)", "reward model": "var(--c4)", critic: "var(--below)", "working copies": "var(--reward-2)", "keys/values": "var(--reward-3)", activations: "var(--level)", logits: "var(--line-strong)" };
const NAMES = { optimizer: "Adam's moments", critic: "critic (weights, gradients, moments)" };

const memoryParams = () => ({ size: param("size", 7), dtype: param("dtype", "bfloat16"), count: param("count", "all"), lora: param("lora", "0"), reference: param("ref", "yes"), judge: param("judge", "rule"), g: param("g", 8), new_tokens: param("new", 1024) });

export function Memory() {
  const state = useAnswer("costs", "memory", memoryParams());
  return html`<${Section} title="What fits on the GPU" id="memory" lead=${html`PPO trains a second model, the <${Term} of="critic">critic<//>, to predict the <${Term} of="reward">reward<//>. GRPO uses the <${Term} of="group">group<//>’s mean instead. These bars are predicted by the planner.`}>
    <${Play} label="Memory planner">
      <div class="knobs"><${Slider} name="size" label="parameters, billions" min=${0.5} max=${70} step=${0.5} value=${7} show=${(v) => `${exact(v, 3)} B`} />
        <${Choice} name="count" label="count" value="all" options=${[["weights", "weights only"], ["states", "training states"], ["all", "everything"]]} />
        <${Choice} name="lora" label="trainable weights" value="0" options=${[["0", "all"], ["16", "LoRA, rank 16"]]} />
        <${Only} depth="math code"><${Choice} name="dtype" label="precision" value="bfloat16" options=${[["bfloat16", "bfloat16"], ["mixed", "mixed"], ["float32", "float32"]]} />
        <${Choice} name="ref" label="reference" value="yes" options=${[["yes", "β > 0"], ["no", "β = 0: none"]]} />
        <${Choice} name="judge" label="reward" value="rule" options=${[["rule", "a checker"], ["model", "a reward model of this size"]]} />
        <${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} />
        <${Slider} name="new" label="new tokens" min=${64} max=${4096} step=${64} value=${1024} /><//></div>
      <p class="chips">${[7, 13, 70].map((size) => html`<button type="button" class="chip" aria-pressed=${param("size", 7) === size} onClick=${() => setQuery({ size: size === 7 ? undefined : size })}>${size}B</button>`)}</p>
      <${Fetched} state=${state} height="30rem">${(data) => html`<${Stacks} data=${data} />
        <${Numbers} items=${[["GRPO", gib(data.rows[0].total), null, "grpo-total"], ["PPO", gib(data.rows[1].total), null, "ppo-total"], ["GRPO saves", percent(data.saved, 1), "of PPO's memory", "saved"]]} />
        <${Only} depth="math code"><${Table} label="Memory by component" head=${["component", "GRPO", "PPO"]} rows=${Object.keys(data.rows[1].components).filter((name) => data.rows.some((row) => row.components[name])).map((name) => [NAMES[name] ?? name, ...data.rows.map((row) => html`<span class="num">${gib(row.components[name] ?? 0)}</span>`)])} foot=${data.count === "all" ? "The total is the peak. Not all components exist at that moment, and the backward pass needs memory of its own." : ""} /><//>
        <${Only} depth="math code"><p class="small soft">${data.rows.map((row) => `${row.algorithm === "grpo" ? "GRPO" : "PPO"} fits on ${row.fits.length ? row.fits.slice(0, 3).join(", ") : "none of the GPUs in the table"}`).join("; ")}.</p><//>`}<//>
    <//>
    <${Largest} />
    <${Only} depth="math"><${Shares} /><//>
    <${Only} depth="code"><${Code} slug="costs" source="memory_of" title="The planner's memory" /><${Code} slug="costs" source="needs" title="Which models an algorithm needs" /><pre class="listing scroll" tabIndex="0" role="group" aria-label="Command"><code>grpo plan --params ${param("size", 7)}B --algorithm grpo,ppo --dtype ${param("dtype", "bfloat16")}</code></pre><//>
  <//>`;
}

function Largest() {
  const { dtype, lora, reference, g, new_tokens } = memoryParams();
  const state = useAnswer("costs", "largest", { card: param("card", "h200"), dtype, lora, reference, g, new_tokens });
  return html`<${Play} label="Largest model on one GPU"><${Choice} name="card" label="GPU" value="h200" options=${[["4090", "4090, 24 GiB"], ["a100-80", "A100, 80"], ["h200", "H200, 141"], ["b200", "B200, 180"]]} />
    <${Fetched} state=${state} height="5rem">${(data) => html`<${Numbers} items=${[["largest model with GRPO", data.largest.grpo ? `${exact(data.largest.grpo, 3)} B` : "none", null, "largest-grpo"], ["largest with PPO", data.largest.ppo ? `${exact(data.largest.ppo, 3)} B` : "none", null, "largest-ppo"]]} /><${Only} depth="math code"><p class="small soft">Same precision, group size and length as above. Without a critic, a larger policy fits.</p><//>`}<//><//>`;
}

function Shares() {
  const counted = ["weights", "states", "all"].map((count) => useAnswer("costs", "memory", { ...memoryParams(), count }));
  return html`<${Fetched} state=${together(...counted)} height="6rem">${([weights, states, all]) => html`<p>The share saved without a critic depends on what is counted: weights only, <b class="num">${percent(weights.saved)}</b>; with gradients and moments, <b class="num">${percent(states.saved)}</b>; the peak of everything on the GPU, <b class="num" data-number="saved-all">${percent(all.saved)}</b>, because activations need the same memory in both cases.</p>`}<//>`;
}

function Stacks({ data }) {
  const parts = data.rows.flatMap((row) => Object.entries(row.components).filter(([, size]) => size).map(([name, size]) => ({ algorithm: row.algorithm.toUpperCase(), name, size: size / GIB })));
  const names = [...new Set(parts.map((part) => part.name))];
  return html`<${Figure} label="Memory by component, GRPO and PPO" height=${150} deps=${[JSON.stringify(parts)]} legend=${names.map((name) => [NAMES[name] ?? name, COLOURS[name], "square"])}
    build=${(Plot) => ({ marginLeft: 52, x: { label: "GiB", grid: true, ticks: 6 }, y: { label: null }, marks: [Plot.barX(parts, { x: "size", y: "algorithm", fill: (d) => COLOURS[d.name], insetRight: 1, order: names, z: "name" })] })}
    table=${{ columns: ["algorithm", "component", "GiB"], rows: parts.map((part) => [part.algorithm, NAMES[part.name] ?? part.name, part.size]) }} />`;
}

// The models in memory, for PPO and for GRPO.
export function Models() {
  const state = useAnswer("costs", "memory", memoryParams());
  const words = { policy: ["samples the answers", "trainable"], reference: ["the starting model", "frozen"], critic: ["predicts the reward", "trainable"], "reward model": ["scores the answers", "frozen"] };
  const absent = { critic: "none: the group’s mean", "reward model": "none: a checker", reference: param("lora", "0") === "0" ? "none: β is 0" : "none: the policy without its adapter" };
  return html`<${Section} title="Models in memory" id="models" depth="intuition code" lead="PPO trains two models and keeps a frozen reference, often a reward model too. GRPO trains one.">
    <${Fetched} state=${state} height="14rem">${(data) => html`<div class="models">${data.rows.map((row) => html`<div class="model-column"><h3>${row.algorithm.toUpperCase()} <span class="soft small" data-models=${row.algorithm}>${plural(row.models.filter((model) => model.there).length, "model")}</span></h3><ul>${row.models.map((model) => html`<li class="model ${model.there ? "" : "absent"} ${model.trainable ? "learns" : ""}"><b>${model.name}</b><span class="small">${model.there ? words[model.name][0] : absent[model.name]}</span><span class="tiny soft">${model.there ? words[model.name][1] : ""}</span></li>`)}</ul></div>`)}</div>`}<//>
  <//>`;
}

export function Accounting() {
  const state = useAnswer("costs", "accounting", {});
  return html`<${Section} title="2 or 16 bytes per parameter?" id="accounting" depth="math code" lead="Both numbers are quoted. 2 bytes hold a frozen model; 16 bytes train one.">
    <${Fetched} state=${state} height="14rem">${(data) => html`<${Table} label="Bytes per parameter" head=${["precision", "weights", "gradients", "Adam's two moments", "total, frozen", "total, trainable"]} rows=${data.rows.map((row) => [row.dtype, row.weights, row.gradients, row.optimizer, html`<b class="num" data-number=${`frozen-${row.dtype}`}>${row.frozen}</b>`, html`<b class="num" data-number=${`trained-${row.dtype}`}>${row.trainable}</b>`])} foot="Bytes per parameter are gigabytes per billion parameters. 2: a frozen model in bfloat16, such as a reference. 16: a trainable model with float32 weights, such as a critic. A model trained entirely in bfloat16 needs 8." />`}<//>
    <${Equation} tex="M_{\\text{critic}}\\approx(w+g+m)\\cdot N,\\qquad M_{\\text{reference}}=w\\cdot N" spoken="the critic takes weights plus gradients plus moments times N parameters; the reference takes weights times N" />
  <//>`;
}

export function Measured() {
  const state = useAnswer("costs", "measured", {});
  return html`<${Section} title="Predicted and measured memory" id="measured" depth="math" lead="The planner's prediction next to the peak memory of real training steps on a GPU.">
    <${Fetched} state=${state} height="22rem">${(data) => html`<${Table} label="Predicted and measured peaks" head=${["model, precision", "algorithm", "predicted", "measured", "ratio"]} rows=${data.rows.map((row) => [`${row.shape}, ${row.dtype}`, row.algorithm, gib(row.predicted), html`<span class="num" data-number=${`measured-${row.shape}-${row.dtype}-${row.algorithm}`.replaceAll(".", "_")}>${gib(row.measured)}</span>`, exact(row.ratio, 3)])} foot=${`${data.machine.replace(/^one/, "One")}; random weights, ${data.work.prompts} prompts × ${data.work.group_size} completions of ${data.work.prompt_tokens} + ${data.work.new_tokens} tokens. ${data.command}`} />
      <p>PPO took ${exact(ratio(data, "qwen2.5-1.5b", "mixed"), 3)} times GRPO's memory for the largest model in mixed precision, and ${exact(ratio(data, "smollm2-135m", "bfloat16"), 3)} times for the smallest in bfloat16. “Twice”, often quoted, holds only for the trainable weights.</p>`}<//>
  <//>`;
}

const ratio = (data, shape, dtype) => {
  const [grpo, ppo] = ["grpo", "ppo"].map((algorithm) => data.rows.find((row) => row.shape === shape && row.dtype === dtype && row.algorithm === algorithm).measured);
  return ppo / grpo;
};

export function Critic() {
  const small = useAnswer("costs", "small-critics", {});
  return html`<${Section} title="The size of a critic" id="critic" depth="math" lead="In robotics a critic is a small network over a few sensor values. A critic for text must understand it as well as the policy does, so it usually has the policy's size.">
    <${Fetched} state=${small} height="10rem">${(rows) => html`<${Table} label="Sizes of critics" head=${["critic", "parameters", "to train it in float32"]} rows=${rows.map((row) => [row.critic, row.parameters >= 1e9 ? `${exact(row.parameters / 1e9, 2)} billion` : row.parameters, row.bytes < GIB / 10 ? `${exact(row.bytes / 2 ** 20, 3)} MiB` : gib(row.bytes)])} foot=${`With a critic of its size, a 70-billion-parameter policy means training ${exact((2 * rows[2].parameters) / 1e9, 3)} billion parameters.`} />`}<//>
    <${Only} depth="math code"><${Equation} tex="A^{\\pi}(s,a)=Q^{\\pi}(s,a)-V^{\\pi}(s)\\qquad V^{\\pi}(q)\\approx\\frac1G\\sum_{i=1}^{G}r_i" spoken="the advantage is Q minus V; the value of a prompt is about the mean reward of its group" /><p>The group's mean is a Monte Carlo estimate of V at the prompt, always for the current policy. It does not estimate V after each token: <${Link} to="/learn/credit">chapter 5<//>.</p><//>
  <//>`;
}

export function Compute() {
  const state = useAnswer("costs", "compute", { size: param("size", 7), g: param("g", 8), new_tokens: param("new", 1024) });
  const groups = useAnswer("costs", "groups", { size: param("size", 7), new_tokens: param("new", 1024) });
  const phases = ["rollout", "old policy", "reference", "critic", "reward model", "update"];
  return html`<${Section} title="Less memory, more sampling" id="compute" lead="GRPO spends what it saves on sampling: a group of answers per prompt instead of one.">
    <${Play} label="FLOPs of a step"><div class="knobs"><${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} /><${Slider} name="size" label="parameters, billions" min=${0.5} max=${70} step=${0.5} value=${7} show=${(v) => `${exact(v, 3)} B`} /></div>
      <${Fetched} state=${state} height="16rem">${(data) => html`<${Numbers} items=${[["GRPO’s computation per prompt", `${exact(data.per_prompt, 3)} ×`, "PPO’s", "per-prompt"], ["per answer", `${exact(data.alike, 3)} ×`, "PPO’s", "per-answer"]]} /><${Only} depth="math code"><${Table} label="FLOPs by phase" head=${["10¹² FLOPs", "GRPO", "PPO, one answer per prompt", "PPO, G answers per prompt"]} rows=${[...phases.filter((phase) => data.rows.some((row) => row.phases[phase])).map((phase) => [phase, ...data.rows.map((row) => html`<span class="num">${row.phases[phase] ? tera(row.phases[phase]) : "–"}</span>`)]), [html`<b>total</b>`, ...data.rows.map((row, place) => html`<b class="num" data-number=${`flops-${place}`}>${tera(row.all)}</b>`)]]} /><//>`}<//>
      <${Only} depth="math code"><${Fetched} state=${groups} height="10rem">${(rows) => html`<${Table} label="Group sizes" head=${["group size", "sampling, 10¹² FLOPs", "whole step", "peak memory"]} rows=${rows.map((row) => [html`<span class="nowrap">G = ${row.g}</span>`, tera(row.rollout), tera(row.all), gib(row.peak)])} foot="Groups of 64, as in DeepSeekMath, sample eight times as much as groups of 8. Memory depends on the tokens of a micro-batch, at most 16,384, and on the KV cache of all answers." />`}<//><//>
    <//>
    <${Only} depth="math"><p>Decoding reads all weights for every token. With a small batch the GPU mostly waits for memory, so more answers at once cost less than their FLOPs suggest.</p><//>
    <${Only} depth="code"><${Code} slug="costs" source="flops" title="The planner's FLOPs" /><//>
  <//>`;
}

export function Cards() {
  const memory = useAnswer("costs", "memory", { size: 7 });
  const states = useAnswer("costs", "memory", { size: 7, count: "states" });
  const defaults = useAnswer("costs", "defaults", {});
  return html`<${Section} title="Four common numbers, checked" id="cards" depth="math">
    <${Fetched} state=${together(memory, states, defaults)} height="10rem">${([peak, trained, settings]) => html`<div class="cards">
      <div class="mini"><p class="mini-big num">51.7%</p><p class="small">on MATH, up from 46.8%, for DeepSeekMath 7B. <${Reported} source="arXiv 2402.03300">Not measured here.<//></p></div>
      <div class="mini"><p class="mini-big num">${percent(peak.saved)}, not 50%</p><p class="small">of peak memory saved without a critic in a 7B step; ${percent(trained.saved)} if only weights, gradients and moments count. Computed above.</p></div>
      <div class="mini"><p class="mini-big num">G = ${settings[0].g}</p><p class="small">is the default here and a common choice. The paper used ${settings[1].g} <span class="soft">(reported)</span>.</p></div>
      <div class="mini"><p class="mini-big num">β = ${settings[0].beta}</p><p class="small">is the value of the paper and of the preset. Many later recipes use 0 and load no reference.</p></div></div>`}<//>
  <//>`;
}
