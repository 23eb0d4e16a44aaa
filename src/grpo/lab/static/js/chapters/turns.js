// Chapter 8: episodes of several turns, with a model that guesses a hidden number.
import { html } from "htm/preact";
import {
  Code, Equation, Fetched, Figure, Numbers, Only, param, Play, Question, Section, Slider, Table, Trial, useAnswer, useStyle, Verdict,
} from "../lesson.js";
import { Strip, WHY_NO_GRADIENT } from "../episode.js";
import { chance, number, percent, plural, signed } from "../format.js";
import { Term } from "../glossary.js";
import { advantageClass, Segmented, strength } from "../parts.js";
import { setQuery } from "../route.js";
import { visible } from "../text.js";
import { Openings, shareOfSeven } from "./turns-openings.js";

const asked = () => ({ hidden: param("hidden", 11), seed: param("seed", 1), sample: param("sample", 0) });

const PLAIN = { charts: { reward_mean: "games won", middle_share: "first guesses near the middle" } };

export function Chapter({ depth }) {
  useStyle("css/chapter-why.css", "css/chapter-turns.css");
  return html`<${Game} />
    <${Trained} />
    <${First} />
    <${Section} id="bisection" title="It discovers bisection"
      lead=${html`A won game earns a <${Term} of="reward">reward<//> of 1, a lost one 0. Nothing mentions halves. Here the model trains on its own games.`}>
      <${Question} name="q-seven" ask="After training, how often is 7 the first guess?"
        options=${[["never", "About as often as any other"], ["often", "More often, but below half"], ["mostly", "In most games"]]}>
        ${(picked) => html`<${Trial} name="bisection" plain=${depth === "intuition" ? PLAIN : undefined}
          verdict=${(outcome) => html`<${Seven} picked=${picked} outcome=${outcome} />`}>${(outcome) => html`<${Openings} outcome=${outcome} />`}<//>`}<//>
      <p>A first guess near the middle wins more often, so in most <${Term} of="group">groups<//> its games have positive advantages.</p>
    <//>
    <${Section} depth="code" id="code" title="The functions behind an episode"
      lead="The task answers a turn; the engine goes on with the keys and values it has; packing interleaves sampled and observed tokens.">
      ${[
        ["reply", "The task's answer to a turn"],
        ["collect", "The end of a round: every turn has its answer"],
        ["sequence", "Sampled and observed tokens, in order"],
        ["sampled", "Which of them were sampled"],
        ["pack", "Packing: rows are whole sequences, targets are sampled tokens"],
      ].map(([source, title]) => html`<${Code} slug="turns" source=${source} title=${title} key=${source} />`)}
    <//>`;
}

function Game() {
  const state = useAnswer("turns", "game", asked());
  const again = () => setQuery({ seed: (param("seed", 1) + 1) % 10000, turn: undefined });
  return html`<${Section} id="game" title="A game of four guesses"
    lead=${html`A number from 0 to 14 is hidden. The model has four guesses; after each it reads ${"<"} (the number is smaller) or ${">"} (it is larger). The
      whole game is one <${Term} of="completion">completion<//>: an episode.`}>
    <${Play} label="Games of the model">
      <div class="knobs"><${Slider} name="hidden" label="Hidden number" min=${0} max=${14} step=${1} value=${11} show=${String} />
        <button type="button" onClick=${again}>Play again</button></div>
      <${Fetched} state=${state} height="40rem">${(found) => {
        const turn = Math.max(0, Math.min(found.guesses.length - 1, param("turn", 1) - 1));
        let place = 0;
        const turns = found.games[found.sample].turns.map((one) => (one.who === "model" ? { ...one, note: noteOf(found.guesses[place++]) } : one));
        return html`<div class="picks" role="group" aria-label="Eight games with this number">
          ${found.games.map((game, sample) => html`<button type="button" class=${sample === found.sample ? "picked" : ""}
            aria-pressed=${sample === found.sample} onClick=${() => setQuery({ sample, turn: undefined })}>
            ${said(game)} ${game.reward ? "✓" : "✗"}</button>`)}
          </div>
          <${Strip} turns=${turns} label="The game: turns and replies" />
          <${Segmented} label="Turn" value=${turn + 1} onChange=${(next) => setQuery({ turn: next })}
            options=${found.guesses.map((guess, index) => [index + 1, `Guess ${index + 1}`, guess.text])} />
          <${Guess} guess=${found.guesses[turn]} hidden=${found.hidden} />`;
      }}<//>
    <//>
    <p>The model has 100,000 parameters. It learned from a player who guesses any number that is still possible. So it uses the replies, and does not prefer the
      middle.</p>
  <//>`;
}

