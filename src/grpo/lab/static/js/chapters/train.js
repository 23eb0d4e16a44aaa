// Chapter 7: training runs with several seeds each; settings, comparisons, and a clinic.
import { html } from "htm/preact";
import { Clinic, SymptomTable } from "./train-clinic.js";
import { Convergence, Drift, Drifted, Smoothness } from "./train-compare.js";
import { Dashboard, GroupSize, Hyperparameters, MetricRanges, Tips } from "./train-knobs.js";
import { Listings } from "./train-listings.js";
import { Code, Fetched, Only, Question, Section, Trial, Verdict, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";
import { Term } from "../glossary.js";
import { useStyle } from "../load.js";
import { TrainHere } from "../nano/train-here.js";

const CURVES = { charts: { reward_mean: "mean reward", worked_share: "answers with working" } };

export function Chapter({ depth }) {
  useStyle("css/chapter-advantage.css", "css/chapter-train.css");
  const plain = depth === "intuition";
  const band = plain
    ? "The line is their mean; the band, and ± below, show how much they differ."
    : html`The line is the mean, the band one <${Term} of="standard-deviation">standard deviation<//>.`;
  return html`
    <${Section} title="PPO and GRPO, side by side"
      lead=${html`Both train the same model on the same task, five times each, with different random numbers. ${band}`}>
      <${Smoothness} /><${Trial} name="ppo-and-grpo" plain=${plain ? CURVES : undefined} />
      <${Only} depth="code"><${Code} slug="train" source="perform" title="perform: the function that trained these runs" />
        <${Code} slug="train" source="smoothness" /><//>
    <//>
    <${Section} depth="intuition" title="Few large groups, or many small ones?"
      lead=${html`Every run samples 128 answers a step, so larger <${Term} of="group">groups<//> mean fewer questions.`}>
      <${GroupSize} /><//>
    <${Section} depth="math code" title="Tune it yourself"
      lead=${html`The <${Term} of="clip">clip<//> range, the <${Term} of="KL">KL<//> penalty and the <${Term} of="group">group<//> size. Every run samples 128
        answers a step, so larger groups mean fewer prompts.`}>
      <${Dashboard} /><//>
    <${Section} depth="math code" title="One update or several"
      lead=${html`<${Term} of="sampling">Sampling<//> is expensive, so it is tempting to train on a batch more than once. Only then does the clip take
        effect.`}>
      <${OneUpdate} /><//>
    <${Section} depth="math code" title="How far the policy drifts"
      lead=${html`Training moves the <${Term} of="policy">policy<//> away from the model it started as. Here are 200 steps with a weak and a strong penalty
        β.`}>
      <${Drift} /><${Drifted} /><${Trial} name="kl-over-beta" /><//>
    <${Section} title="Convergence" depth="math code"><${Convergence} /><//>
    <${Section} title="Metrics to watch" depth="math code" lead="Four metrics with the ranges that a tutorial gives, and their values in healthy runs.">
      <${MetricRanges} /><//>
    <${Section} title="The clinic" lead="Six runs, each with one wrong setting. Look at the curves and choose the cause."><${Clinic} /><//>
    <${Section} title="Common advice, tested" depth="math code"><${SymptomTable} /><//>
    <${Section} title="Every setting and the source of its default" depth="math code"><${Hyperparameters} /><${Tips} /><//>
    <${Section} title="Errors in a published trainer" depth="code"
      lead=${"A tutorial's GRPO trainer, in Python and in Rust, looks right at first sight. It has six errors and some smaller ones. Those that can be run " +
        "are run here, next to this trainer's functions."}>
      <${Listings} /><//>
    <${Section} id="here" title="Train it here"
      lead=${"No server and no recording: the loop of this chapter runs in this page. nano starts with the weights it ships with, and GRPO trains it on sums " +
        "of three numbers."}>
      <${TrainHere} /><//>`;
}

// With one update per batch the loss does not show progress: predict, then see the recorded runs.
function OneUpdate() {
  return html`<${Question} name="loss_value" ask="One update per batch, sixty steps, and the reward rises from a third to nine tenths. How did the loss change?"
    options=${[["falls", "It fell"], ["zero", "It stayed near 0"], ["rises", "It rose"]]}>
    ${(picked) => html`<${LossValue} picked=${picked} /><${Trial} name="updates" />`}<//>`;
}

function LossValue({ picked }) {
  const state = useAnswer("train", "loss_value", {});
  return html`<${Fetched} state=${state} height="8rem">${({ one, several }) => html`<${Verdict} picked=${picked} right=${one.loss < 0.1 ? "zero" : "falls"}>
    <p>The reward went from ${percent(one.reward[0])} to ${percent(one.reward[1])}; the largest |loss|
      was <b data-number="most-loss">${number(one.loss, 3)}</b>. With one update the ratio is exactly 1, so the loss is minus the mean advantage, which is 0,
      plus β times the KL. Its gradient is not 0; the gradient is what trains. The largest ratio was ${number(one.ratio, 4)} and the clip
      fraction ${percent(one.clipped)}; with four epochs they reached ${number(several.ratio, 1)} and ${percent(several.clipped, 1)}. A clip fraction of “0.1 to
      0.3” is not a target.</p>
  <//>`}
    <//>`;
}
