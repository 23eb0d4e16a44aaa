// Training on several GPUs: memory by mode, collectives, and how a step scales. All numbers are the planner's predictions.
import { html } from "htm/preact";
import { exact, percent, plural, seconds, tick } from "../format.js";
import { Choice, Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Section, Slider, Table, useAnswer } from "../lesson.js";
import { COLOURS, GIB, gib } from "./costs-memory.js";

const PARTS = { ...COLOURS, "activations and buffers": "var(--level)" };
const CURVES = { strong: ["strong: the same prompts on all GPUs", "var(--c1)"], weak: ["weak: as many prompts for each GPU", "var(--c3)"] };
const NAMES = { optimizer: "Adam's moments; in B float32 weights too" };
const gb = (bytes) => (bytes >= 1e9 ? `${exact(bytes / 1e9, 3)} GB` : `${exact(bytes / 1e6, 3)} MB`);
// 1, 2, 5, 10, 20, … of a logarithmic axis, fewer where it is long.
const logTicks = (values) => {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const steps = most / least > 50 ? [1] : [1, 2, 5];
  return [-2, -1, 0, 1, 2, 3, 4, 5].flatMap((power) => steps.map((step) => Number(`${step}e${power}`))).filter((value) => least <= value && value <= most);
};
const settings = () => ({
  model: param("smodel", "qwen2.5-7b"),
  gpu: param("sgpu", "h200"),
  gpus: param("gpus", "8"),
  nodes: param("nodes", "1"),
  inside: param("inside", "nvlink"),
  between: param("between", "400gbit"),
  prompts: param("sprompts", 64),
  shard: param("shard", "auto"),
});

export function ManyGpus() {
  const asked = settings();
  const state = useAnswer("costs", "scale", asked);
  return html`<${Section} title="Many GPUs" id="gpus" depth="math code"
    lead=${"Every GPU samples and trains its share of the prompts. Then they exchange three things: the groups, the gradient and, if it is sharded, the " +
      "weights. All numbers here are predicted; no link between GPUs was measured."}>
    <${Play} label="Planner for several GPUs">
      <div class="knobs">
        <${Choice} name="smodel" label="model" value="qwen2.5-7b"
          options=${[["smollm2-135m", "SmolLM2 135M"], ["qwen2.5-1.5b", "Qwen2.5 1.5B"], ["qwen2.5-7b", "7B"], ["qwen2.5-14b", "14B"]]} />
        <${Choice} name="sgpu" label="GPU" value="h200"
          options=${[["4090", "4090, 24 GiB"], ["a100-80", "A100, 80 GiB"], ["h200", "H200, 141 GiB"], ["b200", "B200, 180 GiB"]]} />
        <${Choice} name="gpus" label="GPUs in a node" value="8" options=${["2", "4", "8"].map((n) => [n, n])} />
        <${Choice} name="nodes" label="nodes" value="1" options=${["1", "2", "4", "16", "128"].map((n) => [n, n])} />
        <${Choice} name="inside" label="link inside a node" value="nvlink" options=${[["nvlink", "NVLink"], ["pcie", "PCIe"]]} />
        ${asked.nodes !== "1" && html`<${Choice} name="between" label="link between nodes" value="400gbit"
          options=${[["400gbit", "400 Gbit/s"], ["1gbit", "1 Gbit/s"]]} />`}
        <${Choice} name="shard" label="mode" value="auto"
          options=${[["auto", "first that fits"], ["none", "replicated"], ["optimizer", "A"], ["weights", "B"]]} />
        <${Slider} name="sprompts" label="prompts a step" min=${8} max=${512} step=${8} value=${64} show=${String} /></div>
      <${Fetched} state=${state} height="60rem">${(data) => html`<${Modes} data=${data} />
        <${Numbers}
          items=${[
            ["mode", mode(data), data.step.fits ? "fits" : "does not fit", "mode"],
            ["peak on each GPU", gib(data.modes[data.shard].peak), `of ${gib(data.usable)} usable`, "scale-peak"],
            [`step on ${plural(data.cluster.ranks, "GPU")}`, seconds(data.step.seconds), "predicted", "scale-step"],
            ["on one GPU", seconds(data.strong[0].seconds), data.strong[0].fits ? "predicted" : "would not fit", "scale-alone"],
          ]} />
        <${Exchanged} data=${data} />
        <${Curves} data=${data} />
        <p>${words(data)}</p>`}<//>
    <//>
    <${Only} depth="math"><${Formulas} /><//>
    <${Only} depth="code"><${Code} slug="costs" source="pick_shard" title="The first mode that fits" />
      <${Code} slug="costs" source="collectives" title="Bytes and seconds of each collective" />
      <${Code} slug="costs" source="predicted_step" title="The predicted step" />
      <pre class="listing scroll" tabIndex="0" role="group" aria-label="Command">
        <code>${commandOf(asked)}</code>
      </pre>
    <//>
  <//>`;
}

