// Possible problems of a run, with links to the evidence.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Card, Empty, Fetched } from "../parts.js";
import { address, Link } from "../route.js";

export function Findings({ url, version, base }) {
  const state = useApi(`${url}/findings`, version);
  return html`<p class="view-lead">Possible problems, from the record and from the run itself. Each links to its evidence.</p>
    <${Fetched} state=${state} height="20rem">${({ now, noted }) => html`
      ${now.length > 0 && html`<${Card} title="Found in the record"><${List} findings=${now} base=${base} /><//>`}
      ${noted.length > 0 && html`<${Card} title="Reported by the run"><${List} findings=${noted} base=${base} /><//>`}
      ${!now.length && !noted.length && html`<${Empty} title="No findings">All numbers are finite, resumes matched, and rewards, lengths, entropy and KL look healthy.<//>`}`}<//>`;
}

function List({ findings, base }) {
  return html`<ul class="findings">${findings.map((finding) => html`<li><h3>${finding.kind.replaceAll("_", " ")}${finding.step !== null && html` <span class="soft small">step ${finding.step}</span>`}</h3><p>${finding.text}</p>
    ${finding.view && html`<p class="small"><${Link} to=${address(`${base}/${finding.view}`, finding.query)}>Evidence: ${finding.evidence}<//></p>`}</li>`)}</ul>`;
}
