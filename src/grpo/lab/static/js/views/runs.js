// All runs, newest first; the recorded example last. Filter, tag and order are in the address.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { ago, date, number, percent } from "../format.js";
import { useStyle } from "../load.js";
import { Empty, Fetched } from "../parts.js";
import { address, go, isStatic, Link, route, setQuery } from "../route.js";
import { COLUMNS, filtered, sorted, useListing } from "./listing.js";
import { Notes, Tags } from "./notes.js";

export function Status({ run }) {
  const silent = run.status === "running" && run.quiet_seconds > 120;
  const text = silent ? `running, last step ${ago(run.quiet_seconds)}` : run.status;
  return html`<span class="status status-${silent ? "silent" : run.status}">${text}</span>`;
}

// First and last held-out accuracy, on a line from 0 to 1; a run may have only one.
function Progress({ accuracy }) {
  if (!accuracy?.length) return html`<span class="faint">–</span>`;
  const [before, after = before] = accuracy;
  const [low, high] = [Math.min(before, after), Math.max(before, after)];
  return html`<span class="progress">
    <span class="progress-track" aria-hidden="true"><i style=${{ left: percent(low), width: percent(high - low) }}></i><b style=${{ left: percent(after) }}></b>
    </span>
    <span class="num">${accuracy.length > 1 && `${percent(before)} → `}<b>${percent(after)}</b></span>
  </span>`;
}

export function Runs() {
  useStyle("css/runs.css");
  const [chosen, setChosen] = useState([]);
  const state = useListing();
  const [text, tag, order] = ["q", "tag", "sort"].map((name) => route.value.query.get(name) ?? "");
  const turn = (id) => setChosen(chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id]);
  return html`<main class="page" id="main">
    <div class="page-head">
      <div><h1>Runs</h1>
        <p class="soft">Every update of every run. New here? <${Link} to="/learn#path">From a first run to why it worked<//>, in seven steps.</p></div>
      ${!isStatic() && html`<button type="button" disabled=${chosen.length < 2} onClick=${() => go(address("/compare", { runs: chosen.join(",") }))}>
        Compare${chosen.length > 1 ? ` ${chosen.length} runs` : " selected runs"}
      </button>`}
    </div>
    <${Fetched} state=${state} height="20rem">${({ runs, folder }) => {
      const own = runs.filter((run) => !run.example);
      const examples = runs.filter((run) => run.example);
      const shown = sorted(filtered(own, text, tag), order);
      const table = { chosen, turn, order, refresh: state.refresh, tag };
      return html`
        ${own.length > 1 && html`<${Filter} runs=${own} text=${text} tag=${tag} order=${order} count=${shown.length} />`}
        ${own.length
          ? shown.length
            ? html`<${Table} ...${table} runs=${shown} label="Your runs" />`
            : html`<${Empty} title="No run matches">${own.length} runs are hidden by the
              filter. <button type="button" onClick=${() => setQuery({ q: undefined, tag: undefined })}>Show all</button><//>`
          : isStatic()
            ? html`<p class="soft">This site has one recorded run. <code>grpo lab</code> on your machine shows your own, while they train.</p>`
            : html`<${Empty} title="No run here yet"><p>Runs in <code>${folder}</code> appear here while they train. Start one in another terminal:</p>
            <pre class="command">grpo train</pre></${Empty}>`}
        ${examples.length > 0 && html`<h2 class="section-title">Example</h2>
          <p class="soft small">A recorded run that ships with the lab.</p>
          <${Table} ...${table} runs=${examples} label="Example runs" />`}`;
    }}<//>
  </main>`;
}

function Filter({ runs, text, tag, order, count }) {
  const tags = [...new Set(runs.flatMap((run) => run.tags))].sort();
  return html`<div class="row run-filter" role="search" aria-label="Runs">
    <label class="small soft">Filter <input type="search" value=${text} placeholder="name, model, task, tag, note"
      onInput=${(event) => setQuery({ q: event.target.value || undefined })} />
    </label>
    <label class="small soft sort">Sort
      by <select value=${order} onChange=${(event) => setQuery({ sort: event.target.value || undefined })}><option value="">newest first</option>
        ${COLUMNS.flatMap(([key, title]) => [key, `-${key}`].map((value) => html`<option value=${value} selected=${value === order}>${title}
          ${value === key ? " ↑" : " ↓"}</option>`))}
      </select>
    </label>
    ${tags.length > 0 && html`<div class="row chips" role="group" aria-label="Tags">
      <${Tags} tags=${tags} chosen=${tag} onPick=${(next) => setQuery({ tag: next })} /></div>`}
    ${(text || tag) && html`<span class="small soft" aria-live="polite">${count} of ${runs.length}</span>`}
  </div>`;
}

const NUMBERS = ["steps", "reward"];

// One click sorts upwards, the next downwards, the third as before. Without an order there is nothing to sort.
function Heading({ column: [key, title], order }) {
  const side = NUMBERS.includes(key) ? "right" : "";
  if (order === null) return html`<th scope="col" class=${side}>${title}</th>`;
  const next = order === key ? `-${key}` : order === `-${key}` ? undefined : key;
  const sort = order === key ? "ascending" : order === `-${key}` ? "descending" : undefined;
  return html`<th scope="col" aria-sort=${sort} class=${side}>
    <button type="button" class="sorter" onClick=${() => setQuery({ sort: next })}>${title}
      <span aria-hidden="true">${sort === "ascending" ? " ↑" : sort === "descending" ? " ↓" : ""}</span></button>
    </th>`;
}

function Table({ runs, chosen, turn, order, refresh, tag, label }) {
  return html`<div class="scroll" tabIndex="0" role="group" aria-label=${label}><table class="runs-table">
    <thead>
      <tr><th scope="col"><span class="visually-hidden">Compare</span></th>
        ${COLUMNS.map((column) => html`<${Heading} column=${column} order=${runs.length > 1 ? order : null} />`)}</tr>
    </thead>
    <tbody>${runs.map((run) =>
      run.problem
        ? html`<tr class="unreadable" key=${run.id}><td></td><td><b>${run.name}</b></td><td>${html`<${Status} run=${run} />`}</td>
          <td colspan="6" class="small soft">${run.problem}</td></tr>`
        : html`<tr key=${run.id}>
            <td><input type="checkbox" checked=${chosen.includes(run.id)} onChange=${() => turn(run.id)} aria-label=${`Compare ${run.name}`} /></td>
            <td><${Link} to=${`/runs/${encodeURIComponent(run.id)}`} class="run-name">${run.name}<//>
              <${Notes} run=${run} id=${run.id} onSaved=${refresh} onPick=${(next) => setQuery({ tag: next === tag ? undefined : next })} /></td>
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
