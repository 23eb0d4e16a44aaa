// What somebody should look at, with the place to look.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Card, Empty, Fetched } from "../parts.js";
import { address, Link } from "../route.js";

export function Findings({ url, version, base }) {
  const state = useApi(`${url}/findings`, version);
  return html`<p class="view-lead">What the run noted of itself, and what its record gives reason to look at. Each leads to its evidence.</p>
    <${Fetched} state=${state} height="20rem">${({ findings, alarms }) => html`
      ${alarms.length > 0 && html`<${Card} title="Worth a look"><ul class="findings">${alarms.map((alarm) => html`<li><h3>${alarm.title}</h3><p>${alarm.text}</p><p class="small soft">${alarm.why}</p><p class="small"><${Link} to=${address(`${base}/${alarm.view}`, alarm.query)}>Evidence: ${alarm.evidence}<//></p></li>`)}</ul><//>`}
      ${findings.length > 0 && html`<${Card} title="Noted by the run"><ul class="findings">${findings.map((finding) => html`<li><h3>${finding.kind}${finding.step !== null && html` <span class="soft small">step ${finding.step}</span>`}</h3><p>${finding.text}</p>${finding.step !== null && html`<p class="small"><${Link} to=${address(`${base}/groups`, { step: finding.step })}>Groups of step ${finding.step}<//></p>`}</li>`)}</ul><//>`}
      ${!alarms.length && !findings.length && html`<${Empty} title="Nothing to report">No number that was not finite, no difference on resume, no sign of trouble in rewards, lengths, entropy or KL.<//>`}`}<//>`;
}
