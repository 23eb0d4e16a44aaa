// The loss of one token, step by step.
import { html } from "htm/preact";
import { useApi } from "../api.js";
import { exact, number, percent, signed } from "../format.js";
import { Card, Fetched } from "../parts.js";
import { braced, Tex, value } from "../tex.js";
import { visible } from "../text.js";

const WITHOUT_CLIP = {
  weight: "the ratio only weights the gradient.", gate: "the gradient falls smoothly as the ratio leaves 1.", plain: "the ratio is used unchanged.",
};

// The surrogate's formula, as in grpo.core.loss.
function earned(token) {
  if (token.surrogate_kind === "weight") return `-\\text{sg}[${token.cap ? `\\min(\\rho,${value(token.cap, 3)})` : "\\rho"}]\\,A\\log p`;
  if (token.surrogate_kind === "gate") return `-\\tfrac{4}{\\tau}\\,\\sigma(\\tau(\\rho-1))A,\\quad\\tau=${value(token.gate, 3)}`;
  if (token.surrogate_kind === "plain") return "-\\rho A";
  if (token.limits === null) return "\\ell(\\rho,A)";
  return token.cap && token.advantage < 0
    ? `-\\max(\\min(\\rho A,\\ \\text{clip}(\\rho)A),\\ ${value(token.cap, 3)}A)`
    : "-\\min(\\rho A,\\ \\text{clip}(\\rho)A)";
}

function probabilities(token, recomputed) {
  if (recomputed) return [["probability", token.logp], ...(token.reference === null ? [] : [["under the reference", token.reference]])];
  return [["sampler", token.sampler], ["before the update", token.old], ["at this update", token.logp]];
}

function clipWords(token) {
  if (!token.clip) return "Not clipped: full gradient.";
  const where = token.clip < 0 ? "Clipped below" : token.advantage < 0 ? `Capped at ${exact(token.cap, 3)}` : "Clipped above";
  return `${where}: no gradient${token.kl !== null && token.beta > 0 && token.kl_in !== "reward" ? " from the reward; the KL term remains" : ""}.`;
}

// Recomputed tokens have one probability instead of three.
export function Worked({ url, recomputed = false }) {
  const state = useApi(url);
  return html`<${Fetched} state=${state} height="30rem">
    ${(token) => html`<${Card} class="worked-card" title=${html`Token ${token.position + 1} of ${token.length}`}>
      <p class="worked-token"><bdi class="untrusted" dir="ltr">${visible(token.piece || "·")}</bdi></p>
      <ol class="worked-steps">
        <li><h3>Ratio</h3>
          <${Tex} block>
            ${token.ratio_kind === "token"
              ? `\\rho=e^{\\log p-\\log p_{\\text{old}}}=e^{${value(token.logp)}-${braced(token.old)}}=${value(token.ratio, 5)}`
              : `\\rho=\\exp\\!\\big(\\text{mean}(\\log p-\\log p_{\\text{old}})\\big)=${value(token.ratio, 5)}`}
          <//>
        </li>
        <li><h3>Clip</h3>
          ${token.limits === null
            ? html`<p class="small soft">No clip: ${WITHOUT_CLIP[token.surrogate_kind] ?? html`the surrogate is <code>${token.surrogate_kind}</code>.`}
              ${token.surrogate_kind === "weight" && token.cap > 0 && html` Its cap is ${exact(token.cap, 3)}.`}</p>`
            : html`
          <${Tex} block>${`\\text{clip}(\\rho,${value(token.limits[0], 3)},${value(token.limits[1], 3)})=${value(token.clipped_ratio, 5)}`}<//>
          <p class="small soft">${clipWords(token)}</p>`}</li>
        <li><h3>Surrogate</h3>
          <${Tex} block>${`${earned(token)},\\quad A=${value(token.advantage)}`}<//>
          <${Tex} block>${`=${value(token.surrogate, 5)}`}<//></li>
        ${token.kl !== null && html`<li><h3>KL penalty</h3>
          <${Tex} block>${`\\beta\\,\\text{KL}_{${token.kl_kind}}=${value(token.beta, 3)}\\cdot${value(token.kl, 4)}`}<//>
          ${token.kl_in === "reward" && html`<p class="small soft">The KL penalty was subtracted from the reward and is not part of the loss.</p>`}</li>`}
        <li><h3>Share of the loss</h3>
          <${Tex} block>
            ${`\\frac{w}{D}\\big(${value(token.surrogate, 4)}${token.kl !== null && token.beta
              ? `+${value(token.beta, 3)}\\cdot${value(token.kl, 3)}`
              : ""}\\big)`}
          <//>
          <p class="small soft">w = ${token.aggregate === "sequence" ? `1/${token.length}, one over the completion's tokens` : "1"}; D
            = ${number(token.denominator)}</p>
          <p class="result num" data-number="share">${exact(token.share)}</p>
          ${token.left_out.length > 0 && html`<p class="small soft">Not included: ${token.left_out.join(" and ")}.</p>`}</li>
        <li><h3>Push on the log-probability</h3>
          <p class="result num" data-number="push">${signed(token.push, 6)}</p>
          <p class="small soft">−∂loss/∂logp, by autograd through <code>grpo.core.policy_loss</code></p></li>
      </ol>
      <dl class="facts small">
        ${probabilities(token, recomputed).map(([name, logp]) => html`<div><dt>${name}</dt><dd class="num">${percent(Math.exp(logp), 1)}</dd></div>`)}
        ${token.entropy !== null && html`<div><dt>entropy</dt><dd class="num">${exact(token.entropy, 3)} nats</dd></div>`}</dl>
    <//>`}<//>`;
}
