"""The embedded models of tasks with several turns are what their script makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from grpo.model.files import model_files
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from helpers.teachers import script


@pytest.mark.parametrize(("name", "parameters"), [("calculator", 459_760), ("guess", 102_016)])
def test_shipped_files_have_the_shape_and_the_tokens_of_the_script(name: str, parameters: int) -> None:
    made, shipped = script.initial_policy(script.STUDENTS[name]), load_policy(name)
    assert sum(weight.numel() for weight in shipped.model.parameters()) == parameters
    assert {key: weight.shape for key, weight in shipped.weights().items()} == {
        key: weight.shape for key, weight in made.weights().items()
    }
    for file in ("config.json", "tokenizer.json"):
        stored = json.loads((Path(locate_model(name)) / file).read_bytes())
        written = json.loads(model_files(made)[file])
        assert {**stored, "transformers_version": ""} == {**written, "transformers_version": ""}, file


def test_training_repeats_bit_for_bit() -> None:
    student = script.STUDENTS["guess"]

    def trained() -> dict[str, torch.Tensor]:
        policy = script.initial_policy(student)
        script.train(policy, student, script.Stage(3, 3e-3), first_step=0)
        return policy.weights()

    first, again = trained(), trained()
    assert all(torch.equal(first[name], again[name]) for name in first)
