"""How a reward function is called: by the names of its parameters. What fits nothing is refused in one line."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.cli.main import main
from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.rewards.handed_over import take_rewards
from grpo.rewards.signature import Signature
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Problem
from helpers.runs import small

PROBLEM = Problem("p", "6*7=", "42", columns={"level": "easy"})


class Object:
    def __call__(self, text: str, problem: Problem) -> float:
        """The order of the parameters does not matter."""
        return float(text == problem.answer)

    def method(self, completions: list[str], level: list[str]) -> list[float]:
        return [float(one == "easy") for one in level]


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return inner


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides the parameters: called as in TRL, which passes keywords only."""
    return lambda *arguments, **named: function(*arguments, **named)


async def later(problem: Problem, text: str) -> float:
    return float(text == problem.answer)


def scaled(most: int, problem: Problem, text: str, by: float = 1.0) -> float:
    return by * float(len(text) < most)


@pytest.mark.parametrize(
    ("function", "rewards"),
    [
        (lambda problem, text: float(text == problem.answer), [1.0, 0.0]),
        (lambda text: float(len(text)), [2.0, 4.0]),
        (lambda text, problem: float(text == problem.answer), [1.0, 0.0]),
        (lambda *, text, problem, scale=2: float(text == problem.answer) * scale, [2.0, 0.0]),
        (lambda problem, text, **settings: float(len(settings)), [0.0, 0.0]),
        (Object(), [1.0, 0.0]),
        (Object().method, [1.0, 1.0]),
        (functools.partial(scaled, 3, by=0.5), [0.5, 0.0]),
        (functools.partial(scaled, most=3), [1.0, 0.0]),
        (decorated(scaled.__get__(3)), [1.0, 0.0]),
        (later, [1.0, 0.0]),
        (lambda completions: [float(len(text)) for text in completions], [2.0, 4.0]),
        (lambda prompts, **columns: [float(prompt == "6*7=") for prompt in prompts], [1.0, 1.0]),
        (lambda completion_ids, answer, absent=0.25: [float(gold) + absent for gold in answer], [42.25, 42.25]),
        (lambda **named: [float(len(text)) for text in named["completions"]], [2.0, 4.0]),
        (bare(lambda completions, **_: [0.5] * len(completions)), [0.5, 0.5]),
    ],
)
def test_names_decide(function: Callable[..., Any], rewards: list[float]) -> None:
    text, functions = take_rewards(function)
    with Scorer(Arithmetic(), text, Scoring(workers=1, seconds=5.0), functions=functions) as scorer:
        scorer.ready([PROBLEM])
        done = scorer.score_texts([(PROBLEM, "42"), (PROBLEM, "long")])
    assert [(one.reward, one.why) for one in done] == [(reward, "") for reward in rewards]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda a, b: 0.0, "takes (a, b); write (problem, text) for one completion at a time, or (completions, "),
        (lambda text, answer: 0.0, "takes (text, answer); write (problem, text)"),
        (lambda problem, text, /: 0.0, "takes (problem, text, /); write (problem, text)"),
        (lambda completions, /: [0.0], "takes (completions, /); write (problem, text)"),
        (lambda *texts: 0.0, "takes (*texts); write (problem, text)"),
        (lambda problem: 0.0, "takes (problem); write (problem, text)"),
        (lambda: 0.0, "takes (); write (problem, text)"),
        (math.sqrt, "takes (x, /); write (problem, text)"),
        (max, "its parameters are unknown (no signature found for builtin <built-in function max>); wrap it"),
    ],
)
def test_what_fits_nothing_is_refused(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(GrpoError) as caught:
        Signature.of(function, "mine.py:f")
    assert str(caught.value).startswith(f"reward mine.py:f: {says}")
    assert "\n" not in str(caught.value)


def test_two_parameters_of_other_names_no_longer_pass_for_a_problem_and_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the run is created: nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def f(responses, golds):\n    return [1.0 for _ in responses]\n")
    assert main(["train", "--model", "nano", "--reward", "mine.py:f", "--system.device", "cpu", "--run", "job"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo: reward mine.py:f: takes (responses, golds); write (problem, text)")
    assert not Path("runs/job").exists()


def test_a_parameter_that_is_no_column_is_refused_with_the_columns(tmp_path: Path) -> None:
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1), "level": "easy"} for a in range(40)]

    def graded(completions: list[str], difficulty: list[str]) -> list[float]:
        return [1.0] * len(completions)

    config = small(tmp_path, steps=1, run="job")
    with pytest.raises(GrpoError) as caught:
        grpo.train(config, reward=graded, data=rows)
    assert str(caught.value) == (
        "reward python:graded: takes 'difficulty', which is neither a column of the data nor an argument of TRL "
        "(prompts, completions, completion_ids, environments, trainer_state, log_extra, log_metric); the columns are "
        "answer, solution, level; rename the parameter, or give it a default"
    )
    assert not (tmp_path / "job").exists()


def test_a_column_that_only_some_rows_have_is_none_in_the_others() -> None:
    """As in a `datasets.Dataset`."""
    text, functions = take_rewards(lambda completions, level: [float(one is None) for one in level])
    other = Problem("q", "1+1=", "2")
    with Scorer(Arithmetic(), text, Scoring(workers=1, seconds=5.0), functions=functions) as scorer:
        scorer.ready([PROBLEM, other])
        done = scorer.score_texts([(PROBLEM, "42"), (other, "2")])
    assert [one.reward for one in done] == [0.0, 1.0]


def test_a_column_cannot_replace_an_argument_of_trl() -> None:
    text, functions = take_rewards(lambda completions, trainer_state: [float(len(one)) for one in completions])
    problem = Problem("p", "6*7=", "42", columns={"completions": "no", "trainer_state": "no"})
    with Scorer(Arithmetic(), text, Scoring(workers=1, seconds=5.0), functions=functions) as scorer:
        assert [one.reward for one in scorer.score_texts([(problem, "abc")])] == [3.0]
