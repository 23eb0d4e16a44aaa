"""Checks a reward of one's own before training: which answers earn what, which calls fail, and is there a signal?

The reward is called as in training: in worker processes, once for the trial answers of a problem.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from grpo.cli.task_check import Report, distinct_problems
from grpo.cli.terminal.line import printable
from grpo.cli.trial_answers import in_form, junk_for, tricks_for
from grpo.rewards import Scorer, error_line
from grpo.rewards.signature import columns_of
from grpo.tasks.protocol import HasProblems
from grpo.types import Completion, Group, Problem

TRIED = 32
"""Problems that are tried where no number is given: a call may be slow."""
Tokens = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Values:
    """Rewards of the answers of one kind."""

    count: int
    scored: int
    low: float | None
    mean: float | None
    high: float | None

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> Values:
        """
        >>> Values.of([])
        Values(count=0, scored=0, low=None, mean=None, high=None)
        """
        rewards = [done.reward for done in completions if done.reward is not None]
        bounds = (min(rewards), fmean(rewards), max(rewards)) if rewards else (None, None, None)
        return cls(len(completions), len(rewards), *bounds)


@dataclass
class RewardFindings:
    reward: str
    task: str
    problems: int
    answers: int
    by_answer: dict[str, Values]
    faults: dict[str, int]
    """Answers by fault."""
    first_faults: dict[str, str]
    """The first reason of each fault, and the text that was scored."""
    seconds_per_call: float
    """Seconds for the trial answers of one problem."""
    constant: float | None
    """The reward of every trial answer that was scored, where all earn the same."""
    samples: list[dict[str, Any]]
    made_up_tokens: bool
    """Whether the reward reads `completion_ids`, and no model gave the tokens."""
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """No call failed, and answers earn different rewards."""
        return not (self.faults or self.is_constant or self.is_silent or self.model.get("faults"))

    @property
    def is_silent(self) -> bool:
        """No trial answer was scored, nor a completion of the model: the reward returned None for each."""
        scored = [values.scored for values in self.by_answer.values()]
        return bool(scored) and not any(scored) and self.model.get("low") is None

    @property
    def is_constant(self) -> bool:
        """Every trial answer that was scored earns the same, and so does every completion of the model, if there is
        one."""
        sampled = {self.model.get(name, self.constant) for name in ("low", "high")}
        return self.constant is not None and sampled <= {self.constant, None}

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


def trial_answers(problems: Sequence[Problem], seed: int, text: str) -> dict[str, list[tuple[str, str]]]:
    """By problem: (kind, text) of each trial answer, without repeats. Those made of golds need golds; of a problem
    without one, the values of its columns are tried, because one of them may be what the reward compares with."""
    golds = [problem for problem in problems if problem.answer]
    kinds = {
        "gold": [(problem, problem.answer) for problem in golds],
        **column_values([problem for problem in problems if not problem.answer]),
        **{f"gold, {form}": in_form(golds, form) for form in ("sentence", "box")},
        **{trick: pairs for trick, pairs in tricks_for(problems, seed).items() if golds or "gold" not in trick},
        "the prompt twenty times": [(problem, " ".join([problem.prompt] * 20)) for problem in problems],
        "junk": junk_for(problems),
        **({"--text": [(problem, text) for problem in problems]} if text else {}),
    }
    found: dict[str, dict[str, str]] = {problem.id: {} for problem in problems}
    for kind, pairs in kinds.items():
        for problem, answer in pairs:
            found[problem.id].setdefault(answer, kind)
    return {id: [(kind, answer) for answer, kind in answers.items()] for id, answers in found.items()}


def column_values(problems: Sequence[Problem]) -> dict[str, list[tuple[Problem, str]]]:
    """
    >>> column_values([Problem("p", "6*7=", "", columns={"ground_truth": "42", "tags": ["easy"], "level": 3})])
    ... # doctest: +ELLIPSIS
    {'column ground_truth': [(Problem(...), '42')], 'column level': [(Problem(...), '3')]}
    """
    found: dict[str, list[tuple[Problem, str]]] = {}
    for problem in problems:
        for name, value in columns_of(problem).items():
            if isinstance(value, str | int | float):
                found.setdefault(f"column {name}", []).append((problem, str(value)))
    return found


def check_reward(
    scorer: Scorer,
    *,
    problems: int = 0,
    seed: int = 1,
    samples: int = 12,
    text: str = "",
    tokens: Tokens | None = None,
    report: Report = lambda done, count: None,
) -> RewardFindings:
    """Score trial answers of `problems` problems. `tokens` gives the token ids of a text; None: its bytes. Stops after
    a problem whose answers all failed, because each may have taken the whole time limit."""
    task = scorer.task
    tried = distinct_problems(task, problems or TRIED, seed)
    scorer.ready(task.problems() if isinstance(task, HasProblems) else tried)
    answers = trial_answers(tried, seed, text)
    by_kind: dict[str, list[Completion]] = {}
    shown: list[dict[str, Any]] = []
    count, seconds = sum(map(len, answers.values())), 0.0
    done: list[Completion] = []
    checked = 0
    for problem in tried:
        group = group_of(problem, [answer for _, answer in answers[problem.id]], tokens)
        started = time.perf_counter()
        [group] = scorer.score([group])
        seconds += time.perf_counter() - started
        done += group.completions
        report(len(done), count)
        for (kind, _), one in zip(answers[problem.id], group.completions, strict=True):
            by_kind.setdefault(kind, []).append(one)
            if problem is tried[0]:
                shown.append({"kind": kind, **sample_of(problem, one)})
        checked += 1
        if all(one.why for one in group.completions):
            break
    rewards = {one.reward for one in done if one.reward is not None}
    counts, reasons = faults_of(done)
    return RewardFindings(
        reward=", ".join(str(spec) for spec in scorer.specs),
        task=task.name,
        problems=checked,
        answers=len(done),
        by_answer={kind: Values.of(each) for kind, each in by_kind.items()},
        faults=counts,
        first_faults=reasons,
        seconds_per_call=seconds / checked,
        constant=rewards.pop() if len(rewards) == 1 else None,
        samples=shown[:samples],
        made_up_tokens=tokens is None and scorer.takes("completion_ids"),
    )


def group_of(problem: Problem, texts: Sequence[str], tokens: Tokens | None) -> Group:
    def completion(text: str) -> Completion:
        ids = np.array(list(text.encode(errors="replace")) if tokens is None else tokens(text), dtype=np.int64)
        return Completion(text, ids, np.zeros(len(ids), dtype=np.float32), "stop")

    return Group(problem, np.zeros(0, dtype=np.int64), tuple(map(completion, texts)), 0)


def faults_of(completions: Sequence[Completion]) -> tuple[dict[str, int], dict[str, str]]:
    """Completions by fault, such as "timeout in reward mine.py:f", and the first reason of each."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for done in completions:
        kind, _, _ = done.why.partition(": ")
        if kind:
            counts[kind] += 1
            reason = error_line(done.why).removeprefix(f"{kind}: ")
            reasons.setdefault(kind, f"{reason}; text {printable(done.text, 40)}")
    return dict(counts), reasons


