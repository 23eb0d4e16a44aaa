// Trains nano in the page: accuracy by step, and one group of the latest step. Any page can place it.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Chart } from "../chart.js";
import { percent, seconds } from "../format.js";
import { useStyle } from "../load.js";
import { Advantage, Failed, Reward } from "../parts.js";
import { openNano } from "./client.js";

const STEPS = 30;
const PROMPTS = 8;
const GROUP = 8;
const RECENT = 5; // steps of the mean that the text gives
const LINES = [["accuracy", "right", "var(--reward-3)"], ["worked", "worked out first", "var(--c3)"]];

export function TrainHere({ steps = STEPS, seed = 1 }) {
  useStyle("css/trial.css", "css/nano.css");
  const [history, setHistory] = useState([]);
  const [before, setBefore] = useState(0); // steps of earlier trainings
  const [status, setStatus] = useState("idle"); // idle, training, stopped, done
  const [error, setError] = useState(null);
  const running = useRef(null);
  const attempt = useRef(0); // the latest one; an earlier one that still loads gives up
  function stop() {
    attempt.current += 1;
    if (running.current) running.current.cancel();
    else setStatus("stopped");
  }
  useEffect(() => stop, []);

  async function train() {
    const mine = ++attempt.current;
    const isOver = () => attempt.current !== mine;
    setError(null);
    setStatus("training");
    try {
      const nano = await openNano("train-here");
      if (!history.length && !isOver()) await nano.reset(); // trained before the reader left the page and came back
      if (isOver()) return;
      const first = history.length;
      setBefore(first);
      running.current = nano.train({ steps, first, prompts: PROMPTS, group: GROUP, seed }, (step) => setHistory((earlier) => [...earlier, step]));
      setStatus((await running.current.done) < steps ? "stopped" : "done");
    } catch (problem) {
      // border: the worker or its files may not load
      if (isOver()) return;
      setError(problem);
      setStatus("stopped");
    }
    running.current = null;
  }

  async function reset() {
    try {
      await (await openNano("train-here")).reset();
    } catch (problem) {
      // border: the worker or its files may not load
      return setError(problem);
    }
    setError(null);
    setHistory([]);
    setBefore(0);
    setStatus("idle");
  }

  const training = status === "training";
  return html`<div class="trial train-here" data-status=${status} data-steps=${history.length}>
    <div class="trial-bar">
      ${training
        ? html`<button type="button" onClick=${stop}>Stop</button>`
        : html`<button type="button" class="primary" onClick=${train}>${history.length ? `Train ${steps} more steps` : "Train the model"}</button>`}
      <button type="button" onClick=${reset} disabled=${training || !history.length}>Reset</button>
      <p class="small soft" role="status">${words(status, history, steps)}</p>
    </div>
    ${training && html`<progress max=${steps} value=${history.length - before} aria-label="Steps trained"></progress>`}
    ${error && html`<${Failed} error=${error} />`}
    ${history.length > 0 && html`<div class="train-here-parts"><${Curve} history=${history} end=${before + steps} /><${OneGroup} step=${history.at(-1)} />
    </div>`}
  </div>`;
}

function words(status, history, steps) {
  if (status === "idle") return `Your browser samples ${PROMPTS} × ${GROUP} answers a step, scores them and updates the model's 100,000 weights.`;
  if (status === "training") return history.length ? "Training in this page. Every point is one step." : "Starting…";
  if (!history.length) return "Stopped.";
  const mean = (part) => percent(part.reduce((sum, { accuracy }) => sum + accuracy, 0) / part.length);
  const time = seconds(history.reduce((sum, step) => sum + step.seconds, 0));
  const change = history.length < 2 * RECENT
    ? ""
    : ` Right answers: ${mean(history.slice(0, RECENT))} in the first ${RECENT} steps, ${mean(history.slice(-RECENT))} in the last ${RECENT}.`;
  return `${status === "done" ? "Trained" : "Stopped after"} ${history.length} steps in ${time}.${change}`;
}

function Curve({ history, end }) {
  const points = LINES.flatMap(([key, , colour]) => history.map((step) => ({ x: step.step + 1, y: step[key], colour })));
  return html`<${Chart} label="Share of right answers, and of answers worked out first, by training step" height=${240} deps=${[history.length]}
    legend=${LINES.map(([, text, colour]) => [text, colour])}
    build=${(Plot) => ({
      x: { label: "step", domain: [1, end] },
      y: { label: "share of the answers", grid: true, domain: [0, 1], ticks: 5, tickFormat: (value) => percent(value) },
      marks: [Plot.lineY(points, { x: "x", y: "y", z: "colour", stroke: "colour", strokeWidth: 2 })],
    })}
    table=${{
      columns: ["step", "right", "worked out first", "groups without signal"],
      rows: history.map((step) => [step.step + 1, step.accuracy, step.worked, step.silent]),
    }} />`;
}

// The group's answers by advantage: what the model wrote, its reward, and how far it is pushed.
function OneGroup({ step: { step, groups: [{ prompt, completions }] } }) {
  const rows = [...completions].sort((one, other) => other.advantage - one.advantage);
  return html`<div class="train-here-group">
    <h3>Step ${step + 1}: one of ${PROMPTS} groups</h3>
    <p class="small soft">Prompt <code>${prompt}</code></p>
    <table>
      <thead><tr><th scope="col">answer</th><th scope="col">reward</th><th scope="col">advantage</th></tr></thead>
      <tbody>
        ${rows.map(({ text, reward, advantage }) => html`<tr><td><code>${text}</code></td><td><${Reward} value=${reward} /></td>
          <td><${Advantage} value=${advantage} /></td></tr>`)}
      </tbody>
    </table>
  </div>`;
}
