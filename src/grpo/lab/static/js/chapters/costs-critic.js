// Bytes per parameter, measured memory, and the size of a critic.
import { html } from "htm/preact";
import { exact } from "../format.js";
import { Equation, Fetched, Only, Section, Table, useAnswer } from "../lesson.js";
import { Link } from "../route.js";
import { GIB, gib } from "./costs-memory.js";

export function Accounting() {
  const state = useAnswer("costs", "accounting", {});
  return html`<${Section} title="2 or 16 bytes per parameter?" id="accounting" depth="math code"
    lead="Both numbers are quoted. 2 bytes hold a frozen model; 16 bytes train one.">
    <${Fetched} state=${state} height="14rem">
      ${(data) => html`<${Table} label="Bytes per parameter"
        head=${["precision", "weights", "gradients", "Adam's two moments", "total, frozen", "total, trainable"]}
        rows=${data.rows.map((row) => [
          row.dtype,
          row.weights,
          row.gradients,
          row.optimizer,
          html`<b class="num" data-number=${`frozen-${row.dtype}`}>${row.frozen}</b>`,
          html`<b class="num" data-number=${`trained-${row.dtype}`}>${row.trainable}</b>`,
        ])}
        foot=${"Bytes per parameter are gigabytes per billion parameters. 2: a frozen model in bfloat16, such as a reference. 16: a trainable model with " +
          "float32 weights, such as a critic. A model trained entirely in bfloat16 needs 8."} />`}
    <//>
    <${Equation} tex="M_{\\text{critic}}\\approx(w+g+m)\\cdot N,\\qquad M_{\\text{reference}}=w\\cdot N"
      spoken="the critic takes weights plus gradients plus moments times N parameters; the reference takes weights times N" />
  <//>`;
}

export function Measured() {
  const state = useAnswer("costs", "measured", {});
  return html`<${Section} title="Predicted and measured memory" id="measured" depth="math"
    lead="The planner's prediction next to the peak memory of real training steps on a GPU.">
    <${Fetched} state=${state} height="22rem">
      ${(data) => html`<${Table} label="Predicted and measured peaks" head=${["model, precision", "algorithm", "predicted", "measured", "ratio"]}
        rows=${data.rows.map((row) => [
          `${row.shape}, ${row.dtype}`,
          row.algorithm,
          gib(row.predicted),
          html`<span class="num" data-number=${`measured-${row.shape}-${row.dtype}-${row.algorithm}`.replaceAll(".", "_")}>${gib(row.measured)}</span>`,
          exact(row.ratio, 3),
        ])}
        foot=${madeBy(data)} />
      <p>PPO took ${exact(ratio(data, "qwen2.5-1.5b", "mixed"), 3)} times GRPO's memory for the largest model in mixed precision,
        and ${exact(ratio(data, "smollm2-135m", "bfloat16"), 3)} times for the smallest in bfloat16. “Twice”, often quoted, holds only for the trainable
        weights.</p>`}
    <//>
  <//>`;
}

function madeBy({ machine, command, work }) {
  const completions = `${work.prompts} prompts × ${work.group_size} completions of ${work.prompt_tokens} + ${work.new_tokens} tokens`;
  return `${machine.replace(/^one/, "One")}; random weights, ${completions}. ${command}`;
}

const ratio = (data, shape, dtype) => {
  const [grpo, ppo] = ["grpo", "ppo"].map((algorithm) => data.rows.find((row) => row.shape === shape && row.dtype === dtype &&
    row.algorithm === algorithm).measured);
  return ppo / grpo;
};

export function Critic() {
  const small = useAnswer("costs", "small-critics", {});
  return html`<${Section} title="The size of a critic" id="critic" depth="math"
    lead=${"In robotics a critic is a small network over a few sensor values. A critic for text must understand it as well as the policy does, so it usually " +
      "has the policy's size."}>
    <${Fetched} state=${small} height="10rem">
      ${(rows) => html`<${Table} label="Sizes of critics" head=${["critic", "parameters", "to train it in float32"]}
        rows=${rows.map((row) => [
          row.critic,
          row.parameters >= 1e9 ? `${exact(row.parameters / 1e9, 2)} billion` : row.parameters,
          row.bytes < GIB / 10 ? `${exact(row.bytes / 2 ** 20, 3)} MiB` : gib(row.bytes),
        ])}
        foot=${`With a critic of its size, a 70-billion-parameter policy means training ${exact((2 * rows[2].parameters) / 1e9, 3)} billion parameters.`} />`}
    <//>
    <${Only} depth="math code">
      <${Equation} tex="A^{\\pi}(s,a)=Q^{\\pi}(s,a)-V^{\\pi}(s)\\qquad V^{\\pi}(q)\\approx\\frac1G\\sum_{i=1}^{G}r_i"
        spoken="the advantage is Q minus V; the value of a prompt is about the mean reward of its group" />
      <p>The group's mean is a Monte Carlo estimate of V at the prompt, always for the current policy. It does not estimate V after each
        token: <${Link} to="/learn/credit">chapter 5<//>.</p>
    <//>
  <//>`;
}
