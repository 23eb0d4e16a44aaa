"""Rules for settings: limits of a single field, combinations that are refused, combinations that get a warning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from grpo.config.leaf import shown
from grpo.config.presets import PRESETS, SURROGATES
from grpo.config.sections import Episodes, Loss
from grpo.errors import one_line

if TYPE_CHECKING:
    from grpo.config.schema import Config
    from grpo.config.sections import Critic, Lora, Scale


@dataclass(frozen=True)
class Limit:
    """A rule for one value, and its words after "must be"."""

    words: str
    holds: Callable[[Any], bool]


ZERO_OR_MORE = Limit("0 or more", lambda value: value >= 0)

_SETTINGS: Mapping[Limit, str] = {
    Limit("given, not empty", bool): "model system.device system.runs",
    Limit("at least 1", lambda value: value >= 1): """
        steps prompts_per_step group_size max_new_tokens batch_size loss.dynamic_sampling loss.correction_cap
        checkpoints.keep optimizer.epochs optimizer.minibatches evaluation.problems scale.gpus scale.nodes
        episodes.max_turns episodes.max_observation_tokens""",
    ZERO_OR_MORE: """
        seed checkpoint_every warmup_steps weight_decay loss.beta loss.refresh loss.entropy loss.turn_weight lora.rank
        critic.warmup_steps critic.clip critic.weight optimizer.warmup_steps optimizer.weight_decay
        evaluation.every evaluation.probes scoring.workers scoring.judge_retries scoring.judge_budget
        dataset.max_prompt_tokens system.max_concurrent_completions system.token_budget
        system.token_groups scale.restarts episodes.max_turn_tokens episodes.max_calls episodes.max_seconds""",
    Limit("above 0", lambda value: value > 0): """
        lr temperature epochs grad_clip loss.clip_high loss.gate_up loss.gate_down lora.alpha critic.lr
        optimizer.grad_clip scoring.seconds scoring.memory_gb scoring.judge_seconds scale.timeout scale.join_timeout
        episodes.tool_seconds""",
    # Libraries that cannot start their threads end the process, without an error of Python.
    Limit("between 0 and 1024", lambda value: 0 <= value <= 1024): "system.threads",
    Limit("at least 1e-12", lambda value: value >= 1e-12): "loss.std_eps",
    Limit("above 0 and at most 1", lambda value: 0 < value <= 1): "loss.clip_low",
    Limit("above 0 and below 1", lambda value: 0 < value < 1): "dataset.heldout_share",
    Limit("0 or more and below 1", lambda value: 0 <= value < 1): "optimizer.adam_beta1 optimizer.adam_beta2",
    Limit("0 or more and at most 1", lambda value: 0 <= value <= 1): "loss.overlong scoring.most_failures",
    Limit("between 0 and 1", lambda value: 0 <= value <= 1): "critic.gamma critic.lam loss.turn_gamma",
    Limit("above 1, or 0 for none", lambda value: value == 0 or value > 1): "loss.cap",
}

LIMITS: Mapping[str, Limit] = {path: limit for limit, paths in _SETTINGS.items() for path in paths.split()}
"""By the field's path; for `grpo train` and `grpo sft`."""


def contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """(field, why its value cannot work with the others)

    >>> from grpo.config import Config
    >>> list(contradictions(Config(loss=Loss(beta=0.0, refresh=10))))
    [('loss.refresh', 'there is no reference model to refresh while loss.beta is 0; set it to 0')]
    """
    yield from _of_batch(config)
    loss = config.loss
    for found in (_of_names(loss), _of_credit(loss), _of_turns(loss), _of_update(loss, config.prompts_per_step)):
        for name, why in found:
            yield f"loss.{name}", why
    if config.episodes.tools and config.episodes.env:
        yield "episodes.tools", "cannot go with episodes.env, which has tools of its own; leave out one of them"
    if config.lora.rank and loss.refresh:
        yield "loss.refresh", "with LoRA the reference is the model without adapters, which never changes; set it to 0"


