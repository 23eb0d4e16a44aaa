// The start page of Learn: the story, all chapters, and a path from a first run to why worked answers won.
import { html } from "htm/preact";
import { useEffect } from "preact/hooks";
import { useApi } from "./api.js";
import { Chart } from "./chart.js";
import { CHAPTERS, EXTRA } from "./chapters.js";
import { useAnswer } from "./lesson.js";
import { percent, signed } from "./format.js";
import { Term } from "./glossary.js";
import { useStyle } from "./load.js";
import { Advantage, Fetched, Reward } from "./parts.js";
import { address, Link, route } from "./route.js";
import { Untrusted } from "./text.js";

export function Learn() {
  useStyle("css/learn.css");
  const state = useAnswer("notation", "story", {});
  const runs = useApi("/api/runs");
  useEffect(() => {
    // At once, and again when what follows has made the page long enough.
    if (route.value.id) document.getElementById(route.value.id)?.scrollIntoView();
  }, [!state.data]);
  return html`<main class="lesson" id="main">
    <header class="lesson-head"><p class="lesson-number">Learn</p><h1>How a model learns from its own answers</h1>
      <p class="lesson-lead">New here? <${Link} to="/story">The story<//> takes five minutes. Every chapter has three depths: Intuition, Math and Code.</p>
    </header>
    <section class="lesson-section" aria-labelledby="all"><h2 id="all">All chapters</h2>
    <ol class="chapters">
      ${[...CHAPTERS, EXTRA].map(({ slug, number: place, title, lead }) => html`<li>
        <${Link} to=${`/learn/${slug}`}><span class="chapter-number">${place ?? "·"}</span><span><b>${title}</b><span class="soft">${lead}</span></span><//>
      </li>`)}
    </ol>
    </section>
    <section class="lesson-section" aria-labelledby="path"><h2 id="path">From a first run to why it worked</h2>
      <${Fetched} state=${state} height="60rem">${(story) => html`<${Path} story=${story} own=${newest(runs.data)} />`}<//></section>
  </main>`;
}

// The reader's latest run of the same task, if there is one.
const newest = (data) => data?.runs.find((run) => !run.example && run.kind !== "sft" && run.task?.startsWith("arithmetic") && run.steps > 0);

// The reader's run in one line; if it got no better, where to look.
function Latest({ run }) {
  const [before, after] = run.accuracy ?? [];
  const page = `/runs/${encodeURIComponent(run.id)}`;
  return html`Your latest run: <${Link} to=${page}>${run.name}<//>
    ${after === undefined ? "." : html`, ${percent(before)} → ${percent(after)} of held-out problems right.`}
    ${after <= before && html` It did not improve: <${Link} to=${`${page}/findings`}>possible problems<//>.`}`;
}

