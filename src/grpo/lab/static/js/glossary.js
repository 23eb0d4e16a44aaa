// Terms of the field, each explained in one or two sentences where it is used: hover, focus or tap.
import { html } from "htm/preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";

export const GLOSSARY = {
  advantage: { title: "Advantage", text: "An answer's reward minus its group's mean, in standard deviations. Above 0 the answer is pushed up, below 0 down." },
  baseline: { title: "Baseline", text: "The score that counts as average. GRPO uses the mean reward of the group." },
  clip: { title: "Clip", text: "A limit on how far one batch may change a token's probability. Beyond the limit the token gets no further push." },
  completion: { title: "Answer", text: "The text that a model writes after a prompt; also called a completion." },
  critic: { title: "Critic", text: "A second network that predicts the reward of an unfinished answer. PPO trains one; GRPO needs none." },
  entropy: { title: "Entropy", text: "How undecided the model is about the next token. 0 means that it is certain." },
  epoch: { title: "Epoch", text: "One pass of training over a batch of sampled answers." },
  gradient: { title: "Gradient", text: "For every weight of the model, the direction and the strength of its next change." },
  group: { title: "Group", text: "Several answers of the model to the same prompt. They are scored and compared with each other." },
  KL: { title: "KL divergence", text: "A distance between two models: how differently they choose tokens. 0 means that they agree." },
  "learning-rate": { title: "Learning rate", text: "The size of each update of the weights. Too large, and training breaks; too small, and nothing happens." },
  "log-probability": { title: "Log-probability", text: "The logarithm of a probability. Log-probabilities of a text's tokens add up to that of the text." },
  loss: { title: "Loss", text: "The number that training makes smaller. In GRPO its value says little; its gradient moves the model." },
  policy: { title: "Policy", text: "The model that is trained. It gives every possible next token a probability." },
  prompt: { title: "Prompt", text: "The text that the model answers: here, a problem." },
  push: { title: "Push", text: "How strongly the update moves one token's probability. In GRPO: advantage ÷ tokens of the answer ÷ answers of the group." },
  ratio: { title: "Ratio", text: "A token's probability now, divided by its probability when the answer was sampled. 1 means no change." },
  reference: { title: "Reference", text: "A frozen copy of the model from before training. A penalty can keep the policy near it." },
  reward: { title: "Reward", text: "The score of an answer, often 1 for right and 0 for wrong. A program or a person gives it." },
  rollout: { title: "Rollout", text: "The part of a step in which the model writes its answers." },
  sampling: { title: "Sampling", text: "Drawing each next token at random, by the model's probabilities. That is why answers to one prompt differ." },
  sft: { title: "Supervised fine-tuning", text: "Training that makes a model imitate given answers, token by token." },
  signal: { title: "Signal", text: "A group has signal if its rewards differ. If all are equal, every advantage is 0 and nothing is learned." },
  "standard-deviation": { title: "Standard deviation", text: "The typical distance of numbers from their mean." },
  step: { title: "Step", text: "One round of training: sample answers, score them, update the model." },
  temperature: { title: "Temperature", text: "How varied sampling is. A low one picks nearly always the most likely token." },
  token: { title: "Token", text: "A piece of text that a model reads or writes at once: a word, a part of one, or a character." },
  update: { title: "Update", text: "One change of the model's weights, a small move along the gradient." },
  value: { title: "Value", text: "The reward that is expected from here on. A critic predicts it." },
};

const MARGIN = 8; // px between the explanation and the edge of the screen

// A word of the glossary: html`<${Term} of="advantage">advantages<//>`.
export const Term = ({ of, children }) => html`<${Explained} ...${GLOSSARY[of]}>${children ?? GLOSSARY[of].title.toLowerCase()}<//>`;

// Words with a dotted underline and their explanation.
export function Explained({ title, text, children }) {
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  const id = useId();
  useEffect(() => {
    if (!open) return;
    const close = (event) => (event.type === "keydown" ? event.key === "Escape" : event.type === "scroll" || !box.current?.contains(event.target)) &&
      setOpen(false);
    const kinds = ["keydown", "pointerdown", "scroll"];
    kinds.forEach((kind) => addEventListener(kind, close, { passive: true }));
    return () => kinds.forEach((kind) => removeEventListener(kind, close));
  }, [open]);
  const byMouse = (next) => (event) => event.pointerType === "mouse" && setOpen(next);
  const press = (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), setOpen(true));
  // A span: a button would not wrap with the line, and “'s” after it could begin the next one.
  return html`<span class="term-box" ref=${box} onPointerEnter=${byMouse(true)} onPointerLeave=${byMouse(false)}>
    <span class="term" role="button" tabIndex="0" aria-describedby=${open ? id : undefined} onFocus=${() => setOpen(true)} onBlur=${() => setOpen(false)}
      onClick=${() => setOpen(true)} onKeyDown=${press}>
      ${children}</span>
    ${open && html`<${Explanation} id=${id} title=${title} text=${text} />`}</span>`;
}

// In the top layer, so that no scrolling parent cuts it off: below its word, or above where there is no room.
function Explanation({ id, title, text }) {
  const tip = useRef(null);
  useLayoutEffect(() => {
    const here = tip.current;
    here.showPopover();
    const word = here.previousElementSibling.getClientRects()[0];
    const { width, height } = here.getBoundingClientRect();
    const room = document.documentElement.clientWidth - MARGIN - width;
    here.style.left = `${Math.max(MARGIN, Math.min(room, word.left))}px`;
    here.style.top = `${word.bottom + height + MARGIN > innerHeight ? word.top - height : word.bottom}px`;
  }, []);
  return html`<span class="term-tip" role="tooltip" popover="manual" id=${id} ref=${tip}><b>${title}</b> <span>${text}</span></span>`;
}