const said = (game) => game.turns.filter((turn) => turn.who === "model").map((turn) => turn.text).join(" ");
const likely = (guess) => guess.chances[Number(guess.text)] ?? null;
const noteOf = (guess) => html`<span class="num">${likely(guess) === null ? "" : `probability ${chance(likely(guess))}`}</span>`;

// The model's probability of each number before a guess; those that the replies had ruled out are grey.
function Guess({ guess, hidden }) {
  const rows = guess.chances.map((value, place) => ({ place, value, possible: place >= guess.low && place <= guess.high }));
  const within = rows.filter((row) => row.possible).reduce((sum, row) => sum + row.value, 0);
  return html`<${Figure} label=${`Probability of each number before this guess; it guessed ${guess.text}`} height=${200} deps=${[JSON.stringify(guess), hidden]}
      legend=${[["still possible", "var(--c1)", "square"], ["ruled out", "var(--line-strong)", "square"], ["the hidden number", "var(--c2)"]]}
      build=${(Plot) => ({
        x: { type: "band", domain: rows.map((row) => row.place), label: "next guess", padding: 0.15 },
        y: { grid: true, label: "probability", zero: true, tickFormat: (value) => percent(value) },
        marks: [
          Plot.barY(rows, { x: "place", y: "value", fill: (row) => (row.possible ? "var(--c1)" : "var(--line-strong)") }),
          Plot.tickX([hidden], { x: (value) => value, stroke: "var(--c2)", strokeWidth: 2 }),
        ],
      })}
      table=${{ columns: ["number", "probability", "possible"], rows: rows.map((row) => [row.place, row.value, row.possible ? "yes" : "no"]) }} />
    <${Numbers}
      items=${[
        ["it guessed", html`<code>${visible(guess.text)}</code>`, likely(guess) === null ? "" : percent(likely(guess), 1), "guessed"],
        ["still possible", guess.low === guess.high ? `${guess.low}` : `${guess.low} to ${guess.high}`],
        ["probability of these", percent(within, 1), "", "within"],
        ["reply", guess.reply || "none", guess.reply ? "" : "the game is over"],
      ]} />`;
}

function Trained() {
  const state = useAnswer("turns", "game", asked());
  return html`<${Section} id="tokens" title="Sampled and read" lead=${html`Training must know which <${Term} of="token">tokens<//> the model chose.`}>
    <${Replies} />
    <${Play} label="Tokens of the game"><p class="small soft">Click a token of the game above.</p>
      <${Fetched} state=${state} height="16rem">${(found) => {
        const chosen = Math.max(0, Math.min(found.tokens.length - 1, param("token", 2)));
        const token = found.tokens[chosen];
        const own = found.tokens.filter((one) => one.sampled).length;
        return html`<div class="glyphs" role="group" aria-label="Tokens of the game"><span class="glyph">${found.prompt}</span>
          ${found.tokens.map((one, place) => html`<button type="button"
            class="glyph ${one.sampled ? advantageClass(one.advantage) : "observed"} ${place === chosen ? "chosen" : ""}"
            style=${one.sampled ? strength(one.advantage, 0.5) : {}} aria-pressed=${place === chosen} onClick=${() => setQuery({ token: place })}>
            ${one.text === "end" ? html`<i class="end">end</i>` : visible(one.text)}</button>`)}
          </div>
          ${token.sampled
            ? html`<${Numbers}
              items=${[
                ["token", html`<code>${token.text}</code>`, "sampled"],
                ["its probability", percent(token.probability, 1), "under the sampler", "token-probability"],
                ["advantage", signed(token.advantage), "of the whole game", "token-advantage"],
              ]} />`
            : html`<p data-observed>${WHY_NO_GRADIENT}</p>`}
          <p class="small soft">${plural(own, "sampled token")} and ${plural(found.tokens.length - own, "observed token")} after the prompt. All sampled tokens
            of a game share
            one <${Term} of="advantage">advantage<//>.<${Only} depth="math code"> <code>--algorithm gigpo</code> compares turns in the same state instead.<//>
          </p>`;
      }}<//>
      <${Only} depth="math">
        <${Equation}
          tex=${"\\mathcal L=-\\frac1D\\sum_{t:\\,m_t=1}A\\,\\log\\pi_\\theta(x_t\\mid q,x_{<t}),\\qquad m_t=\\begin{cases}1&x_t\\text{ was " +
            "sampled}\\\\0&x_t\\text{ was read}\\end{cases}"}
          spoken="The loss sums A times the log-probability over sampled tokens only; the condition holds all earlier tokens, sampled and read." />
        <p>Observed tokens are part of the condition <i>x<sub>&lt;t</sub></i> and not of the sum. Their probabilities are the environment's: no change of the
          policy makes them more likely. A sum that included them would train the model to predict its environment, with the weight of an advantage.</p>
      <//>
      <${Only} depth="code">
        <p>A completion's arrays hold the tokens it sampled. Observations stand beside them, each with the number of sampled tokens before it. So no length,
          denominator or mean counts an observed token, and only packing puts them in order.</p>
      <//>
    <//>
  <//>`;
}

