"""`grpo plan`: predicted memory and compute of a run, by algorithm, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from grpo.config import Config, Lora, Optimizer
from grpo.config import parse as flags
from grpo.config.other_names import OTHER_NAMES
from grpo.config.presets import PRESETS, check_preset
from grpo.config.rules import contradictions
from grpo.config.schema import Loss, parse_train
from grpo.errors import GrpoError
from grpo.model.plan.compute import flops
from grpo.model.plan.gpus import USABLE, gpu_memory
from grpo.model.plan.links import Cluster
from grpo.model.plan.memory import PRECISIONS
from grpo.model.plan.scaling import Run, assumptions, scaled
from grpo.model.plan.shape import Shape, find_shape, typical_shape
from grpo.model.plan.work import Needs, Work, needs
from grpo.rollout.occupancy import drawn_lengths, occupancy_of
from grpo.rollout.schedule import Room

PROG = "grpo plan"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Predict memory and compute of a step without loading the model.

    grpo plan MODEL [--algorithm NAME,NAME] [--gpu NAME]: MODEL is the name of a well-known shape such as qwen2.5-1.5b,
    an embedded model, a Hugging Face folder or id. grpo plan RECIPE.toml plans a recipe of grpo train. With --gpus and
    --nodes: memory by mode, bytes and seconds of each collective, and how a step scales.
    """

    model: str = ""
    """The shape to plan for; also the first argument."""
    params: str = ""
    """Instead of a model: a size such as 7B, 13B or 70B, with the typical shape of that size."""
    algorithm: str = ""
    """One preset, or several separated by commas; empty: all."""
    gpu: str = ""
    """h200, h100, a100-80, 4090, …, or a memory size such as "24 GB"; the output says what fits."""
    gpus: int = 1
    """GPUs of each node, as scale.gpus."""
    nodes: int = 1
    """Hosts, as scale.nodes."""
    link: str = ""
    """nvlink or pcie inside a node, 400gbit or 1gbit between nodes, or both, such as pcie,1gbit; empty: nvlink and
    400gbit."""
    shard: Literal["auto", "none", "optimizer", "weights"] = "auto"
    """What ranks divide among them, as scale.shard; auto: the first mode that fits --gpu."""
    device: Literal["gpu", "cpu"] = "gpu"
    """Device to train on."""
    dtype: Literal["auto", "mixed", "half", "float32", "bfloat16"] = "auto"
    """Number format, as system.dtype; auto: mixed on a GPU, float32 on a CPU."""
    lora: int = 0
    """LoRA rank, on every linear layer; 0: train the whole model."""
    prompts_per_step: int = Config.prompts_per_step
    group_size: int = Config.group_size
    prompt_tokens: int = 0
    """Length of the prompts; 0: 256, or fewer where the model has too few positions."""
    max_new_tokens: int = 0
    """Largest length of the completions, sampled and read tokens together; 0: 1024, or fewer where the model has too
    few positions."""
    mean_new_tokens: int = 0
    """Mean length of the completions, for the rows that a rollout on a GPU decodes at once; 0: half of
    max_new_tokens. A run records it as length_mean; of episodes, add observation_tokens."""
    observation_tokens: int = 0
    """How many of these tokens an episode reads, on average; 0: completions have one turn. A run records it under the
    same name."""
    max_concurrent_completions: int = 0
    """Most completions that a GPU decodes at once, as system.max_concurrent_completions; 0: as many as its KV cache
    holds."""
    token_budget: int = 16384
    """Tokens per micro-batch, as system.token_budget."""
    gradient_checkpointing: bool = False
    """Keep only the input of each block and compute the rest again, as system.gradient_checkpointing."""
    epochs: int = 1
    """Passes over the completions of a step."""
    minibatches: int = 1
    """Updates per pass."""
    reward_model: str = ""
    """Shape of a reward model, or its size; empty: none."""
    json: bool = False
    """Print JSON."""


