"""Looks at a task before anything is trained on it: do its golds pass, does junk fail, what pays that should not?

Without a model the completions are made up: golds in the forms people write them, junk, and tricks that a policy might
find. With one, some are sampled, and their pass rate tells how many groups will carry a signal.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from grpo.cli.terminal.printed import printable
from grpo.rewards import Scorer
from grpo.tasks import Task
from grpo.tasks.checkers.numbers import read_number
from grpo.tasks.protocol import HasProblems, HasReasons
from grpo.training.evaluation import wilson_interval
from grpo.types import Completion, Problem, is_right

if TYPE_CHECKING:
    from grpo.model.policy import Policy

ENDLESS = 1000
"""Problems that are looked at of a task without end."""
TRICKED = 500
"""Problems that junk and tricks are tried on."""
SHOWN = 20
"""Failures that are listed one by one."""

FORMS: dict[str, str] = {
    "bare": "{gold}",
    "sentence": "The answer is {gold}.",
    "label": "**Answer:** {minus}",
    "box": r"\boxed{{{gold}}}",
    "hashes": "#### {gold}",
    "tag": "<answer>{gold}</answer>",
    "dollars": "The answer is ${gold}.",
    "escaped dollars": r"The answer is \${gold}",
    "box with unit": r"\boxed{{{gold} \text{{ dollars}}}}",
    "unit": "{gold} dollars",
    "decimals": "{gold}.00",
    "LaTeX thousands": "${thousands}$",
}
"""Twelve usual forms; the last six are for golds that are whole numbers."""
FOR_NUMBERS = tuple(FORMS)[6:]
JUNK = ("", " ", "x", "I do not know.", "!!!", "lorem ipsum dolor sit amet", "<answer></answer>", r"\boxed{}", "####")


@dataclass(frozen=True)
class Sample:
    """One completion, as it was judged."""

    problem: str
    source: str
    text: str
    extracted: str
    parts: Mapping[str, float | None]
    reward: float | None
    why: str


Judged = tuple[Problem, Completion]


@dataclass(frozen=True)
class Paid:
    """How many of how many earned full marks."""

    right: int
    count: int


@dataclass
class Findings:
    task: str
    golds: Paid
    failed_golds: list[Sample]
    forms: dict[str, Paid]
    junk: Paid
    paid_junk: list[Sample]
    tricks: dict[str, Paid]
    seconds_per_reward: float
    samples: list[Sample]
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Every gold passes, and nothing that says nothing does."""
        return self.golds.right == self.golds.count and not self.junk.right

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


def check_task(scorer: Scorer, *, problems: int = 0, seed: int = 1, samples: int = 12) -> Findings:
    """`problems`: how many are looked at; 0: every row, or `ENDLESS` of a task without end."""
    task = scorer.task
    known = list(known_problems(task, problems, seed))
    judged(scorer, [(problem, problem.answer) for problem in known[:1]])  # starts the workers, which is not timed
    started = time.perf_counter()
    golds = judged(scorer, [(problem, problem.answer) for problem in known])
    seconds = (time.perf_counter() - started) / len(known)
    forms = {form: judged(scorer, rephrased(known, form)) for form in FORMS}
    some = known[:TRICKED]
    junk = judged(scorer, [(problem, text) for problem in some for text in JUNK if text.strip() != problem.answer])
    tricks = {trick: judged(scorer, pairs) for trick, pairs in tricks_on(some, seed).items()}
    made_up, rng = {"junk": junk, **tricks, **forms}, random.Random(seed)
    shown = [(source, rng.choice(each)) for source, each in made_up.items() if each]
    return Findings(
        task=task.name,
        golds=paid(golds),
        failed_golds=[explained(task, each, "gold") for each in golds if not is_right(each[1].reward)],
        forms={form: paid(each) for form, each in forms.items() if each},
        junk=paid(junk),
        paid_junk=[explained(task, each, "junk") for each in junk if is_right(each[1].reward)],
        tricks={trick: paid(each) for trick, each in tricks.items()},
        seconds_per_reward=seconds,
        samples=[explained(task, each, source) for source, each in shown[:samples]],
    )