function Replies() {
  return html`<${Question} name="q-read" ask="Suppose the replies < and > were trained like sampled tokens. What would the model learn from them?"
    options=${[["better", "To guess better"], ["predict", "To predict replies, which it never writes"], ["nothing", "Nothing: their gradient is 0"]]}>
    ${(picked) => html`<${Verdict} picked=${picked} right="predict">
      <p>A reply has a probability under the model, so a sum over it has a gradient. It would make the replies of won games more likely: the model would spend
        its weights on a text that it never writes. Sampler and trainer would also disagree about the number of trained tokens; the finding “observed tokens are
        being trained” looks for that.</p>
    <//>`}
    <//>`;
}

function First() {
  const state = useAnswer("turns", "strategies", { guesses: param("guesses", 4) });
  return html`<${Section} id="first" title="The best first guess" lead="What is a first guess worth? The tree of all games is small enough to compute exactly.">
    <${Play} label="Chance of winning by first guess">
      <div class="knobs"><${Slider} name="guesses" label="Guesses allowed" min=${1} max=${6} step=${1} value=${4} show=${String} /></div>
      <${Fetched} state=${state} height="24rem">${(found) => html`
        <${Figure} label="Chance of winning by first guess, with the best play after it and with any possible guess" height=${220}
          deps=${[JSON.stringify(found)]}
          legend=${[["then the best guesses", "var(--c4)"], ["then any possible number", "var(--c1)"]]}
          build=${(Plot) => ({
            x: { label: "first guess", ticks: 15, tickFormat: String },
            y: { domain: [0, 1], grid: true, label: "chance of winning", tickFormat: (value) => percent(value) },
            marks: [["best", "var(--c4)"], ["possible", "var(--c1)"]].flatMap(([y, stroke]) => [
              Plot.lineY(found.rows, { x: "first", y, stroke }),
              Plot.dot(found.rows, { x: "first", y, fill: stroke, r: 3 }),
            ]),
          })}
          table=${{ columns: ["first guess", "best", "any possible"], rows: found.rows.map((row) => [row.first, row.best, row.possible]) }} />
        <${Numbers}
          items=${[
            ["best player wins", percent(found.best, 1), "", "best"],
            ["any possible number wins", percent(found.possible, 1), "the teacher of this model", "possible"],
          ]} />`}
      <//>
      <${Only} depth="math">
        <${Equation} tex="W(n,k)=\\max_g\\Big[1+W(g,k-1)+W(n-1-g,k-1)\\Big],\\qquad W(n,k)=\\min(n,2^k-1)"
          spoken=${"The best player finds, among n numbers with k guesses, one plus what can be found below and above the guess; this is the smaller of n " +
            "and two to the k minus one."} />
      <//>
      <${Only} depth="code"><${Code} slug="turns" source="chance_of_best" /><${Code} slug="turns" source="chance_of_possible" /><//>
    <//>
    <p>With four guesses, always halving finds each of the 15 numbers. The curve is all the <${Term} of="signal">signal<//> that training has.</p>
  <//>`;
}

function Seven({ picked, outcome }) {
  const shares = shareOfSeven(outcome);
  if (!shares.length) return html`<p class="soft">No step has been trained yet.</p>`;
  const last = shares.reduce((sum, row) => sum + row.last, 0) / shares.length;
  return html`<${Verdict} picked=${picked} right=${last > 0.5 ? "mostly" : last > 0.1 ? "often" : "never"}>
    <${Table} label="Share of games that begin with 7" head=${["seed", "first step", "last steps", "the most frequent first guess"]}
      rows=${shares.map((row) => [String(row.seed), percent(row.first), percent(row.last), `${row.favourite} (${percent(row.most)})`])} />
    <p>From 7 the best play wins every game, from 6 and 8 it wins ${percent(14 / 15)}. That small difference is all the signal between them.
      (${plural(shares.length, "seed")}, ${number(outcome.trial.steps)} steps; last steps: the last 20.)</p>
    <//>`;
}
