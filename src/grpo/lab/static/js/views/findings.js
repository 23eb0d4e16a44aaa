// Possible problems of a run, with links to the evidence. A probable cause comes first, its consequences below it.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { percent, plural } from "../format.js";
import { useStyle } from "../load.js";
import { Card, Fetched } from "../parts.js";
import { address, Link } from "../route.js";

const RECENT = 10; // steps whose groups tell what is left to learn

export function Findings({ url, about, version, base }) {
  useStyle("css/findings.css");
  const state = useApi(`${url}/findings`, version);
  return html`<p class="view-lead">Possible problems, from the record and from the run itself. A probable cause comes first, its consequences below it. Each
    links to its evidence.</p>
    <${Fetched} state=${state} height="20rem">${({ now, noted }) => html`
      ${now.length > 0 && html`<${Card} title="Found in the record"><${Causes} findings=${now} base=${base} /><//>`}
      ${noted.length > 0 && html`<${Card} title="Reported by the run">
        <ul class="findings">${noted.map((finding) => html`<li><${Finding} finding=${finding} base=${base} /></li>`)}</ul><//>`}
      ${!now.length && !noted.length && html`<${Healthy} url=${url} about=${about} version=${version} />`}`}<//>`;
}

function Healthy({ url, about, version }) {
  const signal = useApi(about.kind !== "sft" && `${url}/signal?points=240`, version);
  const rows = signal.data?.rows.slice(-RECENT) ?? [];
  const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  const right = rows.length ? total("all_right") / total("groups") : 0;
  return html`<div class="healthy"><h2><span aria-hidden="true">✓</span> No problems found</h2>
    <p>All numbers are finite, resumes matched, and no rule on rewards, lengths, entropy or KL applies.</p>
    ${right > 0.5 && html`<p data-all-right>In the last ${plural(rows.length, "step")} shown, ${percent(right)} of the groups were all right: little is left to
      learn from these problems.</p>`}
    </div>`;
}

function Causes({ findings, base }) {
  return html`<ol class="findings">${findings.filter((finding) => !finding.cause).map((cause) => {
    const rest = findings.filter((finding) => finding.cause === cause.kind);
    return html`<li class="cause" key=${cause.kind}><${Finding} finding=${cause} base=${base} />
      ${rest.length > 0 && html`<p class="small soft consequences-title">${plural(rest.length, "probable consequence")}</p>
        <ul class="consequences">${rest.map((finding) => html`<li key=${finding.kind}><${Finding} finding=${finding} base=${base} /></li>`)}</ul>`}</li>`;
  })}</ol>`;
}

function Finding({ finding, base }) {
  return html`<h3>${finding.kind.replaceAll("_", " ")}${finding.step !== null && html` <span class="soft small">step ${finding.step}</span>`}</h3>
    <p>${finding.text}</p>
    ${finding.view && html`<p class="small"><${Link} to=${address(`${base}/${finding.view}`, finding.query)}>Evidence: ${finding.evidence}<//></p>`}`;
}