const commandOf = ({ model, gpu, gpus, nodes, inside, between, shard, prompts }) =>
  `grpo plan ${model} --algorithm grpo --gpu ${gpu} --gpus ${gpus} --nodes ${nodes} --link ${inside},${between} ` +
  `--shard ${shard} --prompts-per-step ${prompts}`;
const mode = (data) => data.names[data.shard].split(":")[0];

// Memory of a GPU at the peak, by mode, and the memory there is.
function Modes({ data }) {
  const label = (shard) => data.names[shard].split(":")[0];
  const parts = Object.entries(data.modes).flatMap(([shard, found]) => Object.entries(found.parts).filter(([, size]) => size).map(
    ([name, size]) => ({ mode: label(shard), name, size: size / GIB }),
  ));
  const names = [...new Set(parts.map((part) => part.name))];
  return html`<${Figure} label="Memory of each GPU at the peak, by mode" height=${190} deps=${[JSON.stringify(parts), data.usable]}
    legend=${[...names.map((name) => [NAMES[name] ?? name, PARTS[name], "square"]), ["usable memory of the GPU", "var(--ink)"]]}
    build=${(Plot) => ({
      marginLeft: 72,
      x: { label: "GiB", grid: true, ticks: 6 },
      y: { label: null, domain: Object.keys(data.names).map(label) },
      marks: [
        Plot.barX(parts, { x: "size", y: "mode", fill: (d) => PARTS[d.name], insetRight: 1, order: names, z: "name" }),
        Plot.ruleX([data.usable / GIB], { stroke: "var(--ink)", strokeWidth: 2 }),
      ],
    })}
    table=${{ columns: ["mode", "component", "GiB"], rows: parts.map((part) => [part.mode, NAMES[part.name] ?? part.name, part.size]) }} />
    <p class="small soft">Replicated: every GPU holds everything. A: each GPU holds Adam's moments of its share of the weights. B: as A; linear layers are held
      in 16 bits, and each GPU has the float32 values of its share.</p>`;
}

function Exchanged({ data }) {
  const does = { all_gather: "all-gather", all_reduce: "all-reduce", reduce_scatter: "reduce-scatter" };
  return html`<${Table} label="Collectives of a step" head=${["exchanged in a step", "operation", "in all", "sent by each GPU", "seconds"]}
    rows=${data.step.collectives.filter((row) => row.size).map((row) => [
      row.name,
      does[row.operation],
      gb(row.size),
      gb(row.sent),
      html`<span class="num" data-collective=${row.name.split(" ")[0]}>${seconds(row.seconds)}</span>`,
    ])}
    foot=${`Around a ring of all GPUs, at the pace of its slowest link: ${Object.entries(data.cluster.links).map(
      ([name, link]) => `${name}, assumed ${exact(link.bandwidth / 1e9, 3)} GB/s`,
    ).join("; ")}. Groups travel between processes, and packing them takes the time.`} />`;
}

