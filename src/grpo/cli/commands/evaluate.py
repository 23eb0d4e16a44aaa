"""`grpo eval`: held-out accuracy of a model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from grpo.cli.commands.model import engine_for, episode_settings, find_scorer, load
from grpo.cli.commands.options import SamplingOptions, parse
from grpo.config import Scale
from grpo.config.rules import of_scale
from grpo.distributed.launch import launched
from grpo.distributed.world import World, joined
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
    with joined(options.scale, "auto") as world:
        task, problems, row = measure(options, world)
    if world.first:
        show(options, task, problems, row)
    return 0


def measure(options: EvalOptions, world: World) -> tuple[str, int, dict[str, float]]:
    """(task, number of problems, metrics). Each rank samples its part of the problems."""
    policy, settings = load(options.model, options.runs, options.dataset, world)
    from grpo.episodes.start import chosen_replier
    from grpo.rewards import error_line
    from grpo.training.evaluation import evaluate

    episodes = episode_settings(options.episodes, settings)
    replier = chosen_replier(episodes)
    scorer = find_scorer(options, settings, str(policy.device), world, replier=replier, evaluation=True)
    if scorer is None:
        raise GrpoError("field task: missing; name the problems with --task NAME or --data FILE")
    with scorer, engine_for(policy, scorer, episodes, replier) as engine:
        scorer.check_requirements()
        count = options.problems or settings.get("evaluation", {}).get("problems", 500)
        problems = scorer.task.heldout()[:count]
        if world.first and sys.stderr.isatty():
            print(f"evaluating {len(problems)} held-out problems …", file=sys.stderr)
        row, sampled = evaluate(engine, scorer, problems, options.sampling(settings, "eval"), world=world)
    # Accuracy, which the task alone decides, would hide that no reward of the user gave a score.
    if "reward_mean" not in row and not (scorer.checks_golds and "accuracy" in row):
        reasons = [error_line(done.why) for group in sampled for done in group.completions if done.why]
        why = reasons[0] if reasons else "every reward was None"
        raise GrpoError(
            f"field reward: no completion was scored: {why}; correct the reward, or name another (--reward)"
        )
    return scorer.task.name, len(problems), row


def show(options: EvalOptions, task: str, problems: int, row: dict[str, float]) -> None:
    from grpo.tasks.traits import label_of, trait_metrics

    if options.json:
        print(json.dumps({"model": options.model, "task": task, "problems": problems, **row}))
        return
    for kind, prefix in (("sampled", ""), ("greedy", "greedy_")):
        if f"{prefix}accuracy" not in row:
            continue  # the reward is not the task's, and the task has no is_correct
        low, high = row[f"{prefix}low"], row[f"{prefix}high"]
        print(f"{kind:8} {row[f'{prefix}accuracy']:6.1%}   95% interval {low:.1%} to {high:.1%}")
    if "reward_mean" in row:
        print(f"mean reward {row['reward_mean']:.3f}")
    print(f"mean length {row['length_mean']:.1f} tokens")
    if "turns_mean" in row:
        print(f"mean turns {row['turns_mean']:.1f}, tool calls {row['calls']:.2f} an episode")
    for name, share in trait_metrics(row).items():
        print(f"{label_of(name)} share {share:.1%}")
