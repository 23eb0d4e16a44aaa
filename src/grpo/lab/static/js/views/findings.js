// What somebody should look at, with the place to look.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Card, Empty, Fetched } from "../parts.js";
import { address, Link } from "../route.js";

export function Findings({ url, version, base }) {
  const state = useApi(`${url}/findings`, version);
  return html`<p class="view-lead">What the record gives reason to look at, and what the run noted on the way. Each leads to its evidence.</p>
    <${Fetched} state=${state} height="20rem">${({ now, noted }) => html`
      ${now.length > 0 && html`<${Card} title="As the record stands"><${List} findings=${now} base=${base} /><//>`}
      ${noted.length > 0 && html`<${Card} title="Noted by the run"><${List} findings=${noted} base=${base} /><//>`}
      ${!now.length && !noted.length && html`<${Empty} title="Nothing to report">No number that was not finite, no difference on resume, no sign of trouble in rewards, lengths, entropy or KL.<//>`}`}<//>`;
}

function List({ findings, base }) {
  return html`<ul class="findings">${findings.map((finding) => html`<li><h3>${finding.kind.replaceAll("_", " ")}${finding.step !== null && html` <span class="soft small">step ${finding.step}</span>`}</h3><p>${finding.text}</p>
    ${finding.view && html`<p class="small"><${Link} to=${address(`${base}/${finding.view}`, finding.query)}>Evidence: ${finding.evidence}<//></p>`}</li>`)}</ul>`;
}
