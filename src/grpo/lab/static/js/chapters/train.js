// Chapter 7: real runs, several seeds each; knobs, comparisons, and a clinic.
import { html } from "htm/preact";
import { Clinic, SymptomTable } from "./train-clinic.js";
import { Convergence, Drift, Drifted, Smoothness } from "./train-compare.js";
import { Dashboard, Hyperparameters, MetricRanges, Tips } from "./train-knobs.js";
import { Listings } from "./train-listings.js";
import { Code, Fetched, Only, Question, Section, Trial, Verdict, useAnswer } from "../lesson.js";
import { number, percent } from "../format.js";

export function Chapter() {
  return html`
    <${Section} title="PPO and GRPO, side by side" lead="It is said that GRPO trains more smoothly, because a critic is noisy while it learns. Both, on the same model and task, with five seeds each: the line is the mean, the band one standard deviation.">
      <${Trial} name="ppo-and-grpo" /><${Smoothness} />
      <${Only} depth="code"><${Code} slug="train" source="perform" title="perform, which trained this" /><${Code} slug="train" source="smoothness" /><//>
    <//>
    <${Section} title="Tune it yourself" lead="Three knobs, trained for real: how far an update may go (ε), how strong the pull back is (β), how many answers there are to a prompt (G). Every arm samples 128 answers a step, so that more per prompt means fewer prompts."><${Dashboard} /><//>
    <${Section} title="One update or several" lead="Sampling is dear, so it is tempting to learn from a batch more than once. Only then do ratios leave 1, and only then does clipping do anything.">
      <${OneUpdate} /><${Trial} name="updates" /><//>
    <${Section} title="How far it drifts" lead="Nothing holds the policy near the model it began as, except β. Two hundred steps."><${Drift} /><${Trial} name="kl-over-beta" /><${Drifted} /><//>
    <${Section} title="Where it ends" depth="math code"><${Convergence} /><//>
    <${Section} title="What to watch" lead="Four numbers that a tutorial gives ranges for, beside what sound runs measured."><${MetricRanges} /><//>
    <${Section} title="The clinic" lead="Six runs with one thing wrong with each. Look at the curves, say what it is, and see what the record shows."><${Clinic} /><//>
    <${Section} title="What is said to help"><${SymptomTable} /><//>
    <${Section} title="Every knob, and where its number comes from"><${Hyperparameters} /><${Tips} /><//>
    <${Section} title="Mistakes in a listing" depth="code" lead="A tutorial's GRPO trainer, in Python and in Rust, looks right at first sight. Seven things to learn from it, in our words; what can be run is run beside the engine."><${Listings} /><//>`;
}

// With one update per batch the loss says nothing of progress: predict, then look at what was trained.
function OneUpdate() {
  return html`<${Question} name="loss_value" ask="One update per batch, sixty steps, reward up from a third to nine tenths. What did the loss do?" options=${[["falls", "It fell, of course"], ["zero", "It stayed near 0"], ["rises", "It rose"]]}>${(picked) => html`<${LossValue} picked=${picked} />`}<//>`;
}

function LossValue({ picked }) {
  const state = useAnswer("train", "loss_value", {});
  return html`<${Fetched} state=${state} height="8rem">${({ one, several }) => html`<${Verdict} picked=${picked} right=${one.loss < 0.1 ? "zero" : "falls"}>
    <p>The reward went from ${percent(one.reward[0])} to ${percent(one.reward[1])}; the loss was never further from 0 than <b data-number="most-loss">${number(one.loss, 3)}</b>. With one update the ratio is exactly 1, so the loss is minus the mean advantage, which is 0, plus β times the KL. Its gradient is not 0, and that is what trains. The largest ratio was ${number(one.ratio, 4)} and the share clipped ${percent(one.clipped)}; with four passes they reached ${number(several.ratio, 1)} and ${percent(several.clipped, 1)}. A clip share of “0.1 to 0.3” is nobody's target.</p><//>`}<//>`;
}
