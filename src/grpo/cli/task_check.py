"""Checks a task before training: do golds pass, does junk fail, which wrong answers earn a reward?

Without a model the answers are made up (`trial_answers.py`). With a model some are sampled: their pass rate tells how
many groups will carry a signal.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo.cli.terminal.line import printable
from grpo.cli.trial_answers import ALL_FORMS, Answer, in_form, junk_for, tricks_for
from grpo.rewards import Scorer
from grpo.tasks import Task
from grpo.tasks.protocol import HasProblems, HasReasons
from grpo.training.evaluation import trait_shares, wilson_interval
from grpo.types import Completion, Group, Problem

ENDLESS = 1000
"""Problems that are checked of an endless task."""
TRICKED = 500
"""Problems on which junk and tricks are tried."""
SHOWN = 20
"""Failures that are listed one by one."""
CHUNK = 64
"""Answers scored between two reports of progress."""


@dataclass(frozen=True)
class Sample:
    """One scored answer."""

    problem: str
    source: str
    text: str
    extracted: str
    parts: Mapping[str, float | None]
    reward: float | None
    correct: bool | None
    why: str


Scored = tuple[Problem, Completion]
Report = Callable[[int, int], None]
"""Called with the number of scored answers and of all answers."""


@dataclass(frozen=True)
class Count:
    """How many answers of all were accepted."""

    right: int
    count: int


@dataclass
class Findings:
    task: str
    golds: Count
    failed_golds: list[Sample]
    forms: dict[str, Count]
    junk: Count
    rewarded_junk: list[Sample]
    tricks: dict[str, Count]
    rewarded_wrong: list[Sample]
    """Answers with the full reward that `is_correct` calls wrong."""
    seconds_per_reward: float
    samples: list[Sample]
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Every gold is correct, and no junk earns the full reward."""
        return self.golds.right == self.golds.count and not self.junk.right

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


def check_task(
    scorer: Scorer, *, problems: int = 0, seed: int = 1, samples: int = 12, report: Report = lambda done, count: None
) -> Findings:
    """Check distinct problems: `problems` of them, or 0: every row, or `ENDLESS` of an endless task."""
    task, known = scorer.task, distinct_problems(scorer.task, problems, seed)
    some = known[:TRICKED]
    forms = {form: pairs for form in ALL_FORMS if (pairs := in_form(known, form))}
    tricks = tricks_for(some, seed)
    answers = {"gold": [(problem, problem.answer) for problem in known], "junk": junk_for(some), **tricks, **forms}
    scorer.score_texts(answers["gold"][:1])  # starts the workers: not timed
    started = time.perf_counter()
    scored = score_all(scorer, answers, report)
    seconds = (time.perf_counter() - started) / len(
        {(problem.id, text) for a in answers.values() for problem, text in a}
    )
    rng = random.Random(seed)
    shown = [(source, rng.choice(each)) for source, each in scored.items() if source != "gold"]
    wrong = [(source, each) for source, found in scored.items() for each in found if each[1].correct is False]
    return Findings(
        task=task.name,
        golds=count_of(scored["gold"], is_correct),
        failed_golds=[explained(task, each, "gold") for each in scored["gold"] if not is_correct(each[1])],
        forms={form: count_of(scored[form], is_correct) for form in forms},
        junk=count_of(scored["junk"], has_full_reward),
        rewarded_junk=[explained(task, each, "junk") for each in scored["junk"] if has_full_reward(each[1])],
        tricks={trick: count_of(scored[trick], has_full_reward) for trick in tricks},
        rewarded_wrong=[explained(task, each, source) for source, each in wrong if has_full_reward(each[1])],
        seconds_per_reward=seconds,
        samples=[explained(task, each, source) for source, each in shown[:samples]],
    )


