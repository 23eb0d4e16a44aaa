import { html } from "htm/preact";
import { Section } from "../lesson.js";

export function Chapter() {
  return html`<${Section} title="Being written"><p>This chapter is being written.</p><//>`;
}