function Curves({ data }) {
  const rows = Object.keys(CURVES).flatMap((kind) => data[kind].map((row) => ({ ...row, kind })));
  const ticks = data.strong.map((row) => row.gpus).filter((_, place, all) => all.length < 7 || place % 2 === 0);
  const legend = Object.values(CURVES);
  const lines = (Plot, y) => [
    Plot.lineY(rows, { x: "gpus", y, z: "kind", stroke: (d) => CURVES[d.kind][1], strokeWidth: 2 }),
    Plot.dot(rows, { x: "gpus", y, fill: (d) => CURVES[d.kind][1], r: 3 }),
  ];
  const x = { type: "log", base: 2, label: "GPUs", ticks, tickFormat: String };
  const deps = [JSON.stringify(rows.map((row) => [row.gpus, row.seconds]))];
  return html`<div class="pair">
    <div><h3>Seconds of a step, log scale</h3><${Figure} label="Seconds of a step by number of GPUs" height=${200} deps=${deps} legend=${legend}
      build=${(Plot) => ({
        x,
        y: { label: "seconds", grid: true, type: "log", ticks: logTicks(rows.map((row) => row.seconds)), tickFormat: (value) => `${tick(value)} s` },
        marginLeft: 52,
        marks: lines(Plot, "seconds"),
      })}
      table=${{
        columns: ["GPUs", "scaling", "mode", "rollout", "score", "update", "exchange", "seconds"],
        rows: rows.map((row) => [row.gpus, row.kind, row.shard, ...["rollout", "score", "update", "exchange"].map((phase) => row.phases[phase]), row.seconds]),
      }} />
    </div>
    <div><h3>Efficiency</h3><${Figure} label="Efficiency by number of GPUs" height=${200} deps=${deps} legend=${legend}
      build=${(Plot) => ({
        x,
        y: { label: "efficiency", grid: true, domain: [0, 1], ticks: 5, tickFormat: (v) => percent(v) },
        marks: lines(Plot, "efficiency"),
      })}
      table=${{ columns: ["GPUs", "scaling", "efficiency"], rows: rows.map((row) => [row.gpus, row.kind, row.efficiency]) }} /></div></div>
    <${Numbers}
      items=${Object.keys(CURVES).map((kind) => [
        `${kind} scaling, ${plural(data.cluster.ranks, "GPU")}`,
        percent(data[kind].at(-1).efficiency),
        "efficiency",
        `${kind}-efficiency`,
      ])} />`;
}

// What limits the step, in words.
function words(data) {
  const [alone, all] = [data.strong[0], data.strong.at(-1)];
  const faster = (phase) => `${exact(alone.phases[phase] / all.phases[phase], 2)} times`;
  const idle = all.idle ? ` ${plural(all.idle, "GPU")} of ${data.cluster.ranks} have no prompt and wait.` : "";
  return `On the same prompts, ${data.cluster.ranks} GPUs update ${faster("update")} faster, but sample only ${faster(
    "rollout",
  )} faster: for every token each GPU launches all layers and reads all weights, with few answers as with many. The exchange takes ${percent(
    all.phases.exchange / all.seconds,
  )} of the step.${idle} More prompts a step use the GPUs better.`;
}

function Formulas() {
  return html`<${Table} label="Bytes per parameter by mode"
    head=${["mode, in mixed precision", "weights", "working copy", "gradient", "masters and moments", "total, N = 8"]}
    rows=${[["replicated", 4, 2, 4, 8, 18], ["A", 4, 2, 4, "8 / N", 11], ["B, linear layers", 2, "–", 4, "12 / N", 7.5]]}
    foot="N: number of GPUs. Embeddings, norms and biases stay in float32. In addition to one flat bucket of 256 MiB, through which gradients are added." />
    <${Equation}
      tex=${"t_{\\text{all-reduce}}=\\frac{2(N-1)}{N}\\cdot\\frac{\\text{bytes}}{\\text{bandwidth}},\\qquad " +
        "t_{\\text{reduce-scatter}}=t_{\\text{all-gather}}=\\frac{N-1}{N}\\cdot\\frac{\\text{bytes}}{\\text{bandwidth}}"}
      spoken="an all-reduce takes two times N minus one over N times bytes over bandwidth; a reduce-scatter and an all-gather half of it" />
    <${Equation}
      tex=${"t_{\\text{rollout}}=L\\,(a+b\\cdot\\text{rows})+t_{\\text{prefill}},\\qquad " +
        "\\text{efficiency}=\\frac{t_1}{N\\,t_N}\\;\\text{(strong)},\\quad\\frac{t_1}{t_N}\\;\\text{(weak)}"}
      spoken=${"a rollout takes L tokens times a plus b times the rows, plus the prefill; efficiency is the time on one GPU over N times the time on N for " +
        "strong scaling, and the time on one over the time on N for weak scaling"} />
    <p>a and b were fitted to rollouts measured on one H200, and the update's share of the peak to updates measured there. Other GPUs: the same constants with
      the peak and bandwidth that their makers state.</p>
    <${Code} slug="costs" source="rollout_seconds" title="The planner's rollout" />`;
}
