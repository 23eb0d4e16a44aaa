// Signal per step: only groups with different rewards have advantages, and only their tokens carry gradient.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { Chart } from "../chart.js";
import { chance, number, percent, plural } from "../format.js";
import { Card, Fetched, MetricHint } from "../parts.js";
import { address, go } from "../route.js";
import { KINDS } from "./groups.js";

const KIND_COLOURS = {
  mixed: "var(--c3)",
  all_right: "var(--reward-2)",
  all_wrong: "var(--line-strong)",
  cut_off: "var(--c2)",
  equal: "var(--c1)",
  unscored: "var(--c6)",
};

export function Signal({ url, version, base }) {
  const state = useApi(`${url}/signal?points=240`, version);
  return html`<p class="view-lead">With a group baseline, a group with equal rewards, penalties included, has no signal: its advantages are 0, and its
    tokens carry no gradient. This page shows how many sampled tokens were useful.</p>
    <${Fetched} state=${state} height="50rem">${({ rows, totals, stride }) => {
      const kinds = Object.keys(KINDS).filter((kind) => totals[kind]);
      const stacked = rows.flatMap((row) => kinds.map((kind) => ({ step: row.step, kind, count: row[kind], share: row[kind] / row.groups })));
      const shares = rows.map((row) => ({
        step: row.step,
        share: row.gradient_tokens / Math.max(1, row.tokens),
        cut: row.truncated / Math.max(1, row.completions),
      }));
      const named = (kind) => `${KINDS[kind][0]} ${totals[kind] ? chance(totals[kind] / totals.groups) : "0%"}`;
      const carried = totals.gradient_tokens / Math.max(1, totals.tokens);
      return html`
        <div class="headline-number"><p class="big num">${percent(carried)}</p>
          <p>of the ${number(totals.tokens)} tokens sampled ${stride > 1 ? `in every ${stride}th step ` : ""}carried gradient.<br />
            <span class="soft small">The other ${number(totals.tokens - totals.gradient_tokens)} have advantage 0 or were left out: unscored or
              masked.</span></p>
        </div>
        <${Card} title="Groups by kind" note=${stride > 1 ? `Every ${stride}th step is shown. Click to open a step.` : "Click to open a step."}>
          <${Chart}
            label=${`Share of groups by kind over the steps: ${kinds.map(named).join(", ")} over all`}
            height=${280} deps=${[rows.length, rows.at(-1)?.step]} onPick=${(step) => go(address(`${base}/groups`, { step }))}
            legend=${kinds.map((kind) => [named(kind), KIND_COLOURS[kind], "square"])}
            build=${(Plot) => ({
              x: { label: "step" }, y: { label: "share of groups", tickFormat: (v) => percent(v), domain: [0, 1] },
              marks: [
                Plot.rectY(stacked, {
                  x1: (row) => row.step - stride / 2,
                  x2: (row) => row.step + stride / 2,
                  y: "share",
                  fill: (row) => KIND_COLOURS[row.kind],
                  z: "kind",
                  order: kinds,
                  shapeRendering: "crispEdges",
                  title: (row) => `${KINDS[row.kind][0]} ${row.count}`,
                }),
              ],
            })}
            table=${{ columns: ["step", ...kinds.map((kind) => KINDS[kind][0])], rows: rows.map((row) => [row.step, ...kinds.map((kind) => row[kind])]) }} />
        <//>
        <${Card} title=${html`Tokens that carried gradient<${MetricHint} name="gradient_tokens" />`}
          note="Share of each step's sampled tokens. Gold: share of completions truncated at the length limit.">
          <${Chart} label="Share of tokens with gradient and of truncated completions over the steps" height=${180} deps=${[rows.length, rows.at(-1)?.step]}
            onPick=${(step) => go(address(`${base}/groups`, { step }))}
            legend=${[["tokens with gradient", "var(--c3)"], ["truncated completions", "var(--c2)"]]}
            build=${(Plot) => ({
              x: { label: "step" },
              y: { domain: [0, 1], grid: true, label: "share", tickFormat: (v) => percent(v) },
              marks: [
                Plot.areaY(shares, { x: "step", y: "share", fill: "var(--c3)", fillOpacity: 0.15 }),
                Plot.lineY(shares, { x: "step", y: "share", stroke: "var(--c3)" }),
                Plot.lineY(shares, { x: "step", y: "cut", stroke: "var(--c2)" }),
              ],
            })}
            table=${{
              columns: ["step", "tokens", "with gradient", "truncated"],
              rows: rows.map((row) => [row.step, row.tokens, row.gradient_tokens, row.truncated]),
            }} />
        <//>
        <p class="small soft">${plural(totals.groups, "group")} in total.</p>`;
    }}<//>`;
}
