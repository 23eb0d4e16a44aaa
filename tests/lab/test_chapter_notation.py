"""Symbols are named as the code names them; the story is the recorded run's."""

from __future__ import annotations

import importlib
import inspect
import math
import re

import pytest

from grpo.lab.chapters import CHAPTERS, answer
from grpo.lab.chapters.notation import SYMBOLS
from grpo.lab.chapters.story import work_in_words
from grpo.tasks.arithmetic import work


@pytest.mark.parametrize("symbol", SYMBOLS, ids=lambda symbol: symbol.tex)
def test_names_are_in_the_source(symbol: object) -> None:
    module, _, name = symbol.where.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert re.search(rf"\b{symbol.code}\b", inspect.getsource(found))
    assert symbol.chapter in CHAPTERS


def test_prerequisites_by_hand() -> None:
    found = answer("notation", "softmax", {"logits": "0,0,0", "t": "2"})
    assert found["probabilities"] == pytest.approx([1 / 3] * 3)
    assert found["entropy"] == pytest.approx(math.log(3))
    found = answer("notation", "sequence", {"p": "0.5,0.5"})
    assert found["product"] == pytest.approx(0.25)
    found = answer("notation", "slope", {})
    p = found["probabilities"]
    assert found["gradient"] == pytest.approx([1 - p[0], -p[1], -p[2]])


def test_the_story_of_the_worked_style() -> None:
    found = answer("notation", "story", {})
    assert found["accuracy"][1] > 0.9 > 0.5 > found["accuracy"][0]
    assert found["styles"]["worked"]["right"] > 0.9
    assert found["styles"]["direct"]["right"] < 0.1
    assert found["styles"]["worked"]["advantage"] > 0 > found["styles"]["direct"]["advantage"]
    shares = [style["share"] for style in found["styles"].values()]
    assert sum(shares) == pytest.approx(1)
    # Every group's advantages sum to 0, so the styles' do, by their counts.
    counted = sum(style["count"] * style["advantage"] for style in found["styles"].values())
    assert counted == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("prompt", ["65*49=", "99*12=", "37+85+46+92=", "10+11+12+13="])
def test_the_work_in_words_is_the_work(prompt: str) -> None:
    told = "; ".join(work_in_words(prompt))
    for left, right in re.findall(r"([\d×+ ]+) = (\d+)", told):
        assert eval(left.replace("×", "*")) == int(right)
    if "*" in prompt:
        assert eval(re.search(r"of ([\d+ ]+) from", told).group(1)) == eval(prompt.rstrip("="))
        numbers = re.findall(r"= (\d+)", told) + told.rpartition(": ")[2].split(", ")
    else:
        numbers = re.findall(r"\d+", re.sub(r"the \d+ carried", "", told))
    assert numbers == re.findall(r"\d+", work(prompt))
