"""Scores completions with the rewards of a run, each in the trainer's process, in workers or at a judge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards.functions import FunctionReward, Spec, parse
from grpo.rewards.pending import Pending
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import Outcome, Request, Reward, TaskReward, error_line, invoke_each
from grpo.rewards.pool.workers import Workers, pickled
from grpo.rewards.signature import refuse_unknown_columns
from grpo.rewards.trainer_state import TrainerState
from grpo.tasks.protocol import ChecksCorrectness, HasEpisodeTraits, HasRequirements, HasTraits, Task, is_trusted
from grpo.types import Completion, Group, Problem

if TYPE_CHECKING:
    from grpo.rewards.judge import Judge

RECENT = 500
"""Completions over which the share of a reward's faults is taken."""
MIN_RECENT = 100
"""Least denominator of that share: one fault in the first step must not stop the run."""

Outcomes = list[list[Outcome]]
"""Of one reward, by group and completion."""
Start = Callable[[Sequence[Request]], Callable[[], Outcomes]]
"""Starts to score; the function it returns waits for the outcomes."""


class Environment(Protocol):
    """The environment that plays the episodes of a run: completions come with the rewards that it gave them."""

    parts: Sequence[str]
    """Names of its own rewards: several where each problem has one of several environments."""

    def part_of(self, problem: Problem) -> str:
        """The one of them that episodes of this problem get."""
        ...

    def take(
        self, functions: Mapping[Spec, Callable[..., Any] | None], *, evaluation: bool
    ) -> Mapping[Spec, tuple[str, ...]]:
        """Takes over those of the reward functions that read environments, to call them itself at the end of each
        episode, of training or of evaluations. Returns them with the parameters that they require."""
        ...


@dataclass(frozen=True)
class WeightedReward:
    """A reward of the run and its weight."""

    title: str
    weight: float
    start: Start | None = None
    """None: the workers compute it, together with their other rewards."""
    in_process: bool = False
    """Computed by the trainer's process: starts when the outcomes are collected, with all groups at once."""
    is_task: bool = False
    """The task's own checker, which also decides what is correct."""
    counts: bool = True
    """Whether it is part of the reward. The task's checker decides correctness either way."""


