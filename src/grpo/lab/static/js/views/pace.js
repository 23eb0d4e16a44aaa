// The pace of a run: time spent and left, speed, memory.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { bytes, number, percent, seconds } from "../format.js";
import { Stat } from "../parts.js";

// Seconds since these numbers arrived, while the run trains.
function useClock(running, version) {
  const [now, setNow] = useState(0);
  useEffect(() => {
    setNow(0);
    if (!running) return;
    const begun = Date.now();
    const timer = setInterval(() => setNow((Date.now() - begun) / 1000), 1000);
    return () => clearInterval(timer);
  }, [running, version]);
  return now;
}

export function Pace({ about, version }) {
  const { pace } = about;
  const running = about.status === "running";
  const since = useClock(running, version);
  if (!pace || pace.elapsed === null) return null;
  const training = Object.values(about.seconds).reduce((sum, value) => sum + value, 0);
  return html`<dl class="stats pace">
    ${running && html`<${Stat} label="Time left" value=${pace.left === null ? "–" : `about ${seconds(Math.round(Math.max(0, pace.left - since)))}`}
      note=${pace.left === null ? "" : `ends ${clock(pace.left - since)}`}
      hint="Steps left times the mean time of the last 20 steps, with the evaluations between them." />`}
    <${Stat} label="Elapsed" value=${seconds(pace.elapsed + since)} note=${training > 0 ? `${seconds(training)} in steps` : ""}
      hint="From the start of the run, with evaluations and checkpoints, without breaks before a resume." />
    <${Stat} label="Steps per minute" value=${pace.steps_per_minute === null ? "–" : number(pace.steps_per_minute, pace.steps_per_minute < 10 ? 2 : 1)}
      note=${running ? "last 20 steps" : ""} />
    <${Stat} label="Tokens per second" value=${pace.tokens_per_second === null ? "–" : number(Math.round(pace.tokens_per_second))} note="sampled"
      hint="Mean of tokens_per_second: sampled tokens by the seconds of the rollout." />
    <${Stat} label="Peak memory" value=${bytes(pace.memory.peak)} note=${planNote(pace.memory)}
      hint="Of tensors on a GPU, of the whole process with its libraries on a CPU. Planned: the tensors, as predicted before the run began." />
  </dl>`;
}

// The plan counts tensors. On a CPU the peak is that of the whole process, so the plan is left out.
function planNote({ peak, planned, device }) {
  if (!device?.startsWith("cuda")) return device ? `on ${device}, the whole process` : "";
  return [planned && `${peak ? `${percent(peak / planned)} of ` : ""}${bytes(planned)} planned`, `on ${device}`].filter(Boolean).join(", ");
}

const clock = (left) => new Date(Date.now() + 1000 * Math.max(0, left)).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
