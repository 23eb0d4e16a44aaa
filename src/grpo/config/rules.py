"""Rules for settings: the limits of a single one, and settings that contradict each other or have no effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.config.parse import shown
from grpo.config.presets import PRESETS, SURROGATES, Loss

if TYPE_CHECKING:
    from grpo.config.schema import Config, Critic, Lora


@dataclass(frozen=True)
class Limit:
    """A rule for one value, and how it reads after "must be"."""

    words: str
    holds: Callable[[Any], bool]


ZERO_OR_MORE = Limit("0 or more", lambda value: value >= 0)

_SETTINGS: Mapping[Limit, str] = {
    Limit("given, not empty", bool): "model system.device system.runs",
    Limit("at least 1", lambda value: value >= 1): """
        steps prompts_per_step group_size max_new_tokens batch_size loss.dynamic_sampling loss.correction_cap
        checkpoints.keep optimizer.epochs optimizer.minibatches evaluation.problems""",
    ZERO_OR_MORE: """
        seed checkpoint_every warmup_steps weight_decay loss.beta loss.refresh loss.entropy lora.rank
        critic.warmup_steps critic.clip critic.weight optimizer.warmup_steps optimizer.weight_decay
        evaluation.every evaluation.probes scoring.workers scoring.judge_retries scoring.judge_budget
        system.threads system.max_concurrent_completions system.token_budget system.token_groups""",
    Limit("above 0", lambda value: value > 0): """
        lr temperature epochs grad_clip loss.clip_high loss.gate_up loss.gate_down lora.alpha critic.lr
        optimizer.grad_clip scoring.seconds scoring.memory_gb scoring.judge_seconds""",
    Limit("above 0 and at most 1", lambda value: 0 < value <= 1): "loss.clip_low",
    Limit("above 0 and below 1", lambda value: 0 < value < 1): "dataset.heldout_share",
    Limit("0 or more and below 1", lambda value: 0 <= value < 1): "optimizer.adam_beta1 optimizer.adam_beta2",
    Limit("0 or more and at most 1", lambda value: 0 <= value <= 1): "loss.overlong scoring.most_failures",
    Limit("between 0 and 1", lambda value: 0 <= value <= 1): "critic.gamma critic.lam",
    Limit("above 1, or 0 for none", lambda value: value == 0 or value > 1): "loss.cap",
}

LIMITS: Mapping[str, Limit] = {path: limit for limit, paths in _SETTINGS.items() for path in paths.split()}
"""By the path of the setting; those of `grpo train` and `grpo sft` alike."""


def contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """(setting, what is wrong with it)

    >>> from grpo.config import Config
    >>> list(contradictions(Config(loss=Loss(beta=0.0, refresh=10))))
    [('loss.refresh', 'there is no reference to refresh while loss.beta is 0')]
    """
    yield from _of_batch(config)
    loss = config.loss
    for found in (_of_names(loss), _of_credit(loss), _of_update(loss, config.prompts_per_step)):
        for name, why in found:
            yield f"loss.{name}", why
    if config.lora.rank and loss.refresh:
        why = "with adapters the reference is the model without them, which stays as it is; set it to 0"
        yield "loss.refresh", why


def idle(config: Config) -> Iterator[str]:
    """What was set otherwise than the preset has it and does nothing beside the other settings; one line each.

    >>> from dataclasses import replace
    >>> from grpo.config import Config
    >>> list(idle(Config(algorithm="dr_grpo", loss=replace(PRESETS["dr_grpo"].settings, kl="k2"))))
    ['loss.kl is set and does nothing: loss.beta is 0']
    """
    loss, preset = config.loss, PRESETS[config.algorithm].settings
    for names, because in _idle_of_loss(loss, config.optimizer.epochs * config.optimizer.minibatches):
        for name in names:
            if getattr(loss, name) != getattr(preset, name):
                yield f"loss.{name} is set and does nothing: {because}"
    for name in _set_in(config.lora):
        if not config.lora.rank:
            yield f"lora.{name} is set and does nothing: lora.rank is 0"
    for name in _set_in(config.critic):
        if loss.baseline != "value":
            yield f'critic.{name} is set and does nothing: loss.baseline is "{loss.baseline}"'
        elif name == "weight" and config.critic.model == "separate":
            yield "critic.weight is set and does nothing: critic.model is separate"


def _set_in(section: Lora | Critic) -> list[str]:
    """What differs from its default."""
    default = type(section)()
    return [name for name, value in vars(section).items() if value != getattr(default, name)]


def _idle_of_loss(loss: Loss, updates: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """(fields of the loss that do nothing, why)"""
    clips, gates = ("clip_low", "clip_high"), ("gate_up", "gate_down")
    if loss.surrogate in SURROGATES:
        others = {"clip": gates, "gate": clips}.get(loss.surrogate, (*clips, *gates))
        yield others, f'loss.surrogate is "{loss.surrogate}"'
        used = {"clip": clips, "gate": gates}.get(loss.surrogate, ())
        if updates == 1:
            yield used, "optimizer.epochs x optimizer.minibatches is 1, and with one update the ratio is 1"
    if not loss.beta:
        yield ("kl", "kl_in"), "loss.beta is 0"
    if loss.correction == "none":
        yield ("correction_cap",), 'loss.correction is "none"'


def _of_batch(config: Config) -> Iterator[tuple[str, str]]:
    chosen = {"baseline": config.loss.baseline, "scale": config.loss.scale}
    for name, value in chosen.items():
        if config.group_size == 1 and value in ("mean", "leave_one_out", "length_weighted", "group_std"):
            yield "group_size", f'must be at least 2 with {name} "{value}"; got 1'
        if config.group_size * config.prompts_per_step == 1 and value in ("batch", "batch_std"):
            yield "group_size", f'one completion a step has no {name} "{value}"; ask for at least 2'
    if config.optimizer.minibatches > config.prompts_per_step:
        prompts = f"prompts_per_step, which is {config.prompts_per_step}"
        got = f"a minibatch holds whole groups; got {config.optimizer.minibatches}"
        yield "optimizer.minibatches", f"must be at most {prompts}: {got}"


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


def _of_update(loss: Loss, prompts_per_step: int) -> Iterator[tuple[str, str]]:
    if loss.kl == "k3_ratio" and loss.kl_in == "reward":
        yield "kl", 'a reward has no policy ratio, and loss.kl_in is "reward"; use k1, k2 or k3'
    if loss.refresh and not loss.beta:
        yield "refresh", "there is no reference to refresh while loss.beta is 0"
    if loss.cap and loss.surrogate in ("gate", "plain"):
        yield "cap", f'loss.surrogate "{loss.surrogate}" has none; set it to 0'
    if not loss.cap and loss.surrogate == "weight":
        yield "surrogate", '"weight" needs a bound in loss.cap, such as 5'
    if loss.dynamic_sampling > 1 and loss.baseline in ("batch", "value"):
        why = f'with loss.baseline "{loss.baseline}" every group has signal, so none is replaced; set it to 1'
        yield "dynamic_sampling", why
    if loss.dynamic_sampling > 1 and int(loss.dynamic_sampling * prompts_per_step) == prompts_per_step:
        most = f"{loss.dynamic_sampling:g} x prompts_per_step, which is {prompts_per_step}"
        yield "dynamic_sampling", f"{most}, has no room for one more group"
