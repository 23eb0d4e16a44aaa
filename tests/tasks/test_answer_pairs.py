"""A table of gold and answer, our verdict and math-verify's. It also says why the two differ.

`python tests/tasks/test_answer_pairs.py` prints the rows whose verdicts are out of date.
"""

from __future__ import annotations

import logging
import random
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grpo.tasks.checkers import expressions
from grpo.tasks.checkers.answers import check
from grpo.tasks.checkers.numbers import read_number
from grpo.tasks.checkers.typesetting import plain
from helpers.made_answers import made_answer, made_gold

formulas = pytest.mark.skipif(not expressions.available(), reason="math-verify is not installed")


class Pair(NamedTuple):
    gold: str
    answer: str
    right: bool
    by_math_verify: bool
    why: str


def read_pairs() -> list[Pair]:
    lines = (Path(__file__).parent / "answer_pairs.tsv").read_text(encoding="utf-8").splitlines()
    pairs = []
    for line in lines:
        if not line.startswith("# "):
            gold, answer, ours, theirs, *why = line.split("\t")
            pairs.append(Pair(gold, answer, ours == "right", theirs == "right", "".join(why)))
    return pairs


PAIRS = read_pairs()


def test_the_table_is_large_and_half_of_it_is_wrong() -> None:
    wrong = sum(not pair.right for pair in PAIRS)
    assert len(PAIRS) == len({pair[:2] for pair in PAIRS}) >= 300
    assert 0.45 < wrong / len(PAIRS) < 0.55
    assert [pair for pair in PAIRS if bool(pair.why) != (pair.right != pair.by_math_verify)] == []


def test_the_page_has_the_counts_of_the_table() -> None:
    right = [pair for pair in PAIRS if pair.right]
    accepted = sum(pair.by_math_verify for pair in right)
    rejected = sum(not (pair.right or pair.by_math_verify) for pair in PAIRS)
    page = " ".join((Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8").split())
    assert f"holds {len(PAIRS)} pairs of gold and answer" in page
    assert (
        f"accepts {accepted} of the {len(right)} right answers and rejects {rejected} of the "
        f"{len(PAIRS) - len(right)} wrong ones" in page
    )


@formulas
@pytest.mark.parametrize("form", ["{}", r"\boxed{{{}}}", "The answer is {}", "<answer>{}</answer>"])
def test_every_verdict_is_as_in_the_table(form: str) -> None:
    assert [pair for pair in PAIRS if check(form.format(pair.answer), pair.gold).right != pair.right] == []


def math_verify_version() -> str:
    try:
        return version("math-verify")
    except PackageNotFoundError:
        return ""


def by_math_verify(pair: Pair) -> bool:
    from math_verify import verify

    return bool(verify(parsed(pair.gold), parsed(pair.answer), timeout_seconds=None))


@cache
def parsed(text: str) -> list[Any]:
    from math_verify import parse

    return parse(rf"\boxed{{{text}}}", parsing_timeout=None)


@formulas
@pytest.mark.skipif(not math_verify_version().startswith("0.9."), reason="the table is of math-verify 0.9")
def test_math_verify_says_what_the_table_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert [pair for pair in PAIRS if by_math_verify(pair) != pair.by_math_verify] == []


@formulas
def test_every_gold_is_right_for_itself() -> None:
    golds = [pair.gold for pair in PAIRS] + [made_gold(random.Random(f"gold/{number}")) for number in range(500)]
    assert [gold for gold in golds if plain(gold) and not check(gold, gold).right] == []


def test_equality_of_numbers_is_symmetric() -> None:
    texts = [made_gold(random.Random(f"number/{number}")) for number in range(4000)]
    texts += [text for pair in PAIRS for text in pair[:2]]
    numbers = [number for number in map(read_number, texts) if number]
    others = random.Random(1).choices(numbers, k=20 * len(numbers))
    pairs = list(zip(numbers * 20, others, strict=True))
    assert len(pairs) > 20_000
    assert sum(one.same(other) for one, other in pairs) > 200
    assert [pair for pair in pairs if pair[0].same(pair[1]) != pair[1].same(pair[0])] == []


@formulas
def test_made_up_answers_break_nothing() -> None:
    verdicts = [
        check(made_answer(rng), made_gold(rng)) for rng in (random.Random(f"answer/{number}") for number in range(300))
    ]
    assert all(verdict.parsed for verdict in verdicts if verdict.right)


if __name__ == "__main__":
    for row in PAIRS:
        found = (check(row.answer, row.gold).right, by_math_verify(row))
        if found != (row.right, row.by_math_verify):
            print(f"{row.gold}\t{row.answer}\tgrpo: {found[0]}, math-verify: {found[1]}")
