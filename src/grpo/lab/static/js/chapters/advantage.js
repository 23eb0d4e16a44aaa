// Chapter 3: what a reward is compared with, and what that does.
import { html } from "htm/preact";
import { Ancestors, BaselineSlider, GroupSizes } from "./advantage-ancestors.js";
import { NanoUpdate, TabularUpdates } from "./advantage-update.js";
import { Batches, OwnBaseline, TwoPrompts } from "./advantage-batch.js";
import { GroupSliders, SameReward, StdConventions } from "./advantage-group.js";
import { Code, Equation, Only, Section, Tex } from "../lesson.js";

export function Chapter() {
  return html`
    <${Section} title="Build your own group" lead="Eight answers to one question. Move a reward and watch all the others: nobody's advantage is their own.">
      <${GroupSliders} />
      <${Only} depth="math"><${Formula} /><//>
      <${Only} depth="code"><${Code} slug="advantage" source="group_advantages" open title="group_advantages, which computed every bar above" /><${Code} slug="advantage" source="credit" title="credit, which calls it in every training step" /><//>
    <//>
    <${Section} title="Above and below">
      <div class="pair">
        <div class="tile above-tile"><h3>${"A > 0"}: better than its group</h3><p>Every token of the answer becomes more likely. Do more of this.</p></div>
        <div class="tile below-tile"><h3>${"A < 0"}: worse than its group</h3><p>Every token of the answer becomes less likely. Do less of this.</p></div>
      </div>
      <p>And A = 0 where all rewards are equal: nothing to prefer, nothing learned. All right or all wrong makes no difference. <a href="/learn/advantage?r=1,1,1,1,1,1,1,1">Make all eight right</a>, and look at the bars.</p>
      <${SameReward} />
    <//>
    <${Section} id="one" title="One update" lead="A group of the real model nano, one real optimizer step. How likely was each answer before, and after?"><${NanoUpdate} /><//>
    <${Section} title="The same on five answers" lead="A policy with five answers and nothing else: here every probability can be seen, also those of answers that were not drawn."><${TabularUpdates} /><//>
    <${Section} title="Where the baseline comes from" lead="Thirty years of answers to one question: what should a reward be compared with? Three answers, every possible group gone through, so bias and variance are exact."><${Ancestors} /><//>
    <${Section} title="Why a baseline costs nothing" depth="math"><${Derivation} /><//>
    <${Section} title="Is it unbiased?" lead="It is often said that normalising within the group gives an unbiased estimate. It does not."><${GroupSizes} /><//>
    <${Section} title="Which standard deviation?" lead="Divide by G or by G − 1? Both are called “the std”, and papers and code disagree."><${StdConventions} /><//>
    <${Section} title="The group's mean is a guess" lead="A critic is trained to know what a prompt is worth. The group's mean is a sample of it: free, and noisy."><${OwnBaseline} /><//>
    <${Section} title="Why divide at all? And by whose spread?" lead="Two prompts in one batch. The std evens out what they pay; whose std it is decides what is compared with what."><${TwoPrompts} /><//>
    <${Section} title="Advantages of a whole run" lead="Every advantage of the recorded run: 10,240 of them. One reads that they are normally distributed."><${Batches} /><//>`;
}

function Formula() {
  return html`<${Equation} tex=${"A_i=\\frac{r_i-\\frac1G\\sum_j r_j}{\\sqrt{\\frac1{G-1}\\sum_j(r_j-\\bar r)^2}+10^{-4}}"} spoken="A i equals r i minus the mean of the group, divided by the sample standard deviation of the group plus ten to the minus four" />
    <p class="small soft">In the words of value functions, <${Tex}>A=Q-V<//>: what the answer earned, less what the prompt is worth. Here <${Tex}>Q<//> is the one reward <${Tex}>r_i<//> and <${Tex}>V<//> the mean of the group. For a group without spread the advantage is exactly 0, not rounding noise divided by <${Tex}>10^{-4}<//>.</p>`;
}

function Derivation() {
  return html`<p>The gradient of the expected reward of a policy <${Tex}>\\pi<//> over answers <${Tex}>a<//>:</p>
    <${Equation} tex=${"\\nabla\\sum_a\\pi(a)\\,r(a)=\\sum_a\\pi(a)\\,r(a)\\,\\nabla\\log\\pi(a)=\\mathbb E\\big[r\\,\\nabla\\log\\pi\\big]"} spoken="The gradient of the sum over a of pi of a times r of a equals the expectation of r times the gradient of log pi" />
    <p>since <${Tex}>\\nabla\\pi=\\pi\\,\\nabla\\log\\pi<//>. So answers can be drawn, and each weighed by its reward: REINFORCE. Now take any number <${Tex}>b<//> off the reward:</p>
    <${Equation} tex=${"\\mathbb E\\big[(r-b)\\nabla\\log\\pi\\big]=\\mathbb E\\big[r\\,\\nabla\\log\\pi\\big]-b\\sum_a\\nabla\\pi(a)=\\mathbb E\\big[r\\,\\nabla\\log\\pi\\big]"} spoken="The expectation of r minus b times the gradient of log pi equals the expectation of r times the gradient of log pi, because the probabilities sum to one and so their gradients sum to zero" />
    <p>because probabilities always sum to 1, and so their gradients to 0. That holds for a <${Tex}>b<//> that does not depend on the answer it is taken from. The group's mean does: <${Tex}>r_i<//> is in it, which is where the factor below comes from.</p>
    <${BaselineSlider} />`;
}
