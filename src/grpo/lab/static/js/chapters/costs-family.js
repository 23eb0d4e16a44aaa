// Related algorithms: a family tree, presets at work, claims, defaults, results, and users.
import { html } from "htm/preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { exact, number, signed, tick } from "../format.js";
import { Choice, Code, Fetched, Figure, Only, param, Play, Reported, Section, Table, useAnswer } from "../lesson.js";
import { Term } from "../glossary.js";
import { setQuery } from "../route.js";

export function Family() {
  const state = useAnswer("costs", "tree", {});
  const chosen = param("node", "grpo");
  return html`<${Section} title="Family tree" id="family" lead="GRPO’s relatives and the models trained with them. Choose one to run it.">
    <${Play} label="Family tree">
      <${Fetched} state=${state} height="28rem">
        ${(nodes) => html`<${Tree} nodes=${nodes} chosen=${chosen} /><${Node} node=${nodes.find((node) => node.id === chosen) ?? nodes[0]} nodes=${nodes} />`}
      <//>
    <//>
  <//>`;
}

function Tree({ nodes, chosen }) {
  const years = [...new Set(nodes.map((node) => node.date.slice(0, 4)))];
  const related = nodes.find((node) => node.id === chosen)?.from ?? [];
  const box = useRef(null);
  const [lines, setLines] = useState([]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setLines(linesBetween(box.current, nodes, chosen)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [nodes, chosen]);
  return html`<div class="tree-box" ref=${box}>
    <svg class="tree-lines" aria-hidden="true">
      ${lines.map(({ from, to, path }) => html`<path key=${`${from} ${to}`} d=${path} />`)}</svg>
    <ol class="tree" aria-label="Timeline of the family">
      ${years.map((year) => html`<li><span class="tree-year num">${year}</span>
        <ul>
          ${nodes.filter((node) => node.date.startsWith(year)).map((node) => html`<li>
            <button type="button"
              class="node ${node.kind} ${node.id === chosen ? "chosen" : ""} ${related.includes(node.id) || node.from.includes(chosen) ? "related" : ""}"
              aria-pressed=${node.id === chosen} data-node=${node.id} onClick=${() => setQuery({ node: node.id })}>
              ${node.name}</button>
          </li>`)}
        </ul>
      </li>`)}
    </ol>
    </div>
    <p class="legend"><span><i class="key square" style=${{ "--key": "var(--c1)" }}></i>algorithm</span>
      <span><i class="key square" style=${{ "--key": "var(--c4)" }}></i>model</span><span>lines: parents and children of the chosen one</span></p>`;
}

const STEP = 9; // px below or above a box, where a line turns; rows are farther apart

// Lines from the bottom of each parent to the top of its child. They run between the boxes, never through one.
function linesBetween(box, nodes, chosen) {
  const frame = box.getBoundingClientRect();
  const boxes = new Map([...box.querySelectorAll("[data-node]")].map((one) => {
    const { left, right, top, bottom } = one.getBoundingClientRect();
    return [one.dataset.node, { left: left - frame.left, right: right - frame.left, top: top - frame.top, bottom: bottom - frame.top }];
  }));
  const pairs = nodes.flatMap((node) => node.from.map((from) => [from, node.id])).filter((pair) => pair.includes(chosen));
  return pairs.map(([from, to]) => ({ from, to, path: pathBetween(boxes.get(from), boxes.get(to), [...boxes.values()]) }));
}

function pathBetween(above, below, boxes) {
  const [x1, x2] = [above, below].map(({ left, right }) => (left + right) / 2);
  if (below.top <= above.bottom) return `M${x1},${above.bottom} v${STEP} H${x2} V${below.bottom}`; // both in one row
  const between = boxes.filter((one) => one.top > above.bottom && one.bottom < below.top);
  const free = (x) => between.every((one) => x < one.left - 2 || x > one.right + 2);
  const way = (x) => Math.abs(x - x1) + Math.abs(x - x2);
  const [x] = [x1, x2, ...between.flatMap((one) => [one.left - 6, one.right + 6])].filter(free).sort((one, other) => way(one) - way(other));
  return `M${x1},${above.bottom} v${STEP} H${x} V${below.top - STEP} H${x2} V${below.top}`;
}

function Node({ node, nodes }) {
  const named = (id) => nodes.find((one) => one.id === id).name;
  const children = nodes.filter((one) => one.from.includes(node.id));
  return html`<div class="node-about"><h3>${node.name} <span class="soft small">${node.date}, ${node.source}</span></h3><p>${node.what}</p>
    <p class="small soft">${node.from.length ? `From ${node.from.map(named).join(" and ")}. ` : ""}
      ${children.length ? `Led to ${children.map((one) => one.name).join(", ")}.` : ""}</p>
    ${node.preset
      ? html`<${Preset} name=${node.preset} key=${node.preset} />`
      : html`<p class="small soft">
        ${{
          trpo: "It runs on a policy over twelve answers under “One step of TRPO, gradient descent and DPO” below, at depth Math.",
          dpo: "It runs on a policy over twelve answers below, at depth Math.", gdpo: "Use --loss.parts normalise, with any preset.",
        }[node.id] ??
          "Not implemented here."}
      </p>`}
    </div>`;
}

function Preset({ name }) {
  const state = useAnswer("costs", "preset", { preset: name, moved: param("moved", "no") });
  return html`<${Choice} name="moved" label="probabilities since sampling" options=${[["no", "unchanged"], ["yes", "moved: × 1, 1.42, 0.70"]]} value="no" />
    <${Fetched} state=${state} height="20rem">${(data) => html`
      <${Pushes} data=${data} />
      <${Only} depth="math code">
        ${Object.keys(data.changed).length
          ? html`<${Table} label=${`Settings of ${data.preset} that differ from GRPO's`} head=${["setting", "grpo", data.preset]}
            rows=${Object.entries(data.changed).map(([key, pair]) => [
              html`<code>loss.${key}</code>`,
              String(pair.grpo),
              html`<b data-changed=${key}>${String(pair.here)}</b>`,
            ])} />`
          : html`<p class="small soft">The other presets are compared with this one.</p>`}
      <details class="code"><summary>Differences from the paper</summary><p class="small pad">${data.paper}. ${data.differences}</p></details>
      <pre class="listing scroll" tabIndex="0" role="group" aria-label="Command"><code>${data.command}</code></pre><//>`}<//>`;
}

function Pushes({ data }) {
  const points = [["grpo", data.grpo], [data.preset, data.completions]].flatMap(([who, rows], side) => rows.flatMap(
    (row, place) => row.pushes.map((push, t) => ({ who, side, place, t, push, name: `${row.reward ? "right" : "wrong"}, ${row.length} tokens` })),
  ));
  const shown = data.preset === "grpo" ? points.filter((point) => point.side === 1) : points;
  return html`<${Figure} label=${`Push on every token of four completions, ${data.preset} and grpo`} height=${210} deps=${[JSON.stringify(shown)]}
    legend=${data.preset === "grpo" ? [["grpo", "var(--c1)"]] : [[data.preset, "var(--c1)"], ["grpo", "var(--c6)"]]}
      build=${(Plot, width) => ({
        marginLeft: 50,
        marginTop: 30,
        insetTop: 10,
        fx: {
          label: null,
          domain: data.completions.map((_, i) => i),
          tickFormat: (i) => (width < 520
            ? `${data.completions[i].reward ? "right" : "wrong"} ${data.completions[i].length}`
            : `${data.completions[i].reward ? "right" : "wrong"}, ${data.completions[i].length} tokens`),
        },
        x: { label: "token", ticks: [], domain: [-0.5, 11.5] },
        y: { grid: true, label: "push", ticks: 5, tickFormat: tick },
        marks: [
          Plot.ruleY([0], { stroke: "var(--line-strong)" }),
          Plot.dot(shown, {
            fx: "place",
            x: "t",
            y: "push",
            r: (d) => (d.side ? 3 : 2.4),
            fill: (d) => (d.side ? "var(--c1)" : "none"),
            stroke: (d) => (d.side ? "none" : "var(--c6)"),
            strokeWidth: 1.4,
          }),
        ],
      })}
      table=${{ columns: ["preset", "completion", "token", "push"], rows: shown.map((point) => [point.who, point.name, point.t, point.push]) }} />
    <p class="small soft">Four answers to one prompt, of 3 to 12 <${Term} of="token">tokens<//>, in a batch with four to another. Each dot is
      the <${Term} of="push">push<//> on a token.
      <${Term} of="advantage">Advantages<//>: <span class="num">${data.completions.map((row) => signed(row.advantage, 2)).join("  ")}</span>.</p>`;
}

export function Claims() {
  const claims = useAnswer("costs", "claims", {});
  return html`<${Section} title="Three claims, checked" id="claims" depth="math code"
    lead="Claims about relatives of GRPO, compared with their papers' settings and with a computation.">
    <${Fetched} state=${claims} height="14rem">${(data) => html`<${Table} label="Claims about relatives" head=${["claim", "result", "source"]} rows=${[
      [
        "DAPO is by Alibaba and uses leave-one-out baselines",
        html`it is by ByteDance Seed and Tsinghua; its baseline is the <b data-claim="dapo">${data.dapo_baseline}</b> of the group`,
        "the preset's settings; arXiv 2503.14476",
      ],
      [
        "Dr. GRPO fixes credit assignment within an answer",
        html`largest difference of pushes within one answer: GRPO <b class="num">${exact(data.within_grpo, 3)}</b>, Dr.
          GRPO <b class="num" data-claim="within">${exact(data.within_dr_grpo, 3)}</b>. Both push all tokens of an answer equally`,
        "the pushes above",
      ],
      [
        "Dr. GRPO removes the weighting by length",
        html`push on a token of a 3-token right answer ÷ push on a token of a 6-token right answer: GRPO <b class="num">${exact(data.by_length_grpo, 3)}</b>,
          Dr. GRPO <b class="num" data-claim="length">${exact(data.by_length_dr_grpo, 3)}</b>`,
        "the pushes above",
      ],
    ]} />`}<//>
  <//>`;
}

export function Defaults() {
  const state = useAnswer("costs", "defaults", {});
  return html`<${Section} title="Defaults and their sources" id="defaults" depth="math code"
    lead="Guides disagree on “DeepSeek's settings”, and some of their numbers are not in the papers.">
    <${Fetched} state=${state} height="18rem">
      ${(rows) => html`<${Table} label="Defaults and where they come from"
        head=${["", "group size", "β", "clip ε", "updates per batch", "learning rate", "source"]}
        rows=${rows.map((row) => [
          row.who,
          html`<span class="num" data-default=${row.who}>${row.g}</span>`,
          row.beta,
          row.clip,
          row.updates,
          row.lr,
          html`<span class="small">${row.source}</span>`,
        ])}
        foot=${"The paper that introduced GRPO used groups of 64, one update per batch and β = 0.04. G = 8 with β = 0.1 and four epochs, often quoted as " +
          "DeepSeek's, is in neither paper. R1's ε of 10 almost never clips."} />`}
    <//>
  <//>`;
}

export function Results() {
  const state = useAnswer("costs", "results", {});
  return html`<${Section} title="Results" id="results" depth="math" lead="Numbers reported in papers, and one measured here.">
    <${Fetched} state=${state} height="16rem">${(data) => {
      const rows = [
        ...data.reported.map((row) => ({ ...row, label: `${row.model}, ${row.test}` })),
        { ...data.recorded, label: data.recorded.model, source: "recorded here" },
      ];
      const bars = rows.flatMap((row) => [{ label: row.label, when: "before", y: row.before }, { label: row.label, when: "after", y: row.after }]);
      return html`<${Figure} label="Accuracy before and after" height=${44 * rows.length + 40} deps=${[bars.length]}
        legend=${[["before", "var(--c6)"], ["after", "var(--c1)"]]}
          build=${(Plot, width) => ({
            marginLeft: width < 520 ? 142 : 230,
            x: { label: "% right", domain: [0, 100], grid: true, ticks: 5 },
            y: { label: null, domain: rows.map((row) => row.label), tickFormat: (label) => (width < 520 ? label.replace(", ", "\n") : label) },
            marks: [
              Plot.link(rows, { x1: "before", x2: "after", y1: "label", y2: "label", stroke: "var(--line-strong)", strokeWidth: 2 }),
              Plot.dot(bars, { x: "y", y: "label", r: 5, fill: (d) => (d.when === "after" ? "var(--c1)" : "var(--c6)") }),
            ],
          })}
          table=${{ columns: ["model and test", "before", "after"], rows: rows.map((row) => [row.label, row.before, row.after]) }} />
        <ul class="points small">
          ${data.reported.map((row) => html`<li>${row.model} on ${row.test}: ${row.before}% → ${row.after}%, ${row.what}. <${Reported} source=${row.source}><//>
          </li>`)}
          <li>${data.recorded.model}: ${number(data.recorded.before, 1)}% → ${number(data.recorded.after, 1)}% of ${data.recorded.problems} held-out problems
            after ${data.recorded.steps} steps. Measured: the recorded run that ships with the lab.</li>
        </ul>`;
    }}<//>
  <//>`;
}

export function Adopters() {
  return html`<${Section} title="History" id="adopters" depth="math">
    <ol class="points"><li><b>February 2024.</b> DeepSeekMath introduces GRPO for a 7B model of mathematics.</li>
      <li><b>January 2025.</b> DeepSeek-R1 and R1-Zero use the same algorithm on a very large model with rule-based
        rewards. <${Reported} source="arXiv 2501.12948">R1 scores 79.8% on AIME 2024, OpenAI o1 79.2%.<//></li>
      <li><b>2025.</b> Training libraries add it, TRL's <code>GRPOTrainer</code> among the first, and people fine-tune Qwen, Llama and Phi models with it on one
        GPU.</li>
      <li><b>2025 and after.</b> Variants that each change one term: see the tree above.</li></ol>
    <${Table} label="Users of GRPO" head=${["who", "use"]}
      rows=${[
        ["DeepSeek", "R1-Zero: GRPO with rule-based rewards and no supervised start; R1: with one"],
        ["Qwen", "Qwen3's report names GRPO; the team's GSPO followed"],
        ["MiniMax, ByteDance, others", "their own variants: CISPO, DAPO"],
        ["TRL, verl, Unsloth, this project", "open-source trainers"],
        ["Research", "REINFORCE++, Dr. GRPO, OPO, SAPO: changes of std, length normalisation and clip"],
      ]} />
  <//>`;
}

export function FamilyCode() {
  return html`<${Section} title="A variant is a set of settings" id="variants" depth="code"
    lead=${"No algorithm has its own code. A preset selects baseline, scale, ratio, surrogate and average; the tree above runs every preset through the same " +
      "functions."}>
    <${Code} slug="costs" source="effect" title="The function that the tree runs" />
    <${Code} slug="costs" source="group_advantages" title="Every baseline and scale" />
    <p>To add your own, write a function and an entry in <code>PRESETS</code>: <code>docs/add-an-algorithm.md</code> adds one in fifteen lines.</p>
  <//>`;
}
