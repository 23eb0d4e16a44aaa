"""`grpo check`: a task, before anything is trained on it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from grpo.cli.commands.model import load
from grpo.cli.commands.options import LEAST, parse
from grpo.config import Dataset
from grpo.errors import GrpoError

PROG = "grpo check"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Look at a task before training on it. Exits with 1 where a gold fails its own check, or junk passes it."""

    task: str = ""
    """Name or file.py; also the first argument. Empty: to answer the rows of data."""
    data: str = ""
    """Rows: a file or a Hugging Face dataset."""
    problems: int = 0
    """How many are looked at; 0: every row, or 1000 of a task without end."""
    samples: int = 12
    """Completions that are shown."""
    model: str = ""
    """A model or the name of a run, to measure its pass rate; empty: none."""
    model_problems: int = 32
    """How many problems the model is asked."""
    group_size: int = 8
    """Completions of each."""
    max_new_tokens: int = 0
    """0: as in the run, or 48."""
    temperature: float = 1.0
    seed: int = 1
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)


def command(arguments: list[str]) -> int:
    options = parse(CheckOptions, arguments, PROG, ("task",), least={**LEAST, "problems": 0})
    if not options.task and not options.data:
        raise GrpoError("field task: which one? grpo check TASK, or grpo check --data FILE")
    from grpo.cli.task_check import check_task, check_with_model, lines
    from grpo.rewards import Scorer
    from grpo.tasks import load_task

    with Scorer(load_task(options.task or "data", options.data, options.dataset)) as scorer:
        found = check_task(scorer, problems=options.problems, seed=options.seed, samples=options.samples)
        if options.model:
            policy, settings = load(options.model, options.runs)
            found.model, sampled = check_with_model(
                scorer,
                policy,
                problems=options.model_problems,
                group_size=options.group_size,
                max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
                temperature=options.temperature,
                seed=options.seed,
            )
            found.samples = sampled[: options.samples]
    print(json.dumps(found.as_dict()) if options.json else "\n".join(lines(found)))
    return 0 if found.sound else 1
