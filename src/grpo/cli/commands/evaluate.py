"""`grpo eval`: held-out accuracy of a model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from grpo.cli.commands.model import find_scorer, load
from grpo.cli.commands.options import SamplingOptions, parse
from grpo.config import Scale
from grpo.config.rules import of_scale
from grpo.distributed.launch import launched
from grpo.errors import GrpoError

PROG = "grpo eval"


@dataclass(frozen=True, kw_only=True)
class EvalOptions(SamplingOptions):
    """Sample and greedily decode held-out problems, and report accuracy with its 95% interval.

    For a run, seed, settings and problems are those of its own evaluations, so the accuracy is that of its last one.
    """

    problems: int = 0
    """Number of held-out problems; 0: as in the run, or 500."""
    scale: Scale = field(default_factory=Scale)


def command(arguments: list[str]) -> int:
    options = parse(EvalOptions, arguments, PROG, ("model",))
    for path, why in of_scale(options.scale):
        raise GrpoError(f"field {path} (command line): {why}")
    if (code := launched(options.scale, "auto", ["eval", *arguments])) is not None:
        return code
    policy, settings = load(options.model, options.runs, options.dataset)
    from grpo.rollout.builtin import Engine
    from grpo.tasks.traits import label_of, trait_metrics
    from grpo.training.evaluation import evaluate

    scorer = find_scorer(options, settings, str(policy.device), evaluation=True)
    if scorer is None:
        raise GrpoError("field task: name one with --task NAME; only runs and embedded models have a default task")
    with scorer:
        count = options.problems or settings.get("evaluation", {}).get("problems", 500)
        problems = scorer.task.heldout()[:count]
        if sys.stderr.isatty():
            print(f"evaluating {len(problems)} held-out problems …", file=sys.stderr)
        row, _ = evaluate(Engine(policy), scorer, problems, options.sampling(settings, "eval"))
    if options.json:
        print(json.dumps({"model": options.model, "task": scorer.task.name, "problems": len(problems), **row}))
        return 0
    for kind, prefix in (("sampled", ""), ("greedy", "greedy_")):
        if f"{prefix}accuracy" not in row:
            continue  # the reward is not the task's, and the task has no is_correct
        low, high = row[f"{prefix}low"], row[f"{prefix}high"]
        print(f"{kind:8} {row[f'{prefix}accuracy']:6.1%}   95% interval {low:.1%} to {high:.1%}")
    if "reward_mean" in row:
        print(f"mean reward {row['reward_mean']:.3f}")
    print(f"mean length {row['length_mean']:.1f} tokens")
    for name, share in trait_metrics(row).items():
        print(f"{label_of(name)} share {share:.1%}")
    return 0