def command(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        flags.show_help(PlanOptions, PROG)
    recipes = [argument for argument in arguments if argument.endswith(".toml")]
    config = parse_train(recipes) if recipes else None
    rest = [argument for argument in arguments if argument not in recipes]
    settings = flags.read(PlanOptions, rest, prog=PROG, positionals=("model",), other_names=OTHER_NAMES)
    options = flags.build(PlanOptions, settings, prog=PROG, default=options_of(config) if config else None)
    from rich.console import Console

    with Console(stderr=True).status("Planning …"):  # thousands of completions are simulated for seconds
        planned = plan(options, config)
    if options.json:
        print(json.dumps(planned))
    else:
        from grpo.cli.terminal.plan import show

        show(planned)
    return 0


def options_of(config: Config) -> PlanOptions:
    """Options of a recipe; the length of its prompts stays at the default."""
    system, optimizer, scale = config.system, config.optimizer, config.scale
    return PlanOptions(
        model=config.model,
        algorithm=config.algorithm,
        gpus=scale.gpus,
        nodes=scale.nodes,
        shard=scale.shard,
        device="cpu" if system.device == "cpu" else "gpu",
        dtype=system.dtype,
        lora=config.lora.rank,
        prompts_per_step=config.prompts_per_step,
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        max_concurrent_completions=system.max_concurrent_completions,
        token_budget=system.token_budget or PlanOptions.token_budget,
        gradient_checkpointing=system.gradient_checkpointing,
        epochs=optimizer.epochs,
        minibatches=optimizer.minibatches,
    )


def plan(options: PlanOptions, recipe: Config | None = None) -> dict[str, Any]:
    """The output of `--json`. `recipe` sets the needs of its own algorithm; other algorithms use their presets."""
    _check(options)
    shape = typical_shape(options.params) if options.params else find_shape(options.model)
    options = _with_lengths(options, shape.positions)
    _check_lengths(options, shape.positions)
    inputs = _PlanInputs(
        shape=shape,
        reward_model=find_shape(options.reward_model, "reward_model") if options.reward_model else None,
        gpu=gpu_memory(options.gpu) if options.gpu else 0,
        cluster=Cluster.read(options.gpus, options.nodes, options.link),
        recipe=recipe,
    )
    cluster = inputs.cluster
    chosen, left_out = _chosen(options, recipe)
    rows = [inputs.row(name, options) for name in chosen]
    work = inputs.work(options)
    sizes = {row["cache_blocks"] for row in rows if row["cache_blocks"]}
    rollouts = {blocks: _rollout(options, work.share(cluster.ranks), blocks) for blocks in sizes}
    for row in rows:
        row["rollout"] = rollouts.get(row["cache_blocks"])
        row["advice"] = inputs.advice(row, options) if row["fits"] is False else ""
        row["scale"] = scaled(inputs.run(row["algorithm"], options), cluster) if cluster.ranks > 1 else None
    usable = {"name": options.gpu, "bytes": inputs.gpu, "usable": round(USABLE * inputs.gpu)}
    return {
        "model": options.model or options.params,
        "parameters": inputs.shape.parameters,
        "warnings": [*_warnings(inputs.shape, recipe), *left_out],
        "shape": dataclasses.asdict(inputs.shape),
        "work": dataclasses.asdict(work),
        "dtype": _precision(options),
        "lora": options.lora,
        "gradient_checkpointing": options.gradient_checkpointing,
        "gpu": usable if inputs.gpu else None,
        "cluster": assumptions(cluster, options.gpu) if cluster.ranks > 1 else None,
        "algorithms": rows,
    }


@dataclass(frozen=True)
class _PlanInputs:
    """Inputs of the plan that stay fixed while options are varied."""

    shape: Shape
    reward_model: Shape | None
    gpu: int
    """Bytes; 0: no GPU is named."""
    cluster: Cluster
    recipe: Config | None

    def work(self, options: PlanOptions) -> Work:
        return Work(
            prompts=options.prompts_per_step,
            group_size=options.group_size,
            prompt_tokens=options.prompt_tokens,
            new_tokens=options.max_new_tokens,
            token_budget=options.token_budget,
            epochs=options.epochs,
            minibatches=options.minibatches,
            heldout=self.recipe.evaluation.problems if self.recipe else 0,
            observed_tokens=options.observation_tokens or None,
            concurrent=options.max_concurrent_completions,
        )

    def needed(self, algorithm: str) -> Needs:
        if self.recipe and algorithm == self.recipe.algorithm:
            return needs(self.recipe.loss, self.recipe.critic)
        return needs(PRESETS[algorithm].settings)

    def run(self, algorithm: str, options: PlanOptions) -> Run:
        return Run(
            shape=self.shape,
            work=self.work(options),
            needs=self.needed(algorithm),
            precision=PRECISIONS[_precision(options)],
            gpu=options.gpu,
            shard=options.shard,
            lora=options.lora,
            on_gpu=options.device == "gpu",
            gradient_checkpointing=options.gradient_checkpointing,
            reward_model=self.reward_model,
        )

    def row(self, algorithm: str, options: PlanOptions) -> dict[str, Any]:
        run, ranks = self.run(algorithm, options), self.cluster.ranks
        found = run.memory(run.mode(ranks), ranks)
        return {
            "algorithm": algorithm,
            "memory": dict(found.components),
            "phases": dict(found.phases),
            "peak": found.peak,
            "cache_blocks": found.cache_blocks,
            "fits": run.fits(found),
            "flops": flops(run.shape, run.work, run.needs, lora=run.lora, reward_model=run.reward_model),
        }

    def advice(self, row: Mapping[str, Any], options: PlanOptions) -> str:
        """The first changes that make it fit; changes that keep the numbers come before those that do not."""
        if row["memory"]["weights"] > USABLE * self.gpu and options.lora:
            return "the weights do not fit; choose a smaller model"
        ways: dict[str, list[Any]] = {
            "prompts_per_step": [options.prompts_per_step, max(options.minibatches, options.prompts_per_step // 4)],
            "lora": [options.lora, options.lora or 16],
            "dtype": [options.dtype, "bfloat16"],
            "gradient_checkpointing": [options.gradient_checkpointing, options.device == "gpu"],
            "token_budget": [max(1, options.token_budget // part) for part in (1, 2, 4, 8)],
        }
        for values in product(*ways.values()):
            changed = dataclasses.replace(options, **dict(zip(ways, values, strict=True)))
            if self.row(row["algorithm"], changed)["fits"]:
                changes = [(name, value) for name, value in zip(ways, values, strict=True) if value != ways[name][0]]
                words = [f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in changes]
                return f"fits with {' '.join(words)}"
        return "choose a smaller model, or shorter completions"


def _rollout(options: PlanOptions, work: Work, blocks: int) -> dict[str, Any]:
    """Rows of a rollout on each GPU, with a KV cache of `blocks` blocks."""
    mean = options.mean_new_tokens or max(1, work.new_tokens // 2)
    lengths = drawn_lengths(work.completions, mean, work.new_tokens)
    room = Room(blocks, work.rows_of_a_step)
    found = occupancy_of([work.prompt_tokens] * work.prompts, work.group_size, work.new_tokens, room, lengths)
    return {"mean_new_tokens": mean, "tokens": int(lengths.sum()), **dataclasses.asdict(found)}


def _warnings(shape: Shape, recipe: Config | None) -> list[str]:
    warnings = []
    if shape.padded:
        warnings.append(
            f"model type {shape.padded} runs padded, each completion with its prompt, and this plan assumes packed "
            "rows: rollout and update take more memory and operations than shown"
        )
    if recipe and recipe.lora.rank and recipe.lora.targets:
        warnings.append(
            f"lora.targets ({recipe.lora.targets}) is not counted: this plan has an adapter on every linear layer, "
            "which takes more memory than the recipe"
        )
    return warnings


def _check(options: PlanOptions) -> None:
    if bool(options.model) == bool(options.params):
        both = "not both" if options.model else "such as grpo plan qwen2.5-1.5b, or grpo plan --params 7B"
        raise GrpoError(f"field model (command line): name a model or a size, {both}")
    least = {
        "lora": 0,
        **dict.fromkeys(("prompt_tokens", "max_new_tokens", "mean_new_tokens", "observation_tokens"), 0),
        "max_concurrent_completions": 0,
        **dict.fromkeys(("prompts_per_step", "group_size", "token_budget", "epochs", "minibatches"), 1),
        **dict.fromkeys(("gpus", "nodes"), 1),
    }
    for name, bound in least.items():
        if (value := getattr(options, name)) < bound:
            raise GrpoError(f"field {name} (command line): must be at least {bound}; got {value}")
    if options.device == "cpu" and options.gpus * options.nodes > 1:
        raise GrpoError("field device (command line): several processes are planned on GPUs only; use --device gpu")


def _with_lengths(options: PlanOptions, positions: int) -> PlanOptions:
    """Lengths that are not given: the usual ones, or what fits the model's positions (0: any)."""
    room = positions or 2**62
    prompt = options.prompt_tokens or min(256, max(1, room - (options.max_new_tokens or room // 2)))
    new = options.max_new_tokens or min(1024, max(1, room - prompt))
    return dataclasses.replace(options, prompt_tokens=prompt, max_new_tokens=new)


def _check_lengths(options: PlanOptions, positions: int) -> None:
    if positions and options.prompt_tokens + options.max_new_tokens > positions:
        raise GrpoError(
            f"field max_new_tokens (command line): {options.max_new_tokens} with prompt_tokens {options.prompt_tokens} "
            f"exceeds the {positions} positions of {options.model}; lower "
            f"{'prompt_tokens' if options.prompt_tokens >= positions else 'max_new_tokens'}"
        )
    if options.mean_new_tokens > options.max_new_tokens:
        raise GrpoError(
            f"field mean_new_tokens (command line): must be at most max_new_tokens, {options.max_new_tokens}; got "
            f"{options.mean_new_tokens}"
        )
    whole = "mean_new_tokens" if options.mean_new_tokens else "max_new_tokens"
    if options.observation_tokens >= (length := getattr(options, whole)):
        raise GrpoError(
            f"field observation_tokens (command line): must be less than {whole}, {length}, which counts them too; got "
            f"{options.observation_tokens}"
        )


def _precision(options: PlanOptions) -> str:
    by_default = "mixed" if options.device == "gpu" else "float32"
    return by_default if options.dtype == "auto" else options.dtype


def _chosen(options: PlanOptions, recipe: Config | None) -> tuple[list[str], list[str]]:
    """The algorithms to plan, and a warning about those that cannot be trained so. One that is named is refused."""
    named = [name.strip() for name in options.algorithm.split(",") if name.strip()]
    refusals = {}
    for name in named or PRESETS:
        check_preset(name, "field algorithm")
        config = Config(
            algorithm=name,
            prompts_per_step=options.prompts_per_step,
            group_size=options.group_size,
            loss=recipe.loss if recipe and name == recipe.algorithm else Loss(),
            lora=Lora(rank=options.lora),
            optimizer=Optimizer(epochs=options.epochs, minibatches=options.minibatches),
        )
        refusals[name] = next(contradictions(config), None)
    chosen = [name for name, refused in refusals.items() if not refused]
    for name, refused in refusals.items():
        if refused and (named or not chosen):
            field, why = refused
            raise GrpoError(f"field {field.removeprefix('optimizer.')} (command line): {why}; algorithm {name}")
    reasons: dict[str, list[str]] = {}
    for name, refused in refusals.items():
        if refused:
            reasons.setdefault(" ".join(refused), []).append(name)
    return chosen, [f"{', '.join(names)} left out: {why}" for why, names in reasons.items()]
