// Tokens of a group that were not recorded: recomputed by the server from the nearest checkpoint, on demand.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api.js";
import { plural } from "../format.js";
import { Empty, Failed, Loading } from "../parts.js";
import { isStatic } from "../route.js";

const MILLISECONDS = 400; // between two questions about the progress

// The state of the recomputation of a group, asked again while it is running.
function useJob(url) {
  const [job, setJob] = useState(null);
  const failed = (error) => setJob((last) => ({ ...last, status: last?.status === "running" ? "failed" : (last?.status ?? "none"), error: error.message }));
  useEffect(() => {
    if (isStatic() || (job && job.status !== "running")) return;
    let wanted = true;
    const ask = () => get(url).then((now) => wanted && setJob(now), (error) => wanted && failed(error));
    const timer = setTimeout(ask, job ? MILLISECONDS : 0);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [url, job]);
  return { job, start: () => post(url).then(setJob, failed), cancel: () => post(`${url}/cancel`).then(setJob, failed) };
}

const weights = (job) => (job.checkpoint ? html`checkpoint <code>${job.source}</code>` : html`the model <code>${job.source}</code>, from before training`);

// Shows `children` when the group's tokens are there.
export function Recomputed({ url, step, children }) {
  const { job, start, cancel } = useJob(`${url}/recompute`);
  if (isStatic()) return html`<${Empty} title="No tokens recorded">The tokens of this group were not recorded. <code>grpo lab</code> on the machine of the run
    can recompute them from a checkpoint.<//>`;
  if (!job) return html`<${Loading} height="20rem" />`;
  if (job.status === "done") return html`<${Mark} job=${job} step=${step} />${children}`;
  if (job.status === "running") {
    return html`<div class="empty" role="status"><h2>Recomputing</h2>
      <p class="soft">${job.total ? html`${job.done} of ${plural(job.total, "forward pass", "forward passes")}` : html`Loading ${weights(job)}`}</p>
      <progress class="recompute-progress" max=${job.total || 1} value=${job.total ? job.done : undefined} aria-label="Progress"></progress>
      <p><button type="button" onClick=${cancel}>Cancel</button></p></div>`;
  }
  return html`${job.error && html`<${Failed} error=${{ message: job.error }} />`}
    <div class="empty"><h2>No tokens recorded</h2>
      ${job.source && html`<div class="soft">
        <p>They can be recomputed with ${weights(job)}
          ${job.after === step ? ", the weights that sampled this group" : `: weights of ${plural(step - job.after, "step")} earlier`}.</p>
        <p class="small">On one core, in the background. To record tokens, train with <code>--system.token_groups N</code>.</p></div>
        <p><button type="button" class="primary" onClick=${start}>Recompute</button></p>`}</div>`;
}

function Mark({ job, step }) {
  return html`<p class="recomputed small" data-recomputed><b>Recomputed</b> with ${weights(job)}
    ${job.after === step ? ": the weights that sampled this group" : `, ${plural(step - job.after, "step")} before this group was sampled`}.${" "}
    ${job.push
      ? "Push is that of one update on the whole step at ratio 1, with the recorded advantages."
      : "No push: in this run the advantage differs by token, and the record has only its mean over each completion."}
    ${job.exact ? "" : " Texts were encoded again, and at least one has another number of tokens than was sampled."}</p>`;
}