function Path({ story, own }) {
  const shipped = `/runs/~${story.run}`;
  const view = (name, query = {}) => address(`${shipped}/${name}`, query);
  const mine = (name, query = {}) => own && html` · <${Link} to=${address(`/runs/${encodeURIComponent(own.id)}/${name}`, query)}>in your run ${own.name}<//>`;
  const { worked, direct } = story.styles;
  return html`<ol class="path">
    <li><h3>Train</h3>
      <p>In a terminal: <code>make train</code> in a fresh checkout, or <code>grpo train</code>. Under two minutes on a
        CPU. ${own ? html`<${Latest} run=${own} />` : "You have no run yet; everything below uses a recorded run."}</p>
    </li>
    <li><h3>See a run that worked</h3>
      <p>This one ships with the lab${own ? "; each item links to the same view of your run" : ""}. A small model adds and multiplies. Before training it
        got <b data-number="story-before">${percent(story.accuracy[0])}</b> of held-out problems right,
        after ${story.steps} steps <b data-number="story-after">${percent(story.accuracy[1])}</b>. It saw no solutions during training; its own answers were
        scored.</p>
      <p class="small"><${Link} to=${view("overview")}>Overview of the recorded run<//>${mine("overview")}</p></li>
    <li><h3>Read one group</h3>
      <p>The model answers every problem eight times. One of the first groups, <${Untrusted} text=${story.group.prompt} /> (right: ${story.group.answer}):</p>
      <div><p class="mini-group-head tiny soft" aria-hidden="true"><span>answer</span><span>reward</span><span>advantage</span></p>
      <ul class="mini-group">
        ${story.group.rows.map((row) => html`<li><${Untrusted} text=${row.text} /><${Reward} value=${row.reward} /><${Advantage} value=${row.advantage} />
        </li>`)}
      </ul>
      </div>
      <p>There are two styles. Direct answers are just a number. Worked answers first write the working in parentheses; here ${story.group.work.join("; ")}.
        The <${Term} of="reward">reward<//> is 1 if the final number is right, else 0. The <${Term} of="advantage">advantage<//> is how far a reward lies above
        or below the group's average.</p>
      <p class="small"><${Link} to=${view("groups", { step: story.group.step, group: story.group.group })}>This group<//>${mine("groups", { step: 0 })}</p></li>
    <li><h3>Compare the styles</h3><p>In the first ${story.first} steps, all groups together:</p>
      <div class="scroll table" tabIndex="0" role="group" aria-label="Styles compared">
        <table>
          <thead><tr><th scope="col">style</th><th scope="col">share of answers</th><th scope="col">right</th><th scope="col">mean advantage</th></tr></thead>
          <tbody>
        ${[["worked", worked], ["direct", direct]].map(([name, style]) => html`<tr><th scope="row">${name}</th><td class="num">${percent(style.share)}</td>
          <td class="num"><b>${percent(style.right, 1)}</b></td><td><${Advantage} value=${style.advantage} /></td></tr>`)}
          </tbody>
        </table>
      </div>
      <p>Worked answers are right about ${Number((worked.right / direct.right).toPrecision(2))} times as often. So their advantages are nearly always
        positive, and those of direct
        answers nearly always negative.</p>
      <p class="small"><${Link} to="/learn/advantage">The advantage<//></p></li>
    <li><h3>Push</h3>
      <p>An answer with a positive advantage is pushed up, <${Term} of="token">token<//> by token; with a negative one, down. Answers of one style begin with
        the same kind of token, a parenthesis or a digit. Their pushes add up there: the first token decides the style.</p>
      <p class="small"><${Link} to=${view("tokens", { step: 0, lens: "push" })}>Push on the tokens of the first step<//>
        ${mine("tokens", { step: 0, lens: "push" })} · <${Link} to="/learn/advantage?direct=down#one">One update: even a right direct answer becomes less
          likely<//>
      </p>
    </li>
    <li><h3>See the style spread</h3>
      <p>Worked answers rise from ${percent(story.worked[0])} to ${percent(story.worked[1])}, although no reward was given for working.</p>
      <${Chart} label="Held-out accuracy and share of worked answers over the run" height=${190} deps=${[story.evals.length]}
        legend=${[["worked answers, held out", "var(--c3)"], ["faint: in training", "var(--c3)"], ["held-out accuracy", "var(--c4)"]]}
        build=${(Plot) => ({
          x: { label: "steps" },
          y: { domain: [0, 1], grid: true, label: "share of answers", tickFormat: (value) => percent(value) },
          marks: [
            Plot.lineY(story.shares, {
              x: "step",
              y: "worked",
              stroke: "var(--c3)",
              strokeWidth: 1,
              strokeOpacity: 0.5,
              ariaLabel: () => "worked answers, in training",
            }),
            Plot.lineY(story.evals, { x: "step", y: "worked", stroke: "var(--c3)", strokeWidth: 2 }),
            Plot.lineY(story.evals, { x: "step", y: "accuracy", stroke: "var(--c4)", strokeWidth: 2, marker: true }),
          ],
        })}
        table=${{ columns: ["step", "worked", "accuracy"], rows: story.evals.map((row) => [row.step, row.worked, row.accuracy]) }} />
      <p class="small"><${Link} to=${view("replay", { step: story.steps - 1 })}>The same problems before and after<//>
        ${mine("replay", { step: own?.steps - 1 })}</p>
    </li>
    <li><h3>Why the worked style won</h3>
      <p>Neither length nor style was rewarded. Worked answers were right ${percent(worked.right, 1)} of the time, direct ones ${percent(direct.right, 1)}.
        That gave
        mean advantages of ${signed(worked.advantage)} and ${signed(direct.advantage)}, and training depends only on the advantages.</p>
      <p class="small"><${Link} to="/learn/why">Continue with chapter 1<//></p></li>
  </ol>`;
}
