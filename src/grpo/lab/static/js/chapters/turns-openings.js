// First guesses over training: a map of all steps, and the histogram of one.
import { html } from "htm/preact";
import { Figure, Numbers, Only, param, Slider } from "../lesson.js";
import { percent } from "../format.js";
import { Segmented } from "../parts.js";
import { setQuery } from "../route.js";

const NUMBERS = Array.from({ length: 15 }, (_, place) => place);
const MOST_COLUMNS = 60;
const LAST = 20;

const seedsOf = (outcome) => outcome.arms[0].openings.filter((seed) => seed.rows.length);

// The share of each number among the first guesses of these steps.
function shares(rows) {
  const counts = NUMBERS.map((place) => rows.reduce((sum, row) => sum + (row.counts[place] ?? 0), 0));
  const all = rows.reduce((sum, row) => sum + Object.values(row.counts).reduce((a, b) => a + b, 0), 0);
  return counts.map((count) => count / Math.max(1, all));
}

export function shareOfSeven(outcome) {
  return seedsOf(outcome).map(({ seed, rows }) => {
    const [first, last] = [shares(rows.slice(0, 1)), shares(rows.slice(-LAST))];
    const most = Math.max(...last);
    return { seed, first: first[7], last: last[7], favourite: last.indexOf(most), most };
  });
}

export function Openings({ outcome }) {
  const seeds = seedsOf(outcome);
  if (!seeds.length) return null;
  const { seed, rows } = seeds.find((one) => one.seed === param("of", 1)) ?? seeds[0];
  const place = Math.max(0, Math.min(rows.length, param("at", 1)) - 1);
  const row = rows[place];
  const bars = shares([row]).map((share, guess) => ({ guess, share }));
  return html`<div class="openings"><h3>First guesses, step by step</h3>
    ${seeds.length > 1 && html`<${Segmented} label="Seed" value=${seed} onChange=${(next) => setQuery({ of: next === 1 ? undefined : next })}
      options=${seeds.map((one) => [one.seed, `Seed ${one.seed}`])} />`}
    <${Slider} name="at" label="Step" min=${1} max=${Math.max(2, rows.length)} step=${1} value=${1}
      show=${(now) => String(rows[Math.min(rows.length, now) - 1]?.step ?? now)} />
    <${Figure} label=${`First guesses of the games of step ${row.step}`} height=${190} deps=${[JSON.stringify(row), seed]}
      build=${(Plot) => ({
        x: { type: "band", domain: NUMBERS, label: "first guess", padding: 0.15 },
        y: { grid: true, label: "share of games", domain: [0, Math.max(0.25, ...bars.map((bar) => bar.share))], tickFormat: (value) => percent(value) },
        marks: [Plot.barY(bars, { x: "guess", y: "share", fill: "var(--c1)" }), Plot.ruleY([1 / 15], { stroke: "var(--c6)", strokeDasharray: "4 3" })],
      })}
      legend=${[[`step ${row.step}`, "var(--c1)", "square"], ["all numbers equally often", "var(--c6)"]]}
      table=${{ columns: ["first guess", "share"], rows: bars.map((bar) => [bar.guess, bar.share]) }} />
    <${Numbers}
      items=${[
        ["7 first", percent(bars[7].share, 1), `in the ${Object.values(row.counts).reduce((a, b) => a + b, 0)} games of step ${row.step}`, "sevens"],
        ["5 to 9 first", percent(bars.slice(5, 10).reduce((sum, bar) => sum + bar.share, 0), 1)],
      ]} />
    <${Only} depth="math code"><${Map} rows=${rows} seed=${seed} /><//></div>`;
}

function Map({ rows, seed }) {
  const width = Math.ceil(rows.length / MOST_COLUMNS);
  const cells = [];
  for (let begin = 0; begin < rows.length; begin += width) {
    const part = rows.slice(begin, begin + width);
    shares(part).forEach((share, guess) => cells.push({ x1: part[0].step - 0.5, x2: part.at(-1).step + 0.5, guess, share }));
  }
  const most = Math.max(...cells.map((cell) => cell.share));
  return html`<${Figure} label="Share of each first guess over the steps" height=${280} deps=${[rows.length, seed]}
    build=${(Plot) => ({
      x: { label: "step" },
      y: { type: "band", domain: [...NUMBERS].reverse(), label: "first guess", padding: 0.06 },
      marks: [
        Plot.rect(cells, {
          x1: "x1",
          x2: "x2",
          y: "guess",
          fill: "var(--c1)",
          fillOpacity: (cell) => cell.share / most,
          title: (cell) => `${percent(cell.share)} begin with ${cell.guess}`,
        }),
      ],
    })}
    table=${{ columns: ["step", "first guess", "share"], rows: cells.map((cell) => [cell.x1 + 0.5, cell.guess, cell.share]) }} />`;
}