def known_problems(task: Task, count: int, seed: int) -> Iterator[Problem]:
    if isinstance(task, HasProblems):
        return islice(task.problems(), count or None)
    count = count or ENDLESS
    heldout = task.heldout()[: count // 2]
    return iter([*heldout, *task.draw(0, count - len(heldout), seed)])


def rephrased(problems: Sequence[Problem], form: str) -> list[tuple[Problem, str]]:
    pairs = []
    for problem in problems:
        gold = problem.answer.strip()
        number = read_number(gold)
        if form in FOR_NUMBERS and (
            number is None or number.value.denominator > 1 or not re.fullmatch(r"-?[\d,]+", gold)
        ):
            continue
        said = {"gold": gold, "minus": gold.replace("-", "−", 1) if number else gold, "thousands": gold}
        if number and number.value.denominator == 1:
            said["thousands"] = f"{int(number.value):,}".replace(",", "{,}")
        pairs.append((problem, FORMS[form].format(**said)))
    return pairs


def tricks_on(problems: Sequence[Problem], seed: int) -> dict[str, list[tuple[Problem, str]]]:
    """What a policy might find out that pays without solving anything."""
    golds = [problem.answer for problem in problems]
    commonest = Counter(golds).most_common(1)[0][0]
    rng = random.Random(seed)

    def others(problem: Problem) -> str:
        return " ".join(
            rf"\boxed{{{gold}}}" for gold in rng.sample(golds, min(20, len(golds))) if gold != problem.answer
        )

    tricks: dict[str, Callable[[Problem], str]] = {
        "the prompt again": lambda problem: problem.prompt,
        "every digit": lambda problem: "0 1 2 3 4 5 6 7 8 9",
        "every letter, yes and no": lambda problem: "A B C D E yes no",
        "twenty other golds in boxes": others,
        "always the commonest gold": lambda problem: f"The answer is {commonest}.",
        "the gold, then another number": lambda problem: f"{problem.answer} or maybe 123456789.5",
        "the gold inside nonsense": lambda problem: f"lorem ipsum {problem.answer} dolor sit amet",
    }
    return {name: [(problem, text(problem)) for problem in problems] for name, text in tricks.items()}


def judged(scorer: Scorer, pairs: Sequence[tuple[Problem, str]]) -> list[Judged]:
    return [(problem, done) for (problem, _), done in zip(pairs, scorer.score_texts(pairs), strict=True)]


def explained(task: Task, one: Judged, source: str) -> Sample:
    problem, done = one
    extracted, reason = task.why(problem, done.text) if isinstance(task, HasReasons) else ("", "")
    return Sample(problem.id, source, done.text, extracted, done.parts, done.reward, reason)


def paid(judgements: Sequence[Judged]) -> Paid:
    return Paid(sum(is_right(completion.reward) for _, completion in judgements), len(judgements))


def check_with_model(
    scorer: Scorer,
    policy: Policy,
    *,
    problems: int,
    group_size: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> tuple[dict[str, Any], list[Sample]]:
    """Pass rate and expected share of groups without a signal, from sampled groups; and the completions."""
    from grpo.rollout.builtin import Engine
    from grpo.rollout.protocol import Sampling

    task = scorer.task
    asked = task.draw(0, problems, seed)
    sampling = Sampling(seed=seed, temperature=temperature, max_new_tokens=max_new_tokens, purpose="check")
    groups = scorer.score(Engine(policy).sample(asked, group_size, sampling))
    completions = [completion for group in groups for completion in group.completions]
    right = [sum(is_right(completion.reward) for completion in group.completions) for group in groups]
    low, high = wilson_interval(sum(right), len(completions))
    sizes = [size for size in (2, 4, 8, 16, 32, 64) if size < group_size] + [group_size]
    row = {
        "model": policy.name,
        "problems": len(groups),
        "group_size": group_size,
        "pass_rate": sum(right) / len(completions),
        "low": low,
        "high": high,
        "truncated": sum(completion.finish == "length" for completion in completions) / len(completions),
        "zero_signal": {size: zero_signal_share(right, group_size, size) for size in sizes},
    }
    for trait in completions[0].traits:
        row[f"{trait}_share"] = sum(completion.traits[trait] for completion in completions) / len(completions)
    return row, [explained(task, (g.problem, completion), policy.name) for g in groups for completion in g.completions]


def zero_signal_share(right: Sequence[int], sampled: int, size: int) -> float:
    """Expected share of groups of `size` whose answers are all right or all wrong, from `right` of `sampled` for each
    problem. Unbiased: the chance that `size` of the completions at hand, drawn without putting back, agree.

    >>> zero_signal_share([0, 2, 4], sampled=4, size=4), round(zero_signal_share([2], sampled=4, size=2), 4)
    (0.6666666666666666, 0.3333)
    """
    alike = [math.comb(count, size) + math.comb(sampled - count, size) for count in right]
    return sum(alike) / (len(alike) * math.comb(sampled, size))


def lines(found: Findings) -> Iterator[str]:
    """For a person to read."""
    yield f"{found.task}: {found.golds.right} of {found.golds.count} golds pass their own check"
    for sample in found.failed_golds[:SHOWN]:
        yield f"  FAILS {sample.problem}: gold {printable(sample.text, 40)}: {sample.why or f'scored {sample.reward}'}"
    if len(found.failed_golds) > SHOWN:
        yield f"  and {len(found.failed_golds) - SHOWN} more"
    yield f"junk: {found.junk.right} of {found.junk.count} texts that say nothing earn full marks"
    yield from (f"  PAID {sample.problem}: {printable(sample.text, 40)}" for sample in found.paid_junk[:SHOWN])
    yield f"{1e3 * found.seconds_per_reward:.3f} ms for a reward"
    if any(share.right for form, share in found.forms.items() if form != "bare"):
        yield "golds in the forms people write them, and how many score 1:"
        yield from (f"  {form:30} {share.right:>7} of {share.count}" for form, share in found.forms.items())
    else:
        yield "golds score as they stand, and in none of the forms in which people wrap an answer"
    yield "tricks, and how many earn full marks:"
    yield from (f"  {trick:30} {share.right:>7} of {share.count}" for trick, share in found.tricks.items())
    if row := found.model:
        interval = f"[{row['low']:.1%} to {row['high']:.1%}]"
        yield f"{row['model']} passes {row['pass_rate']:.1%} {interval} of {row['problems']} problems"
        shares = ", ".join(f"{share:.0%} at {size}" for size, share in row["zero_signal"].items())
        yield f"  groups without a signal, by group size: {shares}"
        yield f"  {row['truncated']:.1%} of its completions were cut off"
    yield "what was said, what was taken for the answer, what it earned:"
    for sample in found.samples:
        earned = "none" if sample.reward is None else f"{sample.reward:g}"
        said = f"{printable(sample.text, 44):44}  {printable(sample.extracted, 16):16}  {earned:>4}"
        yield f"  {said}  {sample.why or '-'} ({sample.source})"
