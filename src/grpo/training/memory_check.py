"""Whether a run fits into memory: predicted from the model's config.json, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.filesize import decimal as readable

from grpo.config import Config, SftConfig
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.model.device import free_memory, pick_precision
from grpo.model.oom_retry import DEFAULT_TOKENS, MAX_TOKENS, MIN_TOKENS
from grpo.model.plan import PRECISIONS, Memory, Needs, Shape, Work, memory_of, needs, read_config, shape_of
from grpo.model.plan.shape import experts_of
from grpo.model.plan.shard import Shard, pick_shard, refuse_shard
from grpo.tasks.protocol import Task, draw_problems
from grpo.types import Problem

SHARE_OF_FREE = 0.85
"""Share of the free memory that a run with an automatic token budget may fill. The rest is a safety margin."""


@dataclass(frozen=True)
class Sizes:
    """Planned memory of a run."""

    token_budget: int
    predicted: int | None = None
    """Peak bytes; None where the model's config.json does not say enough."""
    shard: Shard = "none"
    """What ranks divide among them."""


def check_memory(
    config: Config, task: Task, device: torch.device, world: World = ALONE, *, episodes: bool = False
) -> Sizes:
    """Compare predicted with free memory before anything is loaded, from the model's config.json. On a GPU, an
    automatic token budget is the largest that fits. Rank 0 decides what ranks divide among them."""
    requested = config.system.token_budget
    try:
        model = read_config(config.model)
        shape = shape_of(model, config.model)
    except GrpoError:  # border: malformed folder; loading it gives the better message
        shard = "none" if config.scale.shard == "auto" or world.size == 1 else config.scale.shard
        return Sizes(requested or DEFAULT_TOKENS, shard=shard)
    if 0 < shape.positions <= config.max_new_tokens:  # memory would be the wrong reason
        raise GrpoError(
            f"field max_new_tokens: {config.max_new_tokens} new tokens leave no room for a prompt in the "
            f"{shape.positions} positions of {config.model}; lower it"
        )
    problems = draw_problems(task, 0, config.prompts_per_step, config.seed)
    heldout = min(len(task.heldout()), config.evaluation.problems)
    config = replace(config, evaluation=replace(config.evaluation, problems=heldout))
    longest = longest_text((problem.prompt for problem in problems), shape)
    free = memory_of_rank(device, world)

    def planned(tokens: int, shard: Shard) -> Memory:
        return predicted_memory(config, shape, longest, device, tokens, shard, world.size, free, episodes)

    def needed(tokens: int, shard: Shard) -> int:
        return planned(tokens, shard).peak

    shard = world.from_first(lambda: choose_shard(config, needed, free, world.size))
    budget = requested or (MAX_TOKENS if device.type == "cuda" else DEFAULT_TOKENS)
    if not requested:
        while budget > MIN_TOKENS and needed(budget, shard) > SHARE_OF_FREE * free:
            budget //= 2
    if needed(budget, shard) > free:
        in_rollout = planned(budget, shard).phases["rollout"] == needed(budget, shard)
        recomputes = shape.fused and device.type == "cuda" and pick_precision(config.system, device.type) != "float32"
        offered = recomputes and not (in_rollout or config.system.gradient_checkpointing)
        raise GrpoError(
            f"field model: training {config.model} takes about {readable(needed(budget, shard))}, and {readable(free)} "
            f"are free on {device}; lower prompts_per_step{', evaluation.problems' * in_rollout} or max_new_tokens, "
            f"{'set system.max_concurrent_completions, ' * in_rollout}"
            f"{'turn on system.gradient_checkpointing, ' * offered}or choose a smaller model (see grpo plan)"
        )
    # One expert is counted of a mixture: enough to refuse what cannot fit, not to predict the peak.
    return Sizes(budget, None if experts_of(model) else needed(budget, shard), shard)


def longest_text(texts: Iterable[str], shape: Shape) -> int:
    """About how many tokens the longest text has: of three characters with a large vocabulary, of one with a small
    one."""
    return max(map(len, texts)) // (3 if shape.vocabulary > 1000 else 1)


