// The way in: a newcomer's path from a first run to why the worked style won, and all chapters.
import { html } from "htm/preact";
import { useApi } from "./api.js";
import { Chart } from "./chart.js";
import { CHAPTERS, EXTRA } from "./chapters.js";
import { useAnswer } from "./lesson.js";
import { percent, signed } from "./format.js";
import { Advantage, Fetched, Reward } from "./parts.js";
import { address, Link } from "./route.js";
import { Untrusted } from "./text.js";

export function Learn() {
  const state = useAnswer("notation", "story", {});
  const runs = useApi("/api/runs");
  return html`<main class="lesson" id="main">
    <header class="lesson-head"><p class="lesson-number">Learn</p><h1>How a model learns from its own answers</h1>
      <p class="lesson-lead">Every number here is computed by the functions that train. Begin with one run, or with any chapter.</p></header>
    <section class="lesson-section" aria-labelledby="path"><h2 id="path">From a first run to why it worked</h2>
      <${Fetched} state=${state} height="60rem">${(story) => html`<${Path} story=${story} own=${newest(runs.data)} />`}<//></section>
    <section class="lesson-section" aria-labelledby="all"><h2 id="all">All chapters</h2>
    <ol class="chapters">${[...CHAPTERS, EXTRA].map(({ slug, number: place, title, lead }) => html`<li><${Link} to=${`/learn/${slug}`}><span class="chapter-number">${place ?? "·"}</span><span><b>${title}</b><span class="soft">${lead}</span></span><//></li>`)}</ol></section>
  </main>`;
}

// The reader's own latest run of the same task, where there is one.
const newest = (data) => data?.runs.find((run) => !run.example && run.kind !== "sft" && run.task?.startsWith("arithmetic") && run.steps > 0);

function Path({ story, own }) {
  const shipped = `/runs/~${story.run}`;
  const view = (name, query = {}) => address(`${shipped}/${name}`, query);
  const mine = (name, query = {}) => own && html` · <${Link} to=${address(`/runs/${encodeURIComponent(own.id)}/${name}`, query)}>in your run ${own.name}<//>`;
  const { worked, direct } = story.styles;
  return html`<ol class="path">
    <li><h3>Train</h3><p>In a terminal: <code>make train</code> in a fresh checkout, or <code>grpo train</code>. Under two minutes on a CPU. ${own ? html`You did: <${Link} to=${`/runs/${encodeURIComponent(own.id)}`}>${own.name}<//>, ${percent(own.accuracy?.[0])} → ${percent(own.accuracy?.[1])}.` : "No run of yours is here yet; a recorded one is, and everything below works on it."}</p></li>
    <li><h3>See that it worked</h3><p>A small model adds and multiplies. ${own ? "From here on the numbers are those of a recorded run that ships with the lab; each step links to the same view of yours." : ""} Before training it got <b data-number="story-before">${percent(story.accuracy[0])}</b> of new problems right, after ${story.steps} steps <b data-number="story-after">${percent(story.accuracy[1])}</b>. On the way nobody showed it a solution; its answers were only marked.</p>
      <p class="small"><${Link} to=${view("overview")}>Overview of the recorded run<//>${mine("overview")}</p></li>
    <li><h3>Read one group</h3><p>Every problem is asked eight times. One of the first, <${Untrusted} text=${story.group.prompt} /> (${story.group.answer} is right):</p>
      <div><p class="mini-group-head tiny soft" aria-hidden="true"><span>answer</span><span>reward</span><span>advantage</span></p>
      <ul class="mini-group">${story.group.rows.map((row) => html`<li><${Untrusted} text=${row.text} /><${Reward} value=${row.reward} /><${Advantage} value=${row.advantage} /></li>`)}</ul></div>
      <p>Two styles. Some answers just say a number. Others first write the work in parentheses, digit by digit; here ${story.group.work.join("; ")}. The reward is 1 where the final number is right, and looks at nothing else. The advantage says how far a reward lies above or below the mean of its group, in standard deviations.</p>
      <p class="small"><${Link} to=${view("groups", { step: story.group.step, group: story.group.group })}>This group<//>${mine("groups", { step: 0 })}</p></li>
    <li><h3>Compare the styles</h3><p>In the first ${story.first} steps, all groups together:</p>
      <div class="scroll table" tabIndex="0" role="group" aria-label="Styles compared"><table><thead><tr><th scope="col">style</th><th scope="col">share of answers</th><th scope="col">right</th><th scope="col">mean advantage</th></tr></thead><tbody>
        ${[["worked out", worked], ["just said", direct]].map(([name, style]) => html`<tr><th scope="row">${name}</th><td class="num">${percent(style.share)}</td><td class="num"><b>${percent(style.right)}</b></td><td><${Advantage} value=${style.advantage} /></td></tr>`)}</tbody></table></div>
      <p>Working it out is right ${Math.round(worked.right / direct.right)} times as often. So it is above its group nearly always, and saying a number nearly always below.</p>
      <p class="small"><${Link} to="/learn/advantage">What the advantage is, and why only siblings count<//></p></li>
    <li><h3>Push</h3><p>An answer above its group is made more likely, token by token; one below, less. Answers of one style begin alike, with a parenthesis or with a digit, so there the pushes of all of them add up: the first token decides the style.</p>
      <p class="small"><${Link} to=${view("tokens", { step: 0, lens: "push" })}>Tokens of the first step by push<//>${mine("tokens", { step: 0, lens: "push" })} · <${Link} to="/learn/advantage?direct=down#one">One update: even a right number becomes less likely, if it is just said<//></p></li>
    <li><h3>Watch the style win</h3><p>From ${percent(story.worked[0])} of answers worked out to ${percent(story.worked[1])}, though nothing was ever paid for working.</p>
      <${Chart} label="Held-out accuracy and share of worked answers over the run" height=${190} deps=${[story.evals.length]} legend=${[["answers worked out, held out", "var(--c3)"], ["faint: in training", "var(--c3)"], ["held-out accuracy", "var(--c4)"]]}
        build=${(Plot) => ({ x: { label: "steps" }, y: { domain: [0, 1], grid: true, label: null, tickFormat: (value) => percent(value) }, marks: [Plot.lineY(story.shares, { x: "step", y: "worked", stroke: "var(--c3)", strokeWidth: 1, strokeOpacity: 0.5 }), Plot.lineY(story.evals, { x: "step", y: "worked", stroke: "var(--c3)", strokeWidth: 2 }), Plot.lineY(story.evals, { x: "step", y: "accuracy", stroke: "var(--c4)", strokeWidth: 2, marker: true })] })}
        table=${{ columns: ["step", "worked", "accuracy"], rows: story.evals.map((row) => [row.step, row.worked, row.accuracy]) }} />
      <p class="small"><${Link} to=${view("replay", { step: story.steps - 1 })}>The same problems before and after<//>${mine("replay", { step: own?.steps - 1 })}</p></li>
    <li><h3>Why the worked style won</h3><p>Not because it is longer, and not because anybody asked for it. It was right ${percent(worked.right)} of the time against ${percent(direct.right)}; in a group that is an advantage of ${signed(worked.advantage)} against ${signed(direct.advantage)}; and an advantage is all that training looks at. The reward said what counts. The group said what was better. The rest followed.</p>
      <p class="small"><${Link} to="/learn/why">Now from the beginning: chapter 1<//></p></li>
  </ol>`;
}
