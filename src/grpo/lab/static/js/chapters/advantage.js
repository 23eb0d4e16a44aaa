// Chapter 3: the advantage, its baselines and their bias and variance.
import { html } from "htm/preact";
import { Ancestors, BaselineSlider, GroupSizes } from "./advantage-ancestors.js";
import { NanoUpdate, TabularUpdates } from "./advantage-update.js";
import { Batches, OwnBaseline, TwoPrompts } from "./advantage-batch.js";
import { GroupSliders, SameReward, StdConventions } from "./advantage-group.js";
import { Term } from "../glossary.js";
import { Code, Equation, Only, Section, Tex, useStyle } from "../lesson.js";
import { Link } from "../route.js";

export function Chapter() {
  useStyle("css/chapter-why.css", "css/chapter-advantage.css");
  return html`
    <${Section} title="Is 0.7 good?"><${SameReward} /><//>
    <${Section} id="build" title="Build a group"
      lead=${html`Eight answers to one question. Change one <${Term} of="reward">reward<//> and all <${Term} of="advantage">advantages<//> change.`}>
      <${GroupSliders} />
      <${Only} depth="math"><${Formula} /><//>
      <${Only} depth="code"><${Code} slug="advantage" source="group_advantages" open title="group_advantages computes the bars above" />
        <${Code} slug="advantage" source="credit" title="credit calls it in every training step" /><//>
      <p>The advantage is how far a reward lies above or below the group's average, in units of the group's typical distance.</p>
    <//>
    <${Section} title="Above and below">
      <div class="pair">
        <div class="tile above-tile"><h3>Better than its group</h3><p>The update pushes every token of the answer up.</p></div>
        <div class="tile below-tile"><h3>Worse than its group</h3><p>The update pushes every token down.</p></div>
      </div>
      <p>If all rewards are equal, whether all right or all wrong, nothing is
        learned. <${Link} to="/learn/advantage?r=1,1,1,1,1,1,1,1#build">Set all eight rewards to 1<//> and see the bars.</p>
    <//>
    <${Section} id="one" title="One update"
      lead=${html`One group of a small model and one <${Term} of="update">update<//>. How likely is each answer before and after?`}>
      <${NanoUpdate} /><//>
    <${Section} depth="math code" title="One update with five possible answers"
      lead="A policy over five answers. Every probability is visible, including those of answers that were not sampled.">
      <${TabularUpdates} /><//>
    <${Section} depth="math code" title="Where the baseline comes from"
      lead=${"Since REINFORCE in 1992, algorithms differ in the baseline they subtract from a reward. With three answers we can enumerate every possible " +
        "group, so bias and variance are exact."}>
      <${Ancestors} /><//>
    <${Section} title="Why a baseline adds no bias" depth="math"><${Derivation} /><//>
    <${Section} depth="math code" title="Is it unbiased?" lead="What normalising within the group does to length and direction of the gradient.">
      <${GroupSizes} /><//>
    <${Section} depth="math code" title="Which standard deviation?"
      lead="The population std divides by G, the sample std by G − 1. Papers and code disagree on which to use.">
      <${StdConventions} /><//>
    <${Section} depth="math code" title="The group's mean is an estimate"
      lead="A critic is trained to predict the value of a prompt. The group's mean estimates that value from G samples: no training, but noise.">
      <${OwnBaseline} /><//>
    <${Section} depth="math code" title="Why divide by a std, and by which one?"
      lead="Two prompts in one batch. Dividing by a std makes reward scales comparable. The std can be the group's or the batch's.">
      <${TwoPrompts} /><//>
    <${Section} title="Advantages of a whole run"
      lead=${html`All advantages of a recorded run. Groups without <${Term} of="signal">signal<//> have advantages of exactly 0.`}>
      <${Batches} /><//>`;
}

function Formula() {
  return html`<${Equation} tex=${"A_i=\\frac{r_i-\\frac1G\\sum_j r_j}{\\sqrt{\\frac1{G-1}\\sum_j(r_j-\\bar r)^2}+10^{-4}}"}
    spoken="A i equals r i minus the group mean, divided by the sample standard deviation of the group plus ten to the minus four" />
    <p class="small soft">As value functions: <${Tex}>A=Q-V<//>, the reward of the answer minus the value of the prompt. Here <${Tex}>Q<//> is the single
      reward <${Tex}>r_i<//> and <${Tex}>V<//> is the group mean. If all rewards of a group are equal, the advantage is exactly 0, not rounding noise divided
      by <${Tex}>10^{-4}<//>.</p>`;
}

function Derivation() {
  return html`<p>The gradient of the expected reward of a policy <${Tex}>\\pi<//> over answers <${Tex}>a<//>:</p>
    <${Equation} tex=${"\\nabla\\sum_a\\pi(a)\\,r(a)=\\sum_a\\pi(a)\\,r(a)\\,\\nabla\\log\\pi(a)=\\mathbb E\\big[r\\,\\nabla\\log\\pi\\big]"}
      spoken="The gradient of the sum over a of pi of a times r of a equals the expectation of r times the gradient of log pi" />
    <p>since <${Tex}>\\nabla\\pi=\\pi\\,\\nabla\\log\\pi<//>. So we can sample answers and weight each by its reward: REINFORCE. Now subtract any
      number <${Tex}>b<//> from the reward:</p>
    <${Equation}
      tex=${
        "\\mathbb E\\big[(r-b)\\nabla\\log\\pi\\big]=\\mathbb E\\big[r\\,\\nabla\\log\\pi\\big]-b\\sum_a\\nabla\\pi(a)=\\mathbb " +
          "E\\big[r\\,\\nabla\\log\\pi\\big]"
      }
      spoken=${"The expectation of r minus b times the gradient of log pi equals the expectation of r times the gradient of log pi, because the " +
        "probabilities sum to one and so their gradients sum to zero"} />
    <p>because probabilities sum to 1, so their gradients sum to 0. This holds for a <${Tex}>b<//> that does not depend on the answer. The group's mean does
      depend on it, since it contains <${Tex}>r_i<//>. That is the source of the factor 1 − 1/G below.</p>
    <${BaselineSlider} />`;
}
