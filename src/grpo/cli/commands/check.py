"""`grpo check`: checks a task before training."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from grpo.cli.commands.model import engine_for, episode_settings, find_run, load, model_path, template_kwargs
from grpo.cli.commands.options import LEAST, parse
from grpo.config import Dataset, Episodes, Scoring
from grpo.config.leaf import Text
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.model.policy import Policy
    from grpo.model.prompt import Schema
    from grpo.rewards import Scorer
    from grpo.tasks import Task
    from grpo.types import Group

PROG = "grpo check"
SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Check a task, a reward or an environment before training on it. Exits with 1 if a gold fails its own check or
    junk earns the full reward; with --reward, if a call fails or every answer earns the same; with --env, if a call
    fails or an episode does not repeat."""

    task: str = ""
    """Name or file.py; also the first argument. Empty: the rows of data."""
    data: str = ""
    """Rows: a file or a Hugging Face dataset."""
    reward: str = ""
    """Reward functions to check, written as in grpo train; empty: the task's checker. With --env: functions that take
    environments."""
    env: str = ""
    """Environment class to check, written as in grpo train: plays an episode of each problem twice with the same turns.
    Without task and data, the environment makes its own problems."""
    text: Text = ""
    """A text to score too, as a completion of every problem, with the rewards by kind of answer; with --env: every turn
    (\\n is a new line, \\\\ a backslash)."""
    problems: int = 0
    """Problems to check; 0: every row, or 1000 of an endless task; with --reward or --text 32, with --env 4. Equal
    problems are checked once."""
    samples: int = 12
    """Answers to show."""
    show: int = 0
    """Print this many prompts as the model reads them, with special tokens, and check nothing."""
    tools: str = ""
    """With --model: tools that it may call, written as in grpo train; empty: those of the run."""
    model: str = ""
    """A model or the name of a run: measures its pass rate, or with --reward its rewards and the share of groups with
    signal; with --show it renders prompts. Empty: none."""
    model_problems: int = 32
    """Problems sampled from the model."""
    group_size: int = 8
    """Completions per problem."""
    max_new_tokens: int = 0
    """Longest completion; 0: as in the run, or 48."""
    stop: tuple[str, ...] = ()
    """Text that ends a completion; repeat the flag for several; none: as in the run."""
    temperature: float = 1.0
    seed: int = 1
    runs: str = "runs"
    """Folder of the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)
    scoring: Scoring = field(default_factory=Scoring)


class ProgressLine:
    """Shows on stderr how many answers are scored: at once in a terminal, every few seconds in a log."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.shown_at = time.monotonic()

    def __call__(self, done: int, count: int) -> None:
        now = time.monotonic()
        if self.live:
            print(f"\r{done} of {count} answers scored", end="\n" if done == count else "", file=sys.stderr, flush=True)
        elif now >= self.shown_at + SECONDS_BETWEEN_LINES:
            self.shown_at = now
            print(f"grpo check: {done} of {count} answers scored", file=sys.stderr, flush=True)


def command(arguments: list[str]) -> int:
    options = parse(CheckOptions, arguments, PROG, ("task",), least={**LEAST, "problems": 0})
    if not options.task and not options.data and not options.env:
        raise GrpoError("field task: missing; grpo check TASK, or grpo check --data FILE")
    from grpo.tasks import load_task
    from grpo.tasks.protocol import assumptions_of

    name = options.task or ("env" if options.env and not options.data else "data")
    model = model_path(options.model, options.runs)
    every_row = replace(options.dataset, heldout_share=0.0)  # a check trains on nothing
    tools = described_tools(options) if options.show else []
    task = load_task(name, options.data, every_row, model=model, tools=tools)
    warn(assumptions_of(task))
    if options.show:
        return show_prompts(task, options, tools)
    if options.env:
        return check_env(task, options)
    if options.reward.strip() not in ("", "task") or options.text:
        return check_own_reward(task, options)
    from grpo.cli.task_check import check_task, check_with_model, lines
    from grpo.rewards import Scorer

    with Scorer(task, scoring=options.scoring) as scorer:
        scorer.check_requirements()
        report = ProgressLine()
        found = check_task(scorer, problems=options.problems, seed=options.seed, samples=options.samples, report=report)
        if options.model:
            policy, settings = load(options.model, options.runs, options.dataset)
            found.model, sampled = check_with_model(task, policy.name, sample_groups(scorer, policy, settings, options))
            found.samples = sampled[: options.samples]
    print(json.dumps(found.as_dict()) if options.json else "\n".join(lines(found)))
    return 0 if found.sound else 1


def warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"grpo: {line}", file=sys.stderr)


def check_own_reward(task: Task, options: CheckOptions) -> int:
    from grpo.cli.reward_check import check_reward, lines, model_findings
    from grpo.rewards import Scorer

    policy, settings = load(options.model, options.runs, options.dataset) if options.model else (None, {})
    # Trial answers are odd on purpose: failures are counted here, and do not end the check.
    scoring = replace(options.scoring, most_failures=1.0)
    with Scorer(task, options.reward, scoring, "cpu" if policy is None else str(policy.device)) as scorer:
        scorer.check_requirements()
        found = check_reward(
            scorer,
            problems=options.problems,
            seed=options.seed,
            samples=options.samples,
            text=options.text,
            tokens=None if policy is None else lambda text: policy.tokenizer.encode(text, add_special_tokens=False),
            report=ProgressLine(),
        )
        if policy is not None:
            found.model = model_findings(policy.name, sample_groups(scorer, policy, settings, options))
    print(json.dumps(found.as_dict()) if options.json else "\n".join(lines(found)))
    return 0 if found.sound else 1


def check_env(task: Task, options: CheckOptions) -> int:
    from grpo.cli.env_check import TRIED, check_environment, lines
    from grpo.tasks.protocol import HasProblems

    count = options.problems or TRIED
    problems = task.problems() if isinstance(task, HasProblems) else task.draw(0, count, options.seed)
    found = check_environment(options.env, problems, count, options.scoring, options.text, options.reward)
    print(json.dumps(found.as_dict()) if options.json else "\n".join(lines(found)))
    return 0 if found.sound else 1


def sample_groups(scorer: Scorer, policy: Policy, settings: dict[str, Any], options: CheckOptions) -> list[Group]:
    """Scored groups of the model, of the first training problems."""
    from grpo.episodes.start import chosen_replier
    from grpo.rollout.protocol import Sampling

    sampling = Sampling(
        seed=options.seed,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
        stop=options.stop or tuple(settings.get("stop", ())),
        purpose="check",
    )
    problems = scorer.task.draw(0, options.model_problems, options.seed)
    episodes = episode_settings(Episodes(tools=options.tools) if options.tools else Episodes(), settings)
    with engine_for(policy, scorer, episodes, chosen_replier(episodes)) as engine:
        return scorer.score(engine.sample(problems, options.group_size, sampling))


def described_tools(options: CheckOptions) -> list[Schema]:
    """Schemas of the tools that prompts describe: those of the options, or of the run."""
    _, settings = find_run(options.model, options.runs) or ("", {})
    if not (tools := options.tools or settings.get("episodes", {}).get("tools", "")):
        return []
    from grpo.episodes.tools import load_tools

    return [tool.schema for tool in load_tools(tools)]


def show_prompts(task: Task, options: CheckOptions, tools: Sequence[Schema]) -> int:
    """Print the first prompts. Of the model, only the tokenizer is loaded."""
    from grpo.cli.terminal.prompt import as_messages, as_tokens, print_prompts
    from grpo.tasks.protocol import HasProblems

    found = task.problems() if isinstance(task, HasProblems) else task.draw(0, options.show, options.seed)
    problems = found[: options.show]
    if not options.model:
        shown = [as_messages(problem) for problem in problems]
    else:
        from grpo.model.load import load_tokenizer
        from grpo.model.prompt import set_chat_template, template_warnings

        model, settings = find_run(options.model, options.runs) or (options.model, {})
        tokenizer, kwargs = load_tokenizer(model), template_kwargs(options.dataset, settings)
        set_chat_template(tokenizer, options.dataset.chat_template)
        warn(template_warnings(tokenizer, kwargs, options.model))
        shown = [as_tokens(problem, tokenizer, kwargs, tools) for problem in problems]
    if options.json:
        print(json.dumps([prompt.as_dict() for prompt in shown]))
        return 0
    print_prompts(shown)
    if not options.model:
        print("\nthese are the rows; --model MODEL shows the prompts as the model reads them, with special tokens")
    return 0