def of_scale(scale: Scale) -> Iterator[tuple[str, str]]:
    """(field of `scale`, why its value cannot work)

    >>> from grpo.config.sections import Scale
    >>> list(of_scale(Scale(nodes=2, join="gpu-1")))
    [('scale.join', 'has no port; write HOST:PORT, such as "gpu-1:29500"')]
    """
    for name, value in vars(scale).items():
        limit = LIMITS.get(f"scale.{name}")
        if limit and not limit.holds(value):
            yield f"scale.{name}", f"must be {limit.words}; got {shown(value)}"
    host, _, port = scale.join.rpartition(":")
    if scale.join and not (host and port.isdecimal() and 0 < int(port) < 2**16):
        yield "scale.join", f'has no port; write HOST:PORT, such as "{one_line(host or port, 60)}:29500"'
    if scale.join and scale.nodes == 1:
        yield "scale.join", "has no effect on one host; add --nodes N, the number of hosts"


def warnings(config: Config) -> Iterator[str]:
    """One line for each setting that has no effect, or an effect that is rarely wanted.

    >>> from grpo.config import Config
    >>> list(warnings(Config(algorithm="dr_grpo", loss=Loss(kl="k2"))))
    ['loss.kl has no effect: loss.beta is 0']
    """
    for name, because in _without_effect(config):
        yield f"{name} has no effect: {because}"
    yield from unused_in_lora(config.lora)
    loss = config.loss
    if loss.beta and loss.kl == "k1" and loss.kl_in == "loss":
        yield (
            'loss.kl "k1" in the loss has an expected gradient of zero, so it does not hold the policy near the '
            'reference; use k2 or k3, or set loss.kl_in to "reward"'
        )
    if loss.ratio == "product" and loss.surrogate in SURROGATES:
        yield (
            'loss.ratio "product" multiplies the ratios of all tokens: its variance grows exponentially with the '
            'length of a completion; use "token" or "sequence" unless completions are short'
        )


def _without_effect(config: Config) -> Iterator[tuple[str, str]]:
    """(field that differs from its preset or default, why it has no effect)"""
    loss, preset = config.loss, PRESETS[config.algorithm].settings
    for names, because in _unused_in_loss(loss, config.optimizer.epochs * config.optimizer.minibatches):
        for name in names:
            if getattr(loss, name) != getattr(preset, name):
                yield f"loss.{name}", because
    for name in _changed_in(config.critic):
        if loss.baseline != "value":
            yield f"critic.{name}", f'loss.baseline is "{loss.baseline}"'
        elif name == "weight" and config.critic.model == "separate":
            yield "critic.weight", 'critic.model is "separate"'
    for name in ("chat_template", "chat_template_kwargs"):
        if getattr(config.dataset, name) and not config.dataset.chat:
            yield f"dataset.{name}", "dataset.chat is off"


def unused_in_lora(lora: Lora) -> Iterator[str]:
    """One line for each setting of adapters in a run without adapters."""
    for name in _changed_in(lora) if not lora.rank else ():
        yield f"lora.{name} has no effect: lora.rank is 0"


def unused_in_episodes(episodes: Episodes) -> Iterator[str]:
    """One line for each setting of episodes in a run whose completions have one turn.

    >>> list(unused_in_episodes(Episodes(max_turns=3)))
    ['episodes.max_turns has no effect: nothing answers the model; add --tools or --env, or a task with reply']
    """
    for name in _changed_in(episodes):
        yield (f"episodes.{name} has no effect: nothing answers the model; add --tools or --env, or a task with reply")


def _changed_in(section: Lora | Critic | Episodes) -> list[str]:
    """Names of the fields that differ from their default."""
    return [each.name for each in fields(section) if getattr(section, each.name) != each.default]


