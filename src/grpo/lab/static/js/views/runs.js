// All runs, newest first; the recorded example last.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { useApi } from "../api.js";
import { ago, date, number, percent } from "../format.js";
import { Empty, Fetched } from "../parts.js";
import { address, go, Link } from "../route.js";

export function Status({ run }) {
  const silent = run.status === "running" && run.quiet_seconds > 120;
  const text = silent ? `running, last step ${ago(run.quiet_seconds)}` : run.status;
  return html`<span class="status status-${silent ? "silent" : run.status}">${text}</span>`;
}

// First and last held-out accuracy, on a line from 0 to 1.
function Progress({ accuracy }) {
  if (!accuracy?.length) return html`<span class="faint">–</span>`;
  const [before, after] = accuracy;
  const [low, high] = [Math.min(before, after), Math.max(before, after)];
  return html`<span class="progress">
    <span class="progress-track" aria-hidden="true"><i style=${{ left: percent(low), width: percent(high - low) }}></i><b style=${{ left: percent(after) }}></b></span>
    <span class="num">${percent(before)} → <b>${percent(after)}</b></span>
  </span>`;
}

export function Runs() {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setVersion((now) => now + 1), 3000);
    return () => clearInterval(timer);
  }, []);
  const [chosen, setChosen] = useState([]);
  const state = useApi("/api/runs", version);
  const turn = (id) => setChosen(chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id]);
  return html`<main class="page" id="main">
    <div class="page-head">
      <div><h1>Runs</h1><p class="soft">Every update of every run. New here? <${Link} to="/learn">From a first run to why it worked<//>, in seven steps.</p></div>
      <button type="button" disabled=${chosen.length < 2} onClick=${() => go(address("/compare", { runs: chosen.join(",") }))}>
        Compare${chosen.length > 1 ? ` ${chosen.length} runs` : " selected runs"}
      </button>
    </div>
    <${Fetched} state=${state} height="20rem">${({ runs, folder }) => {
      const own = runs.filter((run) => !run.example);
      const examples = runs.filter((run) => run.example);
      return html`
        ${own.length
          ? html`<${Table} runs=${own} chosen=${chosen} turn=${turn} label="Your runs" />`
          : html`<${Empty} title="No run here yet"><p>Runs in <code>${folder}</code> appear here while they train. Start one in another terminal:</p><pre class="command">grpo train</pre></${Empty}>`}
        ${examples.length > 0 && html`<h2 class="section-title">Example</h2>
          <p class="soft small">A recorded run that ships with the lab.</p>
          <${Table} runs=${examples} chosen=${chosen} turn=${turn} label="Example runs" />`}`;
    }}<//>
  </main>`;
}

function Table({ runs, chosen, turn, label }) {
  return html`<div class="scroll" tabIndex="0" role="group" aria-label=${label}><table class="runs-table">
    <thead><tr><th scope="col"><span class="visually-hidden">Compare</span></th><th scope="col">Run</th><th scope="col">Status</th><th scope="col">Model and task</th><th scope="col">Algorithm</th><th scope="col" class="right">Steps</th><th scope="col" class="right">Reward</th><th scope="col">Held-out accuracy</th><th scope="col">Started</th></tr></thead>
    <tbody>${runs.map((run) =>
      run.problem
        ? html`<tr class="unreadable"><td></td><td><b>${run.name}</b></td><td>${html`<${Status} run=${run} />`}</td><td colspan="6" class="small soft">${run.problem}</td></tr>`
        : html`<tr>
            <td><input type="checkbox" checked=${chosen.includes(run.id)} onChange=${() => turn(run.id)} aria-label=${`Compare ${run.name}`} /></td>
            <td><${Link} to=${`/runs/${encodeURIComponent(run.id)}`} class="run-name">${run.name}<//></td>
            <td><${Status} run=${run} /></td>
            <td>${run.model}${run.task && html` <span class="soft">on ${run.task}</span>`}</td>
            <td>${run.kind === "sft" ? "sft" : run.algorithm}</td>
            <td class="right num">${number(run.steps)}${run.steps_total > run.steps && html`<span class="faint"> / ${number(run.steps_total)}</span>`}</td>
            <td class="right num">${number(run.reward_mean, 2)}</td>
            <td><${Progress} accuracy=${run.accuracy} /></td>
            <td class="soft nowrap">${date(run.created)}</td>
          </tr>`,
    )}</tbody></table></div>`;
}
