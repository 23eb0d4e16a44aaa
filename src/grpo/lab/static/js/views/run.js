// One run: its header, the list of views, and the view.
import { html } from "htm/preact";
import { useEffect } from "preact/hooks";
import { useApi, useLive } from "../api.js";
import { runName } from "../format.js";
import { useStyle } from "../load.js";
import { centreCurrent, Failed, Loading } from "../parts.js";
import { address, Link } from "../route.js";
import { Untrusted } from "../text.js";
import { Completions } from "./completions.js";
import { Difficulty } from "./difficulty.js";
import { Findings } from "./findings.js";
import { Groups } from "./groups.js";
import { Notes } from "./notes.js";
import { Overview } from "./overview.js";
import { Prompts } from "./prompts.js";
import { Replay } from "./replay.js";
import { Status } from "./runs.js";
import { Signal } from "./signal.js";
import { Time } from "./time.js";
import { Tokens } from "./tokens.js";
import { WhatIf } from "./whatif.js";

const VIEWS = {
  overview: ["Overview", Overview],
  groups: ["Groups", Groups],
  tokens: ["Tokens", Tokens],
  signal: ["Signal", Signal],
  difficulty: ["Difficulty", Difficulty],
  completions: ["Completions", Completions],
  whatif: ["What if", WhatIf],
  replay: ["Replay", Replay],
  prompts: ["Prompts", Prompts],
  time: ["Time", Time],
  findings: ["Findings", Findings],
};
// Fine-tuning has no groups.
const WITHOUT_GROUPS = ["overview", "time", "findings"];
const SHARED = ["step", "group", "sample"];

export function RunPage({ id, view, query }) {
  useStyle("css/runs.css");
  const url = `/api/runs/${encodeURIComponent(id)}`;
  const first = useApi(url);
  const head = useLive(id, first.data?.status === "running");
  const version = head ? `${head.last_step} ${head.status} ${head.evals} ${head.findings}` : 0;
  const state = useApi(url, version);
  const about = state.data ?? first.data;
  useEffect(() => {
    centreCurrent(document.querySelector(".views"));
  }, [view, !about]);
  if (!about) {
    return html`<main class="page" id="main"><h1>${runName(id)}</h1>
      ${first.error ? html`<${Failed} error=${first.error} /><p><${Link} to="/runs">All runs<//></p>` : html`<${Loading} height="70vh" />`}</main>`;
  }
  const offered = Object.entries(VIEWS).filter(([key]) => about.kind !== "sft" || WITHOUT_GROUPS.includes(key));
  const [, [, View]] = offered.find(([key]) => key === view) ?? offered[0];
  const kept = Object.fromEntries(SHARED.map((name) => [name, query.get(name)]));
  const base = `/runs/${encodeURIComponent(id)}`;
  return html`<main class="run" id="main">
    <div class="run-head">
      <div class="run-title"><h1>${about.name}</h1><${Status} run=${about} /></div>
      <p class="soft small">${summary(about)}${about.ranks && ` · ${about.ranks.text}`}</p>
      ${about.failure && html`<p class="small">Reason: <${Untrusted} text=${about.failure} /></p>`}
      <${Notes} run=${about} id=${id} key=${id} />
    </div>
    <nav class="views" aria-label="Views of the run">${offered.map(
      ([key, [name]]) => html`<${Link} to=${address(`${base}/${key}`, kept)} aria-current=${key === view ? "page" : undefined}>
        ${name}${key === "findings" && about.findings > 0 && html`<span class="count">${about.findings}</span>`}<//>`,
    )}</nav>
    <div class="view" key=${view}>
      ${about.steps === 0 && view !== "overview"
        ? html`<${Waiting} about=${about} />`
        : html`<${View} id=${id} url=${url} about=${about} version=${version} query=${query} base=${base} />`}
    </div>
  </main>`;
}

function summary({ kind, model, task, algorithm, prompts_per_step: prompts, group_size: size, seed }) {
  if (kind === "sft") return `${model}, supervised fine-tuning`;
  return `${model} on ${task} · ${algorithm} · ${prompts} prompts × ${size} completions a step · seed ${seed}`;
}

function Waiting({ about }) {
  return html`<div class="empty"><h2>Waiting for the first step</h2>
    <p class="soft">${about.status === "running" ? "The run has started; this page updates when its first step is recorded." : "This run recorded no step."}</p>
    </div>`;
}
