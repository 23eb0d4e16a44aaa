"""`grpo eval`: held-out accuracy of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from grpo.commands.model import find_task, load
from grpo.commands.options import parse
from grpo.config import Dataset
from grpo.errors import GrpoError

PROG = "grpo eval"


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Ask held-out problems, once sampled and once greedy, and report accuracy with its 95% interval."""

    model: str
    """A model or the name of a run; also the first argument."""
    task: str = ""
    """Empty: the run's or the embedded model's own."""
    data: str = ""
    """Rows to ask instead: a file or a Hugging Face dataset."""
    problems: int = 500
    """How many held-out problems are asked."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    """0: as in the run, or 48."""
    top_k: int = 0
    """Sample among the k likeliest tokens only; 0: all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    seed: int = 1
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)


def command(arguments: list[str]) -> int:
    options = parse(EvalOptions, arguments, PROG, ("model",))
    policy, settings = load(options.model, options.runs)
    from grpo.evaluation import evaluate
    from grpo.rollout.engine import Engine

    task = find_task(options.task, options.data, options.dataset, settings)
    if task is None:
        raise GrpoError("field task: name one with --task NAME; only runs and embedded models bring their own")
    problems = task.heldout()[: options.problems]
    row, _ = evaluate(
        Engine(policy),
        task,
        problems,
        max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
        temperature=options.temperature,
        seed=options.seed,
        top_k=options.top_k,
        top_p=options.top_p,
    )
    if options.json:
        print(json.dumps({"model": options.model, "task": task.name, "problems": len(problems), **row}))
        return 0
    for kind, prefix in (("sampled", ""), ("greedy", "greedy_")):
        low, high = row[f"{prefix}low"], row[f"{prefix}high"]
        print(f"{kind:8} {row[f'{prefix}accuracy']:6.1%}   95% interval {low:.1%} to {high:.1%}")
    print(f"mean length {row['length_mean']:.1f} tokens")
    for name in (name for name in row if name.endswith("_share")):
        print(f"{name.removesuffix('_share')} share {row[name]:.1%}")
    return 0
