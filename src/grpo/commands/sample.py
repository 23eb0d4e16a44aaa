"""`grpo sample`: a group of completions of one prompt."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from grpo.commands.model import find_task, load
from grpo.commands.options import parse
from grpo.config import Config, Dataset

PROG = "grpo sample"


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Sample a group of completions of one prompt. Where the task can score it, rewards and advantages are shown."""

    model: str
    """A model or the name of a run; also the first argument."""
    prompt: str
    """The prompt; also the second argument."""
    count: int = 8
    """Completions; also -n."""
    task: str = ""
    """Empty: the run's or the embedded model's own."""
    data: str = ""
    """Rows to ask instead: a file or a Hugging Face dataset."""
    temperature: float = 1.0
    """0: greedy."""
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
    arguments = ["--count" if argument == "-n" else argument for argument in arguments]
    options = parse(SampleOptions, arguments, PROG, ("model", "prompt"))
    policy, settings = load(options.model, options.runs)
    from grpo.credit import credit
    from grpo.rewards import score
    from grpo.rollout.engine import Engine
    from grpo.types import Problem, chat
    from grpo.view import print_group

    task = find_task(options.task, options.data, options.dataset, settings)
    problem = task.recognise(options.prompt) if task is not None and hasattr(task, "recognise") else None
    groups = Engine(policy).sample(
        [problem or Problem("typed", options.prompt, "", messages=chat(options.prompt))],
        options.count,
        seed=options.seed,
        step=0,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
        purpose="sample",
        top_k=options.top_k,
        top_p=options.top_p,
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
