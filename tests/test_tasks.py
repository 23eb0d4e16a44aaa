"""Every task: golds score one, junk scores zero, draws are keyed, held-out problems stay out."""

from __future__ import annotations

import pytest

from grpo.errors import GrpoError
from grpo.tasks import load_task
from grpo.tasks.arithmetic import final_answer, work

NAMES = ["arithmetic", "arithmetic:easy"]


@pytest.mark.parametrize("name", NAMES)
def test_gold_scores_one_and_junk_zero(name: str) -> None:
    task = load_task(name)
    for problem in task.heldout()[:200]:
        expression = problem.prompt.rstrip("=")
        assert problem.answer == str(eval(expression))
        assert task.score(problem, problem.answer) == {"correct": 1.0}
        assert task.score(problem, work(problem.prompt) + problem.answer) == {"correct": 1.0}
        for junk in ("", "x", problem.prompt, problem.answer + "0", "(" + problem.answer, problem.answer + ")", "0"):
            assert task.score(problem, junk) == {"correct": 0.0}, junk


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_keyed_and_disjoint_from_heldout(name: str) -> None:
    task = load_task(name)
    first = task.draw(step=3, count=50, seed=1)
    assert first == task.draw(step=3, count=50, seed=1)
    assert first[:20] == task.draw(step=3, count=20, seed=1)
    assert first != task.draw(step=4, count=50, seed=1)
    assert first != task.draw(step=3, count=50, seed=2)
    assert len({problem.id for problem in first}) == 50
    heldout = task.heldout()
    assert len({problem.prompt for problem in heldout}) == len(heldout) == 1000
    trained = {problem.prompt for problem in task.draw(step=0, count=20_000, seed=1)}
    assert not trained & {problem.prompt for problem in heldout}


def test_arithmetic_mixes_sums_and_products() -> None:
    prompts = [problem.prompt for problem in load_task("arithmetic").draw(0, 400, 1)]
    products = sum("*" in prompt for prompt in prompts)
    assert 150 < products < 250
    assert all(prompt.count("+") == 3 for prompt in prompts if "*" not in prompt)


def test_the_work_holds_the_answers_digits() -> None:
    """A sum: the last tens sum, then the ones digit of the last ones sum. A product: its columns from the right."""
    for problem in load_task("arithmetic").draw(0, 300, 1):
        rows = [[int(number) for number in row.split(",")] for row in work(problem.prompt)[1:-1].split(";")]
        if "*" in problem.prompt:
            digits = "".join(str(column % 10) for column in reversed(rows[2]))
            assert int(digits) == int(problem.answer)
        else:
            assert f"{rows[1][-1]}{rows[0][-1] % 10}" == problem.answer


def test_final_answer_is_what_follows_the_work() -> None:
    assert final_answer("(1,2)42") == "42"
    assert final_answer("42") == "42"
    assert final_answer("(1)(2)42") == "42"
    assert final_answer("(1,2") == "(1,2"


def test_typed_prompts_are_recognised() -> None:
    task = load_task("arithmetic")
    assert task.recognise("47*86=").answer == "4042"
    assert task.recognise("1+2+3=").answer == "6"
    assert task.recognise("47*86") is None
    assert task.recognise("what is 2+2?") is None


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(GrpoError, match="field task: no task 'algebra'; known are arithmetic"):
        load_task("algebra")
    with pytest.raises(GrpoError, match="field task: no variant 'hard' of arithmetic"):
        load_task("arithmetic:hard")
