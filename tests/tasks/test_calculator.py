"""The task `calculator`: what a call is, what it answers, and that an episode fits the default length."""

from __future__ import annotations

from pathlib import Path

import pytest

import grpo
from grpo.tasks import load_task
from grpo.tasks.calculator import Calculator
from grpo.types import Problem
from helpers.teachers import games

TASK = Calculator()
SUM = Problem("p", "47*86+12*34=", "4450")


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("[47*86]", "4042;"),
        ("[4042+408]", "4450;"),
        ("[0*0]", "0;"),
        ("[99999*99999]", "9999800001;"),
        *((text, None) for text in ("4450", "", "[47*86", "47*86]", "[47*86]0", "[47*86+12*34]", "[47-86]")),
        *((text, None) for text in ("[*86]", "[100000*1]", "[4 *2]", "[٤*٢]", "[47*86]\n", "[[1*2]]")),
    ],
)
def test_a_turn_is_one_operation_in_brackets_or_the_answer(turn: str, answer: str | None) -> None:
    assert TASK.reply(SUM, ["[1*1]", turn]) == answer


def test_only_the_right_number_alone_is_rewarded() -> None:
    assert TASK.score(SUM, "4450") == {"correct": 1.0}
    for wrong in ("", "4451", "4450;", "[4042+408]", "04450", " 4450"):
        assert TASK.score(SUM, wrong) == {"correct": 0.0}


def test_traits_tell_whether_the_tool_was_called() -> None:
    assert TASK.episode_traits(SUM, ["[47*86]", "[12*34]", "[4042+408]", "4450"]) == {"called": 1.0}
    assert TASK.episode_traits(SUM, ["4450"]) == TASK.episode_traits(SUM, ["[47*86"]) == {"called": 0.0}


def test_draws_are_keyed_and_disjoint_from_heldout() -> None:
    task = load_task("calculator")
    drawn, heldout = task.draw(3, 200, 1), task.heldout()
    assert drawn == task.draw(3, 200, 1) != task.draw(4, 200, 1)
    assert drawn[:20] == task.draw(3, 20, 1)
    assert len({problem.prompt for problem in heldout}) == 1000
    assert not {problem.prompt for problem in task.draw(0, 5000, 1)} & {problem.prompt for problem in heldout}
    assert all(problem.answer == str(eval(problem.prompt.rstrip("="))) for problem in (*drawn, *heldout))
    assert 60 < sum("+" in problem.prompt for problem in drawn) < 120


def test_an_episode_fits_the_default_length() -> None:
    """Calls of the two products and of their sum, what the tool says, and the answer: a token for each character, and
    an end token for each of the four turns."""
    longest = 0
    for problem in TASK.heldout():
        first, _, second = problem.prompt.rstrip("=").partition("+")
        calls = [f"[{first}]", f"[{second}]", f"[{eval(first)}+{eval(second)}]"] if second else [f"[{first}]"]
        replies = [TASK.reply(problem, [call]) for call in calls]
        assert replies[-1] == f"{problem.answer};"
        longest = max(longest, len("".join([*calls, *map(str, replies), problem.answer])) + len(calls) + 1)
    assert longest == 48


def test_typed_prompts_are_recognised() -> None:
    assert TASK.recognise("47*86+12*34=") == Problem("typed/47*86+12*34=", "47*86+12*34=", "4450")
    assert [TASK.recognise(prompt) for prompt in ("47*86", "47+86=", "1*2*3=", "47*86=\n")] == [None] * 4


def test_what_the_calculator_says_is_read_and_not_trained() -> None:
    """A game as the model's script writes it: each turn with its end token, 17, and replies beside them."""
    [group] = games("calculator", [Problem("p", "47*86=", "4042")])
    [done] = group.completions
    assert done.turns == ("[47*86]", "4042")
    shown = "".join("0123456789+*=[];-$"[token] for token in done.sequence)
    assert shown == "[47*86]$4042;4042$"
    assert "".join(".x"[int(sampled)] for sampled in done.sampled) == "xxxxxxxx.....xxxxx"


def test_a_few_steps_raise_the_share_of_calls(tmp_path: Path) -> None:
    config = grpo.Config(
        task="calculator",
        steps=8,
        prompts_per_step=8,
        lr=4e-4,
        optimizer={"warmup_steps": 1},
        evaluation={"every": 0, "problems": 64, "probes": 0},
        system={"runs": str(tmp_path), "quiet": True},
    )
    with grpo.train(config) as run:
        before, after = run.summary()["eval"]
    assert before["accuracy"] < 0.45
    assert after["accuracy"] > before["accuracy"] + 0.2
    assert after["called_share"] > before["called_share"] + 0.2