def sample_of(problem: Problem, done: Completion) -> dict[str, Any]:
    return {"problem": problem.label, "text": done.text, "reward": done.reward, "parts": dict(done.parts)}


def model_findings(name: str, groups: Sequence[Group]) -> dict[str, Any]:
    """Spread of the rewards of sampled groups, and the share of groups with signal."""
    completions = [done for group in groups for done in group.completions]
    rewards = [done.reward for done in completions if done.reward is not None]
    by_group = [[done.reward for done in group.completions if done.reward is not None] for group in groups]
    return {
        "model": name,
        "groups": len(groups),
        "group_size": len(groups[0].completions),
        **asdict(Values.of(completions)),
        "std": pstdev(rewards) if rewards else None,
        "groups_with_signal": sum(len(set(each)) > 1 for each in by_group),
        "truncated": fmean(done.truncated for done in completions),
        "faults": faults_of(completions)[0],
    }


def lines(found: RewardFindings) -> Iterator[str]:
    """The report for a person."""
    each = found.answers / found.problems
    yield f"{found.reward} on {found.task}: {found.answers} trial answers to {found.problems} problems"
    yield f"{1e3 * found.seconds_per_call:.1f} ms for the {each:.0f} answers of a problem"
    yield "rewards by answer: lowest, mean and highest, and how many were scored:"
    for kind, values in found.by_answer.items():
        numbers = "".join(f"{_number(value):>10}" for value in (values.low, values.mean, values.high))
        yield f"  {kind:30}{numbers}   {values.scored} of {values.count}"
    if found.made_up_tokens:
        yield "completion_ids are the bytes of the text here; name a --model for its tokens"
    for fault, count in found.faults.items():
        yield f"FAULT {fault}: {count} answers; the first: {found.first_faults[fault]}"
    if found.is_constant:
        scored = sum(values.scored for values in found.by_answer.values())
        which = "every answer" if scored == found.answers else f"every answer it scored ({scored} of {found.answers})"
        yield (
            f"CONSTANT {which} earns {found.constant:g}: there is nothing to learn from; if another answer earns "
            "more, try it with --text"
        )
    if found.is_silent and not found.faults:
        yield "UNSCORED the reward returned None for every answer: there is nothing to learn from; return a number"
    if row := found.model:
        yield from _model_lines(row)
    yield "samples: reward and text (kind):"
    for sample in found.samples:
        yield f"  {_number(sample['reward']):>10}  {printable(sample['text'], 60)} ({sample['kind']})"


def _model_lines(row: Mapping[str, Any]) -> Iterator[str]:
    spread = f"mean {_number(row['mean'])}, std {_number(row['std'])}, {_number(row['low'])} to {_number(row['high'])}"
    yield f"{row['model']}: {row['scored']} of {row['count']} completions scored; rewards: {spread}"
    share = row["groups_with_signal"] / row["groups"]
    yield f"  {row['groups_with_signal']} of {row['groups']} groups of {row['group_size']} have signal ({share:.0%})"
    yield f"  {row['truncated']:.1%} of its completions were cut off"
    yield from (f"  FAULT {fault}: {count} completions" for fault, count in row["faults"].items())


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
