"""`grpo sample`: a group of completions of one prompt."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo.cli.commands.model import find_task, load
from grpo.cli.commands.options import Sampling, parse
from grpo.config import Config
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.rewards import Rewarded
    from grpo.types import Problem

PROG = "grpo sample"


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Sampling):
    """Sample a group of completions of one prompt. Where the task can score it, rewards and advantages are shown."""

    prompt: str
    """The prompt; also the second argument."""
    count: int = 8
    """Completions; also -n."""


def typed(task: Rewarded | None, prompt: str) -> Problem:
    """A prompt that the task does not know, asked as the task's own are."""
    from grpo.types import Problem, chat

    if task is not None and hasattr(task, "typed"):
        try:
            return task.typed(prompt)
        except GrpoError as error:  # a template of several columns, of which one was typed
            print(f"grpo: asked as it was typed: {error}", file=sys.stderr)
    return Problem("typed", prompt, "", messages=chat(prompt))


def command(arguments: list[str]) -> int:
    arguments = ["--count" if argument == "-n" else argument for argument in arguments]
    options = parse(SampleOptions, arguments, PROG, ("model", "prompt"))
    policy, settings = load(options.model, options.runs)
    from grpo.cli.terminal.live import print_group
    from grpo.rewards import score
    from grpo.rollout.builtin import Engine
    from grpo.training.credit import credit

    task = find_task(options, settings, str(policy.device))
    with task or nullcontext():
        problem = task.recognise(options.prompt) if task is not None and hasattr(task, "recognise") else None
        groups = Engine(policy).sample(
            [problem or typed(task, options.prompt)],
            options.count,
            step=0,
            purpose="sample",
            **options.choosing(settings),
        )
        if task and problem:
            groups, _ = credit(score(task, groups), Config())
    [group] = groups
    if not options.json:
        print_group(group)
        return 0
    rows = [
        {
            "text": c.text,
            "tokens": len(c),
            "finish": c.finish,
            "logprob": float(c.logprobs.sum()),
            "reward": c.reward,
            "advantage": None if c.advantages is None else float(c.advantages[0]),
        }
        for c in group.completions
    ]
    print(json.dumps({"prompt": options.prompt, "answer": problem.answer if problem else None, "completions": rows}))
    return 0
