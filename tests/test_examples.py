"""The examples that hand over Python objects, run as a person runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo.episodes.environments import load_environment
from grpo.episodes.tools import load_tools
from grpo.rewards.place import Place
from grpo.rollout.protocol import Ended
from grpo.tasks import load_task
from helpers.examples import EXAMPLES, output_of
from helpers.player import answers_of, begin, play_through

CALCULATOR = str(EXAMPLES / "tools/calculator.py")


@pytest.mark.parametrize("example", ["lambda_reward.py", "hanging_reward.py"])
def test_short_examples_are_short(example: str) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) <= 15


def test_a_lambda_and_a_list_of_dicts_train_nano(tmp_path: Path) -> None:
    rewards = [float(number) for number in re.findall(r"mean reward (\S+)", output_of("lambda_reward.py", tmp_path))]
    assert len(rewards) == 5
    assert rewards[0] < 0.5
    assert rewards[-1] > 0.8


def test_a_reward_that_hangs_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    assert output_of("hanging_reward.py", tmp_path) == (
        "reward python:lambda: failed on 16 of the last 16 completions, more than scoring.most_failures (0.1) allows; "
        "the last: timeout: no result after 0.3 s; fix it, or raise the limit\n"
    )


def test_a_first_day_from_rows_without_answers_to_a_model_in_transformers(tmp_path: Path) -> None:
    printed = output_of("first_day.py", tmp_path, "nano", "day")
    assert re.findall(r"^== (\d)\.", printed, re.MULTILINE) == list("123456")
    assert re.search(r"killed after the checkpoint step-00000[12]; status of the run: killed", printed)
    assert re.search(r"first: nano · data · grpo · 8×4, from step [12] of 3", printed)
    assert "first finished after 3 steps" in printed
    assert "LlamaForCausalLM from day/model: 12+13+11= → " in printed
    assert (tmp_path / "day/model/model.safetensors").is_file()


def test_a_task_answers_with_its_calculator() -> None:
    task = load_task(f"{CALCULATOR}:Products")
    problems = task.draw(0, 3, 1)
    assert task.score(problems[0], f"It is {problems[0].answer}.") == {"correct": 1.0}
    scripts = [["[12*34]", "408"], ["964 * 494"], ["[1/0]", "[()]", "then [3*(4+5)]", "[__import__('os')]", "27"]]
    with answers_of(task) as answers:
        heard = play_through(begin(answers, problems), scripts)
    assert [[one.finish if isinstance(one, Ended) else one.text for one in each] for each in heard] == [
        ["408", "stop"],
        ["stop"],
        [
            "error: division by zero",
            "error: unsupported format string passed to tuple.__format__",
            "27",
            "error: an expression has numbers, + - * / and parentheses only",
            "stop",
        ],
    ]


def test_held_out_products_are_not_trained() -> None:
    task = load_task(f"{CALCULATOR}:Questions")
    heldout = {problem.prompt for problem in task.heldout()}
    drawn = {problem.prompt for step in range(20) for problem in task.draw(step, 64, 1)}
    assert len(heldout) > 490
    assert not heldout & drawn
    assert [message["content"] for message in task.heldout()[0].messages[1:5]] == [
        "What is 127 * 683?", f"[{127}*{683}]", str(127 * 683), str(127 * 683),
    ]  # fmt: skip


def test_the_calculator_is_a_tool_and_an_environment() -> None:
    [tool] = load_tools(f"{CALCULATOR}:calculate")
    assert tool.schema["function"]["parameters"]["required"] == ["expression"]
    calculate = Place.parse(f"{CALCULATOR}:calculate", "tool").load()
    assert [calculate(text) for text in ("964*494", "7/2", "0.1+0.2")] == ["476216", "3.5", "0.3"]
    with pytest.raises(ValueError, match="numbers"):
        calculate("9**9**9")
    assert load_environment(f"{CALCULATOR}:Calculator").tools == ()
