"""The recorded first round of the landing scene is what the trainer computes."""

from __future__ import annotations

import pytest

from grpo.lab.first_round import computed, recorded


def test_the_recorded_round_is_the_trainers() -> None:
    file, now = recorded(), computed()
    numbers = ("logprobs", "after")
    for old, new in zip([*file.pop("group"), file], [*now.pop("group"), now], strict=True):
        assert {name: value for name, value in old.items() if name not in numbers} == {
            name: value for name, value in new.items() if name not in numbers
        }, "python scripts/record_first_round.py"
        if "logprobs" in old:
            assert old["logprobs"] == pytest.approx(new["logprobs"], abs=1e-4)
    for row, again in zip(file["after"], now["after"], strict=True):
        assert row == pytest.approx(again, abs=1e-4)