def memory_of_rank(device: torch.device, world: World) -> int:
    """Free bytes; ranks may share a machine's memory, or one GPU."""
    own_gpu = device.type == "cuda" and device.index is None
    return free_memory(device) // (1 if own_gpu else world.local_size)


def sft_shard(config: SftConfig, problems: Sequence[Problem], device: torch.device, world: World) -> Shard:
    """What ranks divide among them in supervised fine-tuning. `problems`: rows with their answers."""
    if world.size == 1:
        return "none"
    try:
        shape = shape_of(read_config(config.model), config.model)
    except GrpoError:  # border: malformed folder; loading it gives the better message
        return "none" if config.scale.shard == "auto" else config.scale.shard
    prompt, answer = (longest_text((getattr(row, part) for row in problems), shape) for part in ("prompt", "answer"))

    def needed(tokens: int, shard: Shard) -> int:
        planned = memory_of(
            shape,
            Work(
                prompts=config.batch_size,
                group_size=1,
                prompt_tokens=max(1, prompt),
                new_tokens=max(1, answer),
                token_budget=tokens,
            ),
            Needs(reference=False, critic=False),
            PRECISIONS[pick_precision(config.system, device.type)],
            on_gpu=device.type == "cuda",
            lora=config.lora.rank,
            gradient_checkpointing=config.system.gradient_checkpointing,
            shard=shard,
            ranks=world.size,
        )
        cache = planned.components["keys/values"] if device.type == "cuda" else 0  # nothing is sampled
        return max(planned.phases["update"], planned.phases["reduce"]) - cache

    return world.from_first(lambda: choose_shard(config, needed, memory_of_rank(device, world), world.size))


def choose_shard(config: Config | SftConfig, needed: Callable[[int, Shard], int], free: int, ranks: int) -> Shard:
    """What ranks divide among them: the configured mode, or the first that fits with micro-batches of the usual size,
    or else with small ones. `needed`: bytes by tokens per micro-batch and mode."""
    wanted, requested = config.scale.shard, config.system.token_budget
    if ranks == 1:
        return "none"
    if wanted != "auto":
        least = partial(needed, requested or MIN_TOKENS)
        if least(wanted) > free:
            raise refuse_shard(wanted, least, free, ranks)
        return wanted
    sizes = [requested] if requested else [DEFAULT_TOKENS, MIN_TOKENS]
    fitting = (pick_shard(partial(needed, tokens), SHARE_OF_FREE * free, ranks) for tokens in sizes)
    return next((shard for shard in fitting if shard), "weights")


def check_shape(model: str, checkpoint: Path) -> None:
    """Refuse a checkpoint whose model has another shape than `model`, which is also the reference."""
    try:
        shapes = [shape_of(read_config(name), name) for name in (model, str(checkpoint))]
    except GrpoError:  # border: malformed folder; loading it gives the better message
        return
    here, there = (vars(replace(shape, positions=0)) for shape in shapes)  # more of them are no other weights
    for name, value in here.items():
        if there[name] != value:
            raise GrpoError(
                f"field model: {checkpoint} has another shape than {model}: its {name} is {there[name]}, not "
                f"{value}; resume with the model the run began with"
            )


def predicted_memory(
    config: Config,
    shape: Shape,
    prompt_tokens: int,
    device: torch.device,
    token_budget: int = 0,
    shard: Shard = "none",
    ranks: int = 1,
    available: int = 0,
    episodes: bool = False,
) -> Memory:
    """Memory of each rank with prompts of this length and completions of `max_new_tokens`. `available`: free bytes, of
    which a GPU's KV cache takes a share."""
    return memory_of(
        shape,
        Work.of(config, max(1, prompt_tokens), token_budget, episodes=episodes),
        needs(config.loss, config.critic),
        PRECISIONS[pick_precision(config.system, device.type)],
        on_gpu=device.type == "cuda",
        lora=config.lora.rank,
        gradient_checkpointing=config.system.gradient_checkpointing,
        shard=shard,
        ranks=ranks,
        available=available,
    )
