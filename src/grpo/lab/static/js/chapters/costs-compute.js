// FLOPs of a step, and the costs in a few figures.
import { html } from "htm/preact";
import { exact, percent } from "../format.js";
import { Code, Fetched, Numbers, Only, param, Play, Reported, Section, Slider, Table, useAnswer } from "../lesson.js";
import { gib, tera, together } from "./costs-memory.js";

export function Compute() {
  const state = useAnswer("costs", "compute", { size: param("size", 7), g: param("g", 8), new_tokens: param("new", 1024) });
  const groups = useAnswer("costs", "groups", { size: param("size", 7), new_tokens: param("new", 1024) });
  const phases = ["rollout", "old policy", "reference", "critic", "reward model", "update"];
  return html`<${Section} title="Less memory, more sampling" id="compute"
    lead="GRPO spends what it saves on sampling: a group of answers per prompt instead of one.">
    <${Play} label="FLOPs of a step">
      <div class="knobs"><${Slider} name="g" label="group size" min=${2} max=${64} step=${1} value=${8} />
        <${Slider} name="size" label="parameters, billions" min=${0.5} max=${70} step=${0.5} value=${7} show=${(v) => `${exact(v, 3)} B`} /></div>
      <${Fetched} state=${state} height="16rem">
        ${(data) => html`<${Numbers}
          items=${[
            ["GRPO’s computation per prompt", `${exact(data.per_prompt, 3)} ×`, "PPO’s with one answer", "per-prompt"],
            ["with as many answers", `${exact(data.alike, 3)} ×`, "PPO’s", "per-answer"],
          ]} />
          <${Only} depth="math code">
            <${Table} label="FLOPs by phase" head=${["10¹² FLOPs", "GRPO", "PPO, one answer per prompt", "PPO, G answers per prompt"]}
              rows=${[
                ...phases.filter((phase) => data.rows.some((row) => row.phases[phase])).map((phase) => [
                  phase,
                  ...data.rows.map((row) => html`<span class="num">${row.phases[phase] ? tera(row.phases[phase]) : "–"}</span>`),
                ]),
                [html`<b>total</b>`, ...data.rows.map((row, place) => html`<b class="num" data-number=${`flops-${place}`}>${tera(row.all)}</b>`)],
              ]} />
          <//>`}
      <//>
      <${Only} depth="math code">
        <${Fetched} state=${groups} height="10rem">
          ${(rows) => html`<${Table} label="Group sizes" head=${["group size", "sampling, 10¹² FLOPs", "whole step", "peak memory"]}
            rows=${rows.map((row) => [html`<span class="nowrap">G = ${row.g}</span>`, tera(row.rollout), tera(row.all), gib(row.peak)])}
            foot=${"Groups of 64, as in DeepSeekMath, sample eight times as much as groups of 8. Memory depends on the tokens of a micro-batch, at most " +
              "16,384, and on the KV cache of all answers."} />`}
        <//>
      <//>
    <//>
    <${Only} depth="math">
      <p>Decoding reads all weights for every token. With a small batch the GPU mostly waits for memory, so more answers at once cost less than their FLOPs
        suggest.</p>
    <//>
    <${Only} depth="code"><${Code} slug="costs" source="flops" title="The planner's FLOPs" /><//>
  <//>`;
}

export function Cards() {
  const memory = useAnswer("costs", "memory", { size: 7 });
  const states = useAnswer("costs", "memory", { size: 7, count: "states" });
  const defaults = useAnswer("costs", "defaults", {});
  return html`<${Section} title="Four common numbers, checked" id="cards" depth="math">
    <${Fetched} state=${together(memory, states, defaults)} height="10rem">${([peak, trained, settings]) => html`<div class="cards">
      <div class="mini"><p class="mini-big num">51.7%</p>
        <p class="small">on MATH, up from 46.8%, for DeepSeekMath 7B. <${Reported} source="arXiv 2402.03300">Not measured here.<//></p></div>
      <div class="mini"><p class="mini-big num">${percent(peak.saved)}, not 50%</p>
        <p class="small">of peak memory saved without a critic in a 7B step; ${percent(trained.saved)} if only weights, gradients and moments count. Computed
          above.</p>
      </div>
      <div class="mini"><p class="mini-big num">G = ${settings[0].g}</p>
        <p class="small">is the default here and a common choice. The paper used ${settings[1].g} <span class="soft">(reported)</span>.</p></div>
      <div class="mini"><p class="mini-big num">β = ${settings[0].beta}</p>
        <p class="small">is the value of the paper and of the preset. Many later recipes use 0 and load no reference.</p></div>
    </div>`}
    <//>
  <//>`;
}
