"""The examples that hand over Python objects, run as a person runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.examples import EXAMPLES, output_of


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