def _unused_in_loss(loss: Loss, updates: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """(unused fields of the loss, why)"""
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
    if loss.scale == "none":
        yield ("std", "std_eps"), 'loss.scale is "none"'
    if not loss.turn_weight:
        yield ("turn_gamma",), "loss.turn_weight is 0"


def _of_batch(config: Config) -> Iterator[tuple[str, str]]:
    chosen = {"baseline": config.loss.baseline, "scale": config.loss.scale}
    for name, value in chosen.items():
        if config.group_size == 1 and value in ("mean", "leave_one_out", "length_weighted", "group_std"):
            yield "group_size", f'must be at least 2 with {name} "{value}"; got 1'
        if config.group_size * config.prompts_per_step == 1 and value in ("batch", "batch_std"):
            yield "group_size", f'must be at least 2 with {name} "{value}" and one prompt per step; got 1'
    if config.optimizer.minibatches > config.prompts_per_step:
        most = f"at most prompts_per_step, {config.prompts_per_step}, because a minibatch holds whole groups"
        yield "optimizer.minibatches", f"must be {most}; got {config.optimizer.minibatches}"


def _of_names(loss: Loss) -> Iterator[tuple[str, str]]:
    if loss.surrogate not in SURROGATES and not re.fullmatch(r"([\w.]+|.+\.py):\w+", loss.surrogate):
        known = f"{', '.join(SURROGATES)}, or file.py:function"
        yield "surrogate", f"unknown surrogate {shown(loss.surrogate)}; use {known}"
    for part in filter(None, loss.weights.split(",")):
        if not re.fullmatch(r"\s*[\w.-]+\s*=\s*-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", part):
            yield "weights", f"{shown(part)} is not a weight; write correct=1,format=0.2"


def _of_credit(loss: Loss) -> Iterator[tuple[str, str]]:
    if loss.baseline == "value" and loss.scale == "group_std":
        yield (
            "scale",
            'does not go with loss.baseline "value", which does not compare groups; use "batch_std" or "none"',
        )
    if loss.credit == "process" and loss.scale == "batch_std" and loss.baseline != "value":
        yield (
            "scale",
            'does not go with loss.credit "process", which normalises in each group; use "group_std" or "none"',
        )
    if loss.credit == "process" and loss.baseline not in ("mean", "value"):
        yield "baseline", 'must be "mean" or "value" with loss.credit "process"'
    if loss.credit == "process" and loss.baseline != "value" and loss.beta and loss.kl_in == "reward":
        yield "kl_in", 'must be "loss" with loss.credit "process", which normalises only the step rewards'
    if loss.credit == "process" and (loss.weights or loss.overlong):
        yield "credit", '"process" rewards steps, not parts; remove loss.weights and loss.overlong'
    if loss.parts == "normalise":
        if loss.credit == "process":
            yield "parts", 'must be "sum" with loss.credit "process", which rewards steps, not parts'
        if loss.baseline != "mean" or loss.scale != "group_std":
            yield "parts", '"normalise" needs loss.baseline "mean" and loss.scale "group_std"'
        if loss.beta and loss.kl_in == "reward":
            yield "parts", '"normalise" cannot subtract a KL divergence from the reward; set loss.kl_in to "loss"'


def _of_turns(loss: Loss) -> Iterator[tuple[str, str]]:
    if not loss.turn_weight:
        return
    if loss.baseline != "mean":
        yield "baseline", 'must be "mean" with loss.turn_weight, which compares turns with their mean'
    if loss.scale == "batch_std":
        yield "scale", 'does not go with loss.turn_weight, which normalises in each group; use "group_std" or "none"'
    if loss.credit != "outcome":
        yield "credit", 'must be "outcome" with loss.turn_weight, which counts the rewards of turns too'
    if loss.parts != "sum":
        yield "parts", 'must be "sum" with loss.turn_weight, which compares whole rewards'
    if loss.beta and loss.kl_in == "reward":
        yield "kl_in", 'must be "loss" with loss.turn_weight, which normalises only the rewards'


def _of_update(loss: Loss, prompts_per_step: int) -> Iterator[tuple[str, str]]:
    if loss.kl == "k3_ratio" and loss.kl_in == "reward":
        yield (
            "kl",
            'k3_ratio needs a policy ratio, which a reward does not have (loss.kl_in is "reward"); use k1, k2 or k3',
        )
    if loss.refresh and not loss.beta:
        yield "refresh", "there is no reference model to refresh while loss.beta is 0; set it to 0"
    if loss.cap and loss.surrogate in ("gate", "plain"):
        yield "cap", f'loss.surrogate "{loss.surrogate}" has no cap; set it to 0'
    if not loss.cap and loss.surrogate == "weight":
        yield "surrogate", '"weight" needs loss.cap, such as 5'
    if loss.ratio == "product" and loss.aggregate != "sequence" and loss.surrogate in SURROGATES:
        yield (
            "ratio",
            '"product" is one ratio for the completion; set loss.aggregate to "sequence", which counts it once',
        )
    if loss.dynamic_sampling > 1 and loss.baseline in ("batch", "value"):
        yield "dynamic_sampling", f'must be 1 with loss.baseline "{loss.baseline}": every group has signal'
    if loss.dynamic_sampling > 1 and int(loss.dynamic_sampling * prompts_per_step) == prompts_per_step:
        most = f"{loss.dynamic_sampling:g} x prompts_per_step, {prompts_per_step}"
        yield "dynamic_sampling", f"{most}, leaves no room for one more group; raise it"