class Scorer:
    """Scores completions of a task with the rewards of a run. The caller closes it: rewards may run in processes.

    >>> from grpo.tasks import load_task
    >>> with Scorer(load_task("arithmetic")) as scorer:
    ...     [done] = scorer.score_texts([(Problem("p", "6*7=", "42"), "42")])
    >>> done.reward, done.correct, done.parts, scorer.assumptions
    (1.0, True, {'correct': 1.0}, [])
    """

    def __init__(
        self,
        task: Task,
        reward: str = "",
        scoring: Scoring | None = None,
        device: str = "cpu",
        functions: Mapping[str, Callable[..., Any]] | None = None,
        state: TrainerState | None = None,
        *,
        environment: Environment | None = None,
        evaluation: bool = False,
    ):
        """`functions`: those that `reward` names as `python:NAME`. `state`: the state of the run that they are given as
        `trainer_state`. `environment`: it rewards episodes, and the rewards of `reward` are added; if that is empty,
        there are no others. `evaluation`: these are the rewards of evaluations, where training has others."""
        self.task, self.scoring, self.device = task, scoring or Scoring(), device
        self.state = state or TrainerState()
        self.functions, self.environment = functions or {}, environment
        self.specs = parse(reward) or ([] if environment else [Spec("task", "", 1.0)])
        given = {spec: self.functions.get(spec.name) for spec in self.specs if spec.is_function}
        self.taken = environment.take(given, evaluation=evaluation) if environment else {}
        """Functions that the environment calls, and the parameters that they require."""
        self.brought: dict[str, float] = {
            **(dict.fromkeys(environment.parts, 1.0) if environment else {}),
            **{spec.part: spec.weight for spec in self.taken},
        }
        """Rewards that completions bring from their environment: weights by name."""
        _refuse_duplicate_names(self.specs)
        if self.specs and not any([*self.brought.values(), *(spec.weight for spec in self.specs)]):
            name = "evaluation.reward" if evaluation else "reward"
            raise GrpoError(f"field {name}: every weight in {reward!r} is 0; give an entry another weight")
        self.rewards_task = any(spec.source == "task" for spec in self.specs)
        """Whether the task's own checker is part of the reward."""
        self.checks_golds = [spec.source for spec in self.specs] == ["task"]
        """Whether every gold answer must be correct."""
        self.has_verdict = isinstance(task, ChecksCorrectness)
        """Whether the task says what is correct; otherwise the full reward of its checker counts as correct."""
        self.assumptions: list[str] = []
        """Assumptions to report when a run starts."""
        self.workers: Workers | None = None
        self.judges: list[Judge] = []
        self.recent: dict[str, deque[bool]] = {}
        self.rewards = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called again: a run closes the scorers of training and of evaluations, which may be one."""
        if self.workers:
            self.workers.close()
        while self.judges:
            self.judges.pop().close()

    def check_requirements(self) -> None:
        """Raises GrpoError where the task's checker is part of the reward and lacks something, such as golds."""
        if self.rewards_task and isinstance(self.task, HasRequirements):
            self.task.check_requirements()

    def ready(self, problems: Sequence[Problem]) -> None:
        """Waits until the rewards are loaded. Raises GrpoError where one cannot be, or takes a column that the
        `problems` do not have."""
        for spec, required in self.taken.items():
            refuse_unknown_columns(f"reward {spec}", required, problems)
        if not self.workers:
            return
        self.workers.ready()
        titles = [reward.title for reward in self.rewards if reward.start is None]
        for title, required in zip(titles, self.workers.required, strict=True):
            if "environments" in required:
                raise GrpoError(f"{title}: takes environments, and the run has none; name one with --env file.py:Class")
            refuse_unknown_columns(title, required, problems)

    def takes(self, parameter: str) -> bool:
        """Whether a reward function cannot be called without this argument of TRL; known once it is loaded."""
        return self.workers is not None and any(parameter in required for required in self.workers.required)

    def submit(self, groups: Sequence[Group], step: int = 0) -> Pending:
        """Starts to score and returns at once; `collect` waits. More groups may be added."""
        pending = Pending(self, step)
        pending.add(dict(enumerate(groups)))
        return pending

    def score(self, groups: Sequence[Group], step: int = 0) -> list[Group]:
        """+ rewards by part, their sum, the task's traits, and the reason where scoring went wrong."""
        return self.submit(groups, step).collect()

    def score_texts(self, pairs: Iterable[tuple[Problem, str]]) -> list[Completion]:
        """Each text as a scored completion of its problem."""
        empty = np.zeros(0, dtype=np.int64)
        groups = [Group(problem, empty, (Completion(text, empty, empty, "stop"),), 0) for problem, text in pairs]
        return [group.completions[0] for group in self.score(groups)]

    def count_faults(self, title: str, outcomes: Outcomes) -> None:
        """Counts the faults of a reward. Raises GrpoError when their share exceeds scoring.most_failures."""
        recent = self.recent.setdefault(title, deque(maxlen=RECENT))
        recent.extend(bool(outcome.fault) for rows in outcomes for outcome in rows)
        if sum(recent) > self.scoring.most_failures * max(len(recent), MIN_RECENT):
            last = next(outcome for rows in reversed(outcomes) for outcome in reversed(rows) if outcome.fault)
            raise GrpoError(
                f"{title}: failed on {sum(recent)} of the last {len(recent)} completions, more than "
                f"scoring.most_failures ({self.scoring.most_failures:g}) allows; the last: {last.fault}: "
                f"{error_line(last.why)}; fix it, or raise the limit"
            )

    def _start(self) -> list[WeightedReward]:
        isolated: list[Reward] = []
        rewards = []
        for spec in self.specs:
            if spec.source == "model":
                from grpo.rewards.model import ModelReward

                model = ModelReward(spec.name, self.device, spec.part)
                rewards.append(WeightedReward(f"reward {spec}", spec.weight, model.start, True))
            elif spec.source == "judge":
                from grpo.rewards.judge import Judge

                judge = Judge(spec.name, self.scoring, spec.part)
                self.judges.append(judge)
                rewards.append(WeightedReward(f"reward {spec}", spec.weight, judge.start))
            elif spec.source == "task":
                rewards.append(self._task_check(spec.weight, isolated))
            elif spec not in self.taken:
                rewards.append(WeightedReward(f"reward {spec}", spec.weight))
                function = self.functions.get(spec.name) if spec.source == "python" else None
                isolated.append(FunctionReward(spec, function))
        traits = isinstance(self.task, HasTraits | HasEpisodeTraits)
        if not self.rewards_task and (self.has_verdict or (is_trusted(self.task) and traits)):
            rewards.append(self._task_check(0.0, isolated))
        if isolated:
            scoring = self.scoring
            limits = Limits(scoring.seconds, int(scoring.memory_gb * 2**30), workers=scoring.workers)
            self.workers = Workers(isolated, limits)
        return rewards

    def _task_check(self, weight: float, isolated: list[Reward]) -> WeightedReward:
        """The task's checker, in this process or with the `isolated` rewards."""
        reward = TaskReward(self.task, rewards=self.rewards_task)
        start = self._in_this_process(reward)
        if start is None:
            isolated.append(reward)
        return WeightedReward(reward.name, weight, start, start is not None, is_task=True, counts=self.rewards_task)

    def _in_this_process(self, reward: TaskReward) -> Start | None:
        """Computes it in the trainer's process, for a task that is trusted or cannot be pickled; else None."""
        if not is_trusted(self.task):
            why = why_not_sent(reward)
            if not why:
                return None
            self.assumptions.append(
                f"task {self.task.name} is scored in the trainer's process, where a call that hangs is not ended: {why}"
            )
        return lambda requests: lambda: [invoke_each(reward, request) for request in requests]


def _refuse_duplicate_names(specs: Sequence[Spec]) -> None:
    """Values are recorded by the function's name."""
    names = [spec.name.partition("(")[0] for spec in specs if spec.source not in ("model", "judge")]
    for name in names:
        if names.count(name) > 1:
            raise GrpoError(f"field reward: two rewards are named {name or 'task'}; rename one")


def why_not_sent(reward: Reward) -> str:
    """Why a reward cannot be sent to a worker process; empty where it can."""
    try:
        pickled(reward)
    except GrpoError as error:
        return str(error)
    return ""