def distinct_problems(task: Task, count: int, seed: int) -> list[Problem]:
    """An endless task may draw the same problem many times; a check of it tells nothing new."""
    if isinstance(task, HasProblems):
        found = task.problems()[: count or None]
    else:
        count = count or ENDLESS
        heldout = task.heldout()[: count // 2]
        found = [*heldout, *task.draw(0, count - len(heldout), seed)]
    return list({(problem.prompt, problem.answer): problem for problem in found}.values())


def score_all(scorer: Scorer, answers: Mapping[str, Sequence[Answer]], report: Report) -> dict[str, list[Scored]]:
    """Score every answer, equal ones once."""
    distinct = {(problem.id, text): (problem, text) for pairs in answers.values() for problem, text in pairs}
    pairs, done = list(distinct.values()), {}
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        for (problem, text), completion in zip(chunk, scorer.score_texts(chunk), strict=True):
            done[problem.id, text] = completion
        report(len(done), len(pairs))
    return {source: [(problem, done[problem.id, text]) for problem, text in pairs] for source, pairs in answers.items()}


def is_correct(completion: Completion) -> bool:
    return completion.correct is True


def has_full_reward(completion: Completion) -> bool:
    return completion.reward is not None and completion.reward >= 1.0


def count_of(scored: Sequence[Scored], accepted: Callable[[Completion], bool]) -> Count:
    return Count(sum(accepted(completion) for _, completion in scored), len(scored))


def explained(task: Task, one: Scored, source: str) -> Sample:
    problem, done = one
    extracted, reason = task.why(problem, done.text) if isinstance(task, HasReasons) else ("", "")
    return Sample(problem.label, source, done.text, extracted, done.parts, done.reward, done.correct, reason)


def check_with_model(task: Task, model: str, groups: Sequence[Group]) -> tuple[dict[str, Any], list[Sample]]:
    """Pass rate and expected share of groups without signal, from sampled groups; and the completions."""
    group_size = len(groups[0].completions)
    completions = [completion for group in groups for completion in group.completions]
    right = [sum(bool(completion.correct) for completion in group.completions) for group in groups]
    low, high = wilson_interval(sum(right), len(completions))
    sizes = [size for size in (2, 4, 8, 16, 32, 64) if size < group_size] + [group_size]
    row = {
        "model": model,
        "problems": len(groups),
        "group_size": group_size,
        "pass_rate": sum(right) / len(completions),
        "low": low,
        "high": high,
        "truncated": sum(completion.truncated for completion in completions) / len(completions),
        "zero_signal": {size: zero_signal_share(right, group_size, size) for size in sizes},
    }
    row |= trait_shares(completions)
    return row, [explained(task, (g.problem, completion), model) for g in groups for completion in g.completions]


def zero_signal_share(right: Sequence[int], sampled: int, size: int) -> float:
    """Expected share of groups of `size` that are all right or all wrong, from `right` of `sampled` for each problem.
    Unbiased: the chance that `size` of the sampled completions, drawn without replacement, agree.

    >>> zero_signal_share([0, 2, 4], sampled=4, size=4), round(zero_signal_share([2], sampled=4, size=2), 4)
    (0.6666666666666666, 0.3333)
    """
    alike = [math.comb(count, size) + math.comb(sampled - count, size) for count in right]
    return sum(alike) / (len(alike) * math.comb(sampled, size))


def lines(found: Findings) -> Iterator[str]:
    """The report for a person."""
    yield f"{found.task}: {found.golds.right} of {found.golds.count} golds pass their own check"
    for sample in found.failed_golds[:SHOWN]:
        yield f"  FAILS {sample.problem}: gold {printable(sample.text, 40)}: {sample.why or f'scored {sample.reward}'}"
    if len(found.failed_golds) > SHOWN:
        yield f"  and {len(found.failed_golds) - SHOWN} more"
    yield f"junk: {found.junk.right} of {found.junk.count} texts without an answer earn the full reward"
    yield from (f"  REWARDED {sample.problem}: {printable(sample.text, 40)}" for sample in found.rewarded_junk[:SHOWN])
    yield f"{1e3 * found.seconds_per_reward:.3f} ms for a reward"
    if any(share.right for form, share in found.forms.items() if form != "bare"):
        yield "golds in usual forms, and how many are accepted:"
        yield from (f"  {form:30} {share.right:>7} of {share.count}" for form, share in found.forms.items())
    else:
        yield "golds are accepted as they are, and in no other form"
    yield "wrong or evasive answers, and how many earn the full reward:"
    yield from (f"  {trick:30} {share.right:>7} of {share.count}" for trick, share in found.tricks.items())
    if found.rewarded_wrong:
        yield f"{len(found.rewarded_wrong)} answers earn the full reward and are wrong by is_correct:"
        for sample in found.rewarded_wrong[:SHOWN]:
            yield f"  WRONG {sample.problem}: {printable(sample.text, 40)} ({sample.source})"
    if row := found.model:
        interval = f"[{row['low']:.1%} to {row['high']:.1%}]"
        yield f"{row['model']} passes {row['pass_rate']:.1%} {interval} of {row['problems']} problems"
        shares = ", ".join(f"{share:.0%} at {size}" for size, share in row["zero_signal"].items())
        yield f"  groups without signal, by group size: {shares}"
        yield f"  {row['truncated']:.1%} of its completions were cut off"
    yield "samples: text, extracted answer, reward, reason (source):"
    for sample in found.samples:
        earned = "none" if sample.reward is None else f"{sample.reward:g}"
        columns = f"{printable(sample.text, 44):44}  {printable(sample.extracted, 16):16}  {earned:>4}"
        yield f"  {columns}  {sample.why or '-'} ({sample.source})"
