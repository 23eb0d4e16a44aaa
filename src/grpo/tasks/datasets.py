"""Tasks made of rows, each with a question and a gold answer (`checkers/answers.py` compares them).

`data` takes any rows. `gsm8k` and `math` know their dataset: the form of its prompts, and where its solutions state the
answer.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.builder import ANSWER_COLUMNS, require_golds
from grpo.tasks.checkers import expressions
from grpo.tasks.checkers.answers import Verdict, boxes, check, kind_of
from grpo.tasks.readers import INSTALL
from grpo.tasks.rows import Problems, Source, other_answers, question_of, read_problems, typed_problem
from grpo.types import Problem

OWN_REWARD = (
    "; without gold answers the task's checker cannot score: give a reward of your own (--reward file.py:function, or "
    "reward= in Python)"
)
"""What else can be done about rows without gold answers."""


class DataTask:
    """`data`: rewards a right answer in any form with 1. `data:strict`: only in a strict form. Traits record the share
    of strict right answers, and of completions without an answer that could be parsed."""

    name = "data"
    template = "{prompt}"

    def __init__(self, variant: str, source: Source):
        if variant not in ("", "strict"):
            raise GrpoError(f"field task: {self.name} has no variant {variant!r}; the only one is {self.name}:strict")
        self.strict = variant == "strict"
        self.name = f"{self.name}:strict" if self.strict else self.name
        self.source = self.usual(source)
        self.sides = read_problems(self.source, template=self.template, gold=self.gold)

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows: a worker that scores does not need them."""
        state = {name: value for name, value in vars(self).items() if name != "sides"}
        return {**state, "source": replace(self.source, rows=None, heldout_rows=None)}

    def usual(self, source: Source) -> Source:
        """The source, or the task's own dataset where none was named."""
        if not source.data:
            raise GrpoError("field data: the task data needs rows; name a file or dataset with --data")
        return source

    def check_requirements(self) -> None:
        """Raise where a row has no gold answer, or one that the checker cannot compare: a run must not find that out in
        the middle."""
        for side in (self.sides.train, self.sides.heldout):
            require_golds(side, self.source.settings, ANSWER_COLUMNS, OWN_REWARD)
        if expressions.available():
            return
        formulas = [problem for problem in self.problems() if kind_of(problem.answer) == "formula"]
        if formulas:
            raise GrpoError(
                f"task {self.name}: {len(formulas)} gold answers are formulas, the first is {formulas[0].answer!r} "
                f"({formulas[0].label}), and comparing formulas needs math-verify; {INSTALL}"
            )

    @staticmethod
    def gold(value: str) -> str:
        """The gold answer in the text of its column."""
        return value.strip()

    @property
    def fingerprint(self) -> Mapping[str, str]:
        return self.sides.fingerprint

    @property
    def notes(self) -> list[str]:
        """Lines to report when a run starts."""
        trained = {problem.prompt for problem in self.sides.train}
        known = sum(problem.prompt in trained for problem in self.sides.heldout)
        count = len(self.sides.heldout)
        memory = f"{known} of {count} held-out problems are also training problems: accuracy may be memory"
        return [*self.sides.notes, *([memory] if known else [])]

    def problems(self) -> list[Problem]:
        return [*self.sides.train, *self.sides.heldout]

    def heldout(self) -> list[Problem]:
        return list(self.sides.heldout)

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return drawn(self.sides, step, count, seed)

    def recognise(self, prompt: str) -> Problem | None:
        """The row with this question or prompt."""
        for problem in self.problems():
            if prompt.strip() in (problem.prompt.strip(), question_of(problem, self.source.settings)):
                return problem
        return None

    def typed(self, question: str) -> Problem:
        """A question that is not in the rows."""
        return typed_problem(self.source, self.template, question)

    def verdict(self, problem: Problem, text: str) -> Verdict:
        return _checked(text, problem.answer, other_answers(problem, self.source.settings))

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        correct = self.is_correct(problem, text)
        return {"correct": None if correct is None else float(correct)}

    def is_correct(self, problem: Problem, text: str) -> bool | None:
        """None where the row has no gold answer."""
        if not problem.answer:
            return None
        verdict = self.verdict(problem, text)
        return verdict.strict if self.strict else verdict.right

    def traits(self, problem: Problem, text: str) -> Mapping[str, float]:
        if not problem.answer:
            return {}
        verdict = self.verdict(problem, text)
        return {"strictly_right": float(verdict.strict), "unparsed": float(not verdict.parsed)}

    def why(self, problem: Problem, text: str) -> tuple[str, str]:
        """(answer found, why it is right or wrong)."""
        if not problem.answer:
            return "", "the row has no gold answer"
        verdict = self.verdict(problem, text)
        return verdict.extracted, f"{verdict.form}: {verdict.why}" if verdict.form else verdict.why


@lru_cache(maxsize=64)
def _checked(text: str, gold: str, aliases: tuple[str, ...]) -> Verdict:
    """Cached: `score`, `is_correct` and `traits` need the same verdict, and completions repeat."""
    return check(text, gold, aliases)


def drawn(sides: Problems, step: int, count: int, seed: int) -> list[Problem]:
    """The problems of a step. Each epoch takes every row once, in an order keyed by (seed, epoch)."""
    rows, chosen = len(sides.train), []
    for place in range(step * count, (step + 1) * count):
        epoch, at = divmod(place, rows)
        chosen.append(sides.train[order_of(rows, seed, epoch)[at]])
    # A step that asks for more problems than there are rows draws a row twice; another id gives it other completions.
    seen: Counter[str] = Counter()
    for place, problem in enumerate(chosen):
        if seen[problem.id]:
            chosen[place] = replace(problem, id=f"{problem.id}#{seen[problem.id]}")
        seen[problem.id] += 1
    return chosen


@lru_cache(maxsize=8)
def order_of(rows: int, seed: int, epoch: int) -> array[int]:
    """A permutation of the rows. Cached: shuffling a million rows takes seconds, and each step needs the order."""
    return array("l", Random(f"{seed}/{epoch}").sample(range(rows), rows))


class Gsm8k(DataTask):
    """Grade-school word problems (Cobbe et al., 2021). Without `--data`: openai/gsm8k, its test split held out."""

    name = "gsm8k"
    template = "{prompt}\nReason step by step. End with a line #### and the final answer as a number."

    def usual(self, source: Source) -> Source:
        return source.or_else("openai/gsm8k", subset="main", heldout="test")

    @staticmethod
    def gold(value: str) -> str:
        """
        >>> Gsm8k.gold("48/2 = <<48/2=24>>24 clips in May.\\n#### 1,072")
        '1,072'
        """
        return value.rpartition("####")[2].strip()


class Math(DataTask):
    """Competition problems, answers in LaTeX (Hendrycks et al., 2021). Without `--data`: MATH, its test split apart."""

    name = "math"
    template = "{prompt}\nReason step by step, and put the final answer in \\boxed{}."

    def usual(self, source: Source) -> Source:
        return source.or_else("DigitalLearningGmbH/MATH-lighteval", answer="solution", heldout="test")

    @staticmethod
    def gold(value: str) -> str:
        r"""The content of the last box; the whole text where there is no box.

        >>> Math.gold(r"Then $x = \boxed{\frac{1}{2}}$."), Math.gold("(1,2)")
        ('\\frac{1}{2}', '(1,2)')
        """
        found = list(boxes(value))
        return found[-1][1] if found else value.strip()
