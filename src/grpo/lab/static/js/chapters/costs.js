// Chapter 6: costs, relatives and limits.
import { html } from "htm/preact";
import { useStyle } from "../lesson.js";
import { Cards, Compute } from "./costs-compute.js";
import { Accounting, Critic, Measured } from "./costs-critic.js";
import { Adopters, Claims, Defaults, Family, FamilyCode, Results } from "./costs-family.js";
import { ManyGpus } from "./costs-gpus.js";
import { Memory, Models } from "./costs-memory.js";
import { Misconceptions } from "./costs-misconceptions.js";
import { Questions } from "./costs-questions.js";
import { Checklist, Comparison, Limits, Methods, Steps, Verifiable, When } from "./costs-tables.js";

export function Chapter() {
  useStyle("css/chapter-costs.css");
  return html`<div class="chapter-costs"><${Memory} /><${Cards} /><${Models} /><${Accounting} /><${Measured} /><${Critic} /><${Compute} /><${ManyGpus} />
    <${Steps} /><${Comparison} /><${Methods} /><${Family} /><${FamilyCode} /><${Claims} /><${Defaults} /><${Results} /><${Adopters} /><${When} />
    <${Verifiable} /><${Limits} /><${Misconceptions} /><${Questions} /><${Checklist} /></div>`;
}
