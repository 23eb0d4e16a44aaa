"""Notation and prerequisites: every symbol with its name in the code, and four basics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from grpo.core import group_advantages, kl_estimate, policy_loss
from grpo.lab.chapters import story
from grpo.lab.chapters.query import Query, number, numbers


@dataclass(frozen=True)
class Symbol:
    tex: str
    spoken: str
    meaning: str
    code: str
    """Its name in that function's source."""
    where: str
    """The function, as module:name."""
    chapter: str


SYMBOLS: tuple[Symbol, ...] = (
    Symbol("q", "q", "A prompt, also called a question or a state.", "prompt", "grpo.types:Problem", "why"),
    Symbol("o_i", "o i", "The i-th answer to it: a completion.", "completions", "grpo.types:Group", "group"),
    Symbol("o_{i,t}", "o i t", "Token t of that answer.", "tokens", "grpo.types:Completion", "loss"),
    Symbol("G", "G", "Answers to each prompt: the size of a group.", "group_size", "grpo.config:Config", "group"),
    Symbol("B", "B", "Prompts in a step.", "prompts_per_step", "grpo.config:Config", "train"),
    Symbol("r_i", "r i", "Reward of an answer.", "rewards_PG", "grpo.core:group_advantages", "credit"),
    Symbol("\\bar r", "r bar", "Mean reward of the group.", "mean_P1", "grpo.core:group_advantages", "advantage"),
    Symbol("\\sigma", "sigma", "Standard deviation of the group's rewards, over G − 1.", "std_P1",
           "grpo.core:group_advantages", "advantage"),
    Symbol("A_i", "A i", "Advantage: how much better than its group.", "centred_PG", "grpo.core:group_advantages",
           "advantage"),
    Symbol("\\pi_\\theta", "pi theta", "The policy: the model in training, with weights θ.", "logp",
           "grpo.core:policy_loss", "loss"),
    Symbol("\\pi_{\\text{old}}", "pi old", "The policy that sampled the batch.", "old_logp", "grpo.core:policy_loss",
           "loss"),
    Symbol("\\pi_{\\text{ref}}", "pi ref", "The reference: the model before training.", "ref_logp",
           "grpo.core:policy_loss", "loss"),
    Symbol("\\rho", "rho", "Ratio of new to old probability of a token.", "ratio", "grpo.core:policy_loss", "loss"),
    Symbol("\\varepsilon", "epsilon", "Clip range: 1 ± ε.", "clip_high", "grpo.core:policy_loss", "loss"),
    Symbol("\\beta", "beta", "Coefficient of the KL penalty.", "beta", "grpo.core:policy_loss", "loss"),
    Symbol("\\mathrm{KL}", "K L", "Divergence of the policy from the reference, in nats.", "kind",
           "grpo.core:kl_estimate", "loss"),
    Symbol("V_\\phi", "V phi", "A critic's prediction of the final reward.", "values", "grpo.core:gae", "credit"),
    Symbol("\\gamma,\\lambda", "gamma, lambda", "GAE's discount, and its weight of later TD errors.", "gamma",
           "grpo.core:gae", "credit"),
    Symbol("\\eta", "eta", "Learning rate.", "lr", "grpo.config:Config", "train"),
    Symbol("p", "p", "Probability of a right answer.", "pass_rate", "grpo.core:zero_signal_chance", "group"),
)  # fmt: skip
AXES: tuple[tuple[str, str], ...] = (
    ("P", "prompts"),
    ("G", "answers of a group"),
    ("N", "completions of a batch, all groups together"),
    ("L", "tokens of a completion"),
    ("T", "tokens of a batch in one packed row"),
    ("V", "vocabulary, or the answers of a tabular policy"),
    ("K", "parts of a reward"),
)


def symbols(query: Query) -> dict[str, Any]:
    rows = [vars(symbol) for symbol in SYMBOLS]
    return {"symbols": rows, "axes": [{"letter": letter, "meaning": meaning} for letter, meaning in AXES]}


def softmax(query: Query) -> dict[str, Any]:
    """Logits to probabilities to log-probabilities, at a temperature."""
    logits_V = torch.tensor(numbers(query, "logits", (2.0, 1.0, 0.0), -5, 5, least=3, most=3), dtype=torch.float64)
    temperature = number(query, "t", 1.0, 0.1, 5)
    logp_V = torch.log_softmax(logits_V / temperature, dim=0)
    entropy = -(logp_V.exp() * logp_V).sum().item()
    return {
        "logits": logits_V.tolist(),
        "probabilities": logp_V.exp().tolist(),
        "logp": logp_V.tolist(),
        "entropy": entropy,
    }


def sequence(query: Query) -> dict[str, Any]:
    """The probability of a text: the product of its tokens' probabilities, as a sum of logarithms."""
    chances = numbers(query, "p", (0.9, 0.5, 0.8, 0.95), 0.01, 1, least=1, most=8)
    logs = torch.tensor(chances, dtype=torch.float64).log()
    return {"p": chances, "logs": logs.tolist(), "sum": logs.sum().item(), "product": logs.sum().exp().item()}


def slope(query: Query) -> dict[str, Any]:
    """A gradient by autograd: the direction in which log p of the first of three answers grows."""
    logits_V = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    [gradient_V] = torch.autograd.grad(logits_V.log_softmax(0)[0], logits_V)
    return {"probabilities": logits_V.detach().softmax(0).tolist(), "gradient": gradient_V.tolist()}


ANSWERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "symbols": symbols,
    "softmax": softmax,
    "sequence": sequence,
    "slope": slope,
    "story": story.story,
}
SOURCES: dict[str, Callable[..., Any]] = {
    "group_advantages": group_advantages,
    "policy_loss": policy_loss,
    "kl_estimate": kl_estimate,
    "softmax": softmax,
    "story": story.story,
}
TRIALS: dict[str, dict[str, Any]] = {}
