"""Settings of the objective that cannot work together, each told in one line that names both."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo.algorithms import SURROGATES, Loss
from grpo.flags import shown


def contradictions(loss: Loss, prompts_per_step: int) -> Iterator[tuple[str, str]]:
    """(field of the loss, what is wrong with it)

    >>> list(contradictions(Loss(beta=0.0, refresh=10), 16))
    [('refresh', 'there is no reference to refresh while loss.beta is 0')]
    """
    yield from _of_names(loss)
    yield from _of_credit(loss)
    if loss.kl == "k3_ratio" and loss.kl_in == "reward":
        yield "kl", 'a reward has no policy ratio, and loss.kl_in is "reward"; use k1, k2 or k3'
    if loss.refresh and not loss.beta:
        yield "refresh", "there is no reference to refresh while loss.beta is 0"
    if loss.cap and loss.surrogate in ("gate", "plain"):
        yield "cap", f'loss.surrogate "{loss.surrogate}" has none; set it to 0'
    if not loss.cap and loss.surrogate == "weight":
        yield "surrogate", '"weight" needs a bound in loss.cap, such as 5'
    if loss.refill > 1 and loss.baseline in ("batch", "value"):
        yield "refill", f'with loss.baseline "{loss.baseline}" every group has signal, so none is replaced; set it to 1'
    if loss.refill > 1 and int(loss.refill * prompts_per_step) == prompts_per_step:
        yield (
            "refill",
            f"{loss.refill:g} x prompts_per_step, which is {prompts_per_step}, has no room for one more group",
        )


def _of_names(loss: Loss) -> Iterator[tuple[str, str]]:
    if loss.surrogate not in SURROGATES and not re.fullmatch(r"[\w.]+:\w+", loss.surrogate):
        yield "surrogate", f"no {shown(loss.surrogate)}; use {', '.join(SURROGATES)}, or a function as module:name"
    for part in filter(None, loss.weights.split(",")):
        if not re.fullmatch(r"\s*[\w.-]+\s*=\s*-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", part):
            yield "weights", f"{shown(part)} is no weight; write correct=1,format=0.2"


def _of_credit(loss: Loss) -> Iterator[tuple[str, str]]:
    if loss.baseline == "value" and loss.scale == "group_std":
        yield "scale", 'loss.baseline "value" compares no groups; use "batch_std" or "none"'
    if loss.credit == "process" and loss.scale == "batch_std" and loss.baseline != "value":
        yield "scale", 'loss.credit "process" normalises in the group; use "group_std" or "none"'
    if loss.credit == "process" and loss.baseline not in ("mean", "value"):
        yield "baseline", 'loss.credit "process" takes the mean of all step rewards of the group, or a critic: "value"'
    if loss.credit == "process" and loss.baseline != "value" and loss.beta and loss.kl_in == "reward":
        yield "kl_in", 'loss.credit "process" normalises the step rewards alone; use "loss"'
    if loss.credit == "process" and (loss.weights or loss.overlong):
        yield "credit", '"process" rewards steps, so loss.weights and loss.overlong have no part to change'
    if loss.parts == "normalise":
        if loss.credit == "process":
            yield "parts", 'loss.credit "process" rewards steps, not parts; use "sum"'
        if loss.baseline != "mean" or loss.scale != "group_std":
            yield "parts", '"normalise" goes with loss.baseline "mean" and loss.scale "group_std"'
        if loss.beta and loss.kl_in == "reward":
            yield "parts", '"normalise" has no place for a KL divergence; set loss.kl_in to "loss"'
