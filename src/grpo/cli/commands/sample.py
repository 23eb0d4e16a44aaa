"""`grpo sample`: a group of completions of one prompt."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.cli.commands.model import engine_for, episode_settings, find_scorer, load
from grpo.cli.commands.options import SamplingOptions, parse
from grpo.config import Config
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.tasks import Task
    from grpo.types import Completion, Problem

PROG = "grpo sample"


@dataclass(frozen=True, kw_only=True)
class SampleOptions(SamplingOptions):
    """Sample a group of completions of one prompt, and print rewards and advantages if the task can score it."""

    prompt: str = ""
    """The prompt; also the second argument. Empty: the first held-out problem of the task."""
    count: int = 8
    """Number of completions; also -n."""


def known(task: Task | None, prompt: str) -> Problem | None:
    """The task's problem of this prompt, if it has one; without a prompt the first one held out."""
    from grpo.tasks.protocol import RecognisesPrompts

    if prompt:
        return task.recognise(prompt) if isinstance(task, RecognisesPrompts) else None
    if task is None:
        raise GrpoError(f'field prompt (command line): missing; write {PROG} MODEL "PROMPT", or add --task NAME')
    return [*task.heldout(), *task.draw(0, 1, seed=1)][0]


def typed(task: Task | None, prompt: str) -> Problem:
    """A problem of a typed prompt that is not one of the task's, formatted like the task's prompts."""
    from grpo.tasks.protocol import TakesTypedPrompts
    from grpo.types import Problem, chat

    if isinstance(task, TakesTypedPrompts):
        try:
            return task.typed(prompt)
        except GrpoError as error:  # a template of several columns, for which one text is not enough
            print(f"grpo: the prompt is used as typed: {error}", file=sys.stderr)
    return Problem("typed", prompt, "", messages=chat(prompt))


def command(arguments: list[str]) -> int:
    arguments = ["--count" if argument == "-n" else argument for argument in arguments]
    options = parse(SampleOptions, arguments, PROG, ("model", "prompt"))
    policy, settings = load(options.model, options.runs, options.dataset)
    from grpo.cli.terminal.group import print_group
    from grpo.episodes.start import chosen_replier
    from grpo.rewards import error_line
    from grpo.training.credit import credit

    episodes = episode_settings(options.episodes, settings)
    replier = chosen_replier(episodes)
    scorer = find_scorer(options, settings, str(policy.device), replier=replier)
    task = scorer.task if scorer else None
    with scorer or nullcontext(), engine_for(policy, scorer, episodes, replier) as engine:
        problem = known(task, options.prompt)
        asked = problem or typed(task, options.prompt)
        [group] = engine.sample([asked], options.count, options.sampling(settings, "sample"))
        # An environment rewards any prompt.
        if scorer and (problem or any(done.parts or done.fault for done in group.completions)):
            [group], _ = credit(scorer.score([group]), Config())
    if not options.json:
        print_group(group)
        for why in dict.fromkeys(done.why for done in group.completions if done.reward is None and not done.fault):
            if why:
                print(f"not scored: {error_line(why)}", file=sys.stderr)
        return 0
    rows = [_row(done) for done in group.completions]
    prompt, answer = options.prompt or group.problem.prompt, problem.answer if problem else None
    print(json.dumps({"prompt": prompt, "answer": answer, "completions": rows}))
    return 0


def _row(done: Completion) -> dict[str, Any]:
    from grpo.cli.terminal.episode import spoken

    details: dict[str, Any] = {"turns": spoken(done), "fault": done.fault} if done.turns else {}
    if done.turns or done.why:
        details["why"] = done.why
    return {
        "text": done.text,
        "tokens": len(done),
        "finish": done.finish,
        "logprob": float(done.logprobs.sum()),
        "reward": done.reward,
        "advantage": None if done.advantages is None else float(done.advantages[0]),
        **details,
    }
