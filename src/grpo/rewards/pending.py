"""Completions that are being scored: waits for their rewards, and sums the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from grpo.errors import GrpoError, one_line
from grpo.rewards.conversation import conversation
from grpo.rewards.pool.invoke import LARGEST, TOO_LARGE, Outcome, Request
from grpo.types import Completion, Group, changed

if TYPE_CHECKING:
    from grpo.rewards.scoring import Outcomes, Scorer, WeightedReward

T = TypeVar("T")


class Pending:
    """Completions that are being scored."""

    def __init__(self, scorer: Scorer, step: int = 0):
        """`step`: that of the training, which reward functions see."""
        self.scorer, self.state = scorer, scorer.state.at(step)
        self.arrived: dict[int, Group] = {}
        """By number, in order of arrival, as `requests` and `waits` are."""
        self.requests: list[Request] = []
        self.waits: list[Callable[[], list[Outcomes | None]]] = []
        """One for each call of `add`: waits for workers and judges, and returns their outcomes by reward."""

    @property
    def groups(self) -> list[Group]:
        """In order of their numbers."""
        return self._in_order([*self.arrived.values()])

    def _in_order(self, of_groups: Sequence[T]) -> list[T]:
        """One thing of each group: from order of arrival to order of number."""
        return [thing for _, thing in sorted(zip(self.arrived, of_groups, strict=True), key=lambda pair: pair[0])]

    def add(self, groups: Mapping[int, Group]) -> None:
        """Starts to score these groups too. Their numbers, those of their problems, come in any order."""
        if not groups:
            return
        workers, rewards = self.scorer.workers, self.scorer.rewards
        requests = [
            Request(
                group.problem,
                tuple(completion.text for completion in group.completions),
                tuple(tuple(completion.tokens.tolist()) for completion in group.completions) if workers else (),
                self.state,
                tuple(conversation(done.turns, done.observations) for done in group.completions)
                if group.completions[0].turns
                else (),
            )
            for group in groups.values()
        ]
        by_workers = workers.start(requests) if workers else list
        others = [each.start(requests) if each.start and not each.in_process else None for each in rewards]

        def wait() -> list[Outcomes | None]:
            judged = [None if finish is None else finish() for finish in others]
            from_workers = iter(by_workers())
            return [next(from_workers) if each.start is None else judged[i] for i, each in enumerate(rewards)]

        self.arrived |= groups
        self.requests += requests
        self.waits.append(wait)

    def collect(self) -> list[Group]:
        """Waits until all groups are scored; in order of their numbers."""
        brought, rewards, has_verdict = self.scorer.brought, self.scorer.rewards, self.scorer.has_verdict
        requests = self._in_order(self.requests)
        local = [each.start(requests)() if each.start and each.in_process else None for each in rewards]
        parts = [wait() for wait in self.waits]
        outcomes = [
            self._in_order([rows for part in parts for rows in part[i] or ()]) if found is None else found
            for i, found in enumerate(local)
        ]
        for weighted, by_group in zip(rewards, outcomes, strict=True):
            _refuse_mistakes(weighted.title, self.groups, by_group)
            self.scorer.count_faults(weighted.title, by_group)
        self._count_episodes()

        def scored(number: int, group: Group) -> Group:
            completions = [
                _scored(done, brought, rewards, [by_group[number][row] for by_group in outcomes], has_verdict)
                for row, done in enumerate(self._rewarded(group))
            ]
            for row, done in enumerate(completions):
                if done.reward is not None and abs(done.reward) > LARGEST:
                    titles = ", ".join([*brought, *(weighted.title for weighted in rewards if weighted.counts)])
                    raise GrpoError(f"{titles}, {_named(group, row)}: the weighted sum is {done.reward:g}; {TOO_LARGE}")
            return replace(group, completions=tuple(completions))

        return [scored(number, group) for number, group in enumerate(self.groups)]

    def _rewarded(self, group: Group) -> Sequence[Completion]:
        """An episode that its environment gave no reward earned 0, where environments alone give rewards, or another
        one of the group got one: many reward nothing but the win."""
        name = self.scorer.environment.part_of(group.problem) if self.scorer.environment else ""
        if self.scorer.specs and not any(name in done.parts for done in group.completions):
            return group.completions
        return [
            done if done.fault or name in done.parts else changed(done, parts={**done.parts, name: 0.0})
            for done in group.completions
        ]

    def _count_episodes(self) -> None:
        """Counts the episodes whose environment went wrong."""
        groups = [group for group in self.groups if any(done.turns for done in group.completions)]
        faults = [[Outcome(fault=done.fault, why=done.why) for done in group.completions] for group in groups]
        self.scorer.count_faults("episodes", faults)


def _scored(
    completion: Completion,
    brought: Mapping[str, float],
    rewards: Sequence[WeightedReward],
    outcomes: Sequence[Outcome],
    has_verdict: bool,
) -> Completion:
    """`brought`: weights of the rewards that its environment gave it."""
    parts = {name: value for name, value in completion.parts.items() if name in brought}
    traits, extra, logged = dict(completion.traits), dict(completion.extra), dict(completion.logged)
    values: list[float] = [brought[name] * value for name, value in parts.items() if value is not None]
    correct: bool | None = None
    for weighted, outcome in zip(rewards, outcomes, strict=True):
        parts |= outcome.parts
        traits |= outcome.traits
        extra |= outcome.extra
        logged |= outcome.logged
        values += [weighted.weight * value for value in outcome.parts.values() if value is not None]
        # A completion that makes a checker hang scores 0, and its group keeps its comparison.
        values += [0.0] * (weighted.counts and outcome.fault in ("timeout", "crash"))
        correct = _correct(outcome, has_verdict) if weighted.is_task else correct
    unscored, why = not values, ""
    if any(outcome.fault for outcome in outcomes):
        faulty = [(weighted, out) for weighted, out in zip(rewards, outcomes, strict=True) if out.fault]
        unscored = unscored or any(weighted.counts and outcome.fault == "failure" for weighted, outcome in faulty)
        why = "\n".join(f"{outcome.fault} in {weighted.title}: {outcome.why}" for weighted, outcome in faulty)
    reward = None if unscored else float(sum(values))
    if completion.fault:
        return _of_faulty_episode(changed(completion, parts=parts, traits=traits, extra=extra, logged=logged))
    return changed(
        completion, parts=parts, reward=reward, correct=correct, traits=traits, extra=extra, logged=logged, why=why
    )


def _of_faulty_episode(completion: Completion) -> Completion:
    """An environment that hung or crashed earns 0, whatever its text earns, else hanging it would pay; after a failure
    of the environment itself the completion stays unscored."""
    why = f"{completion.fault} in its episode: {completion.why}"
    if completion.fault == "failure":
        return changed(completion, reward=None, correct=None, why=why)
    parts = {name: None if value is None else 0.0 for name, value in completion.parts.items()}
    return changed(completion, parts=parts, reward=0.0, correct=False, why=why)


def _correct(outcome: Outcome, has_verdict: bool) -> bool | None:
    """The task's verdict; for a task without one, whether its checker gave the full reward of 1."""
    if outcome.fault:
        return None if outcome.fault == "failure" else False
    if has_verdict:
        return outcome.correct
    values = [value for value in outcome.parts.values() if value is not None]
    return sum(values) >= 1.0 if values else None


def _refuse_mistakes(title: str, groups: Sequence[Group], outcomes: Outcomes) -> None:
    for group, rows in zip(groups, outcomes, strict=True):
        for row, outcome in enumerate(rows):
            if outcome.fault == "mistake":
                raise GrpoError(f"{title}, {_named(group, row)}: {outcome.why}")


def _named(group: Group, row: int) -> str:
    """A completion in a message: its problem, its place in the group, and the start of its text."""
    return f"problem {group.problem.label}, completion {row} ({one_line(repr(group.completions[row].text), 60)})"
