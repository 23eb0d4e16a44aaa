// Chapter 4: from an advantage to a push on every token.
import { html } from "htm/preact";
import { useStyle } from "../lesson.js";
import { Clip, Fraction, Histogram } from "./loss-clip.js";
import { Levels, Ratio } from "./loss-ratio.js";
import { Bars, Drift, Penalty } from "./loss-kl.js";
import { Tokens } from "./loss-tokens.js";
import { Averages, LossCode, Reference, Updates, Whole } from "./loss-whole.js";

export function Chapter() {
  useStyle("css/chapter-loss.css");
  return html`<div class="chapter-loss"><${Tokens} /><${Averages} /><${Whole} /><${Ratio} /><${Clip} /><${Histogram} /><${Fraction} /><${Penalty} /><${Bars} />
    <${Drift} /><${Updates} /><${Levels} /><${Reference} /><${LossCode} /></div>`;
}
