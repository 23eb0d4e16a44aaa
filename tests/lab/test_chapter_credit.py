"""Chapter `credit`: every token's credit against hand-worked numbers, and rewards called as a run calls them."""

from __future__ import annotations

import json

import pytest
import torch

from grpo.core import group_advantages
from grpo.errors import GrpoError
from grpo.lab.chapters.attribution import presets, steps, tokens, valued_group
from grpo.lab.chapters.bootstrapping import LEARNING, bootstrapping
from grpo.lab.chapters.credit import ANSWERS
from grpo.lab.chapters.gaming import gamed, reward_calls, strategies
from grpo.tasks import load_task
from grpo.tasks.gameable import Gameable
from grpo.types import Problem


def test_every_token_of_a_completion_gets_the_same() -> None:
    found = tokens({})
    rewards = torch.tensor([[one["reward"] for one in found["texts"]]])
    advantage = group_advantages(rewards)[0, found["sample"]].item()
    assert [token["grpo"] for token in found["tokens"]] == pytest.approx([advantage] * len(found["tokens"]), abs=1e-5)


def test_gae_at_its_two_ends() -> None:
    """λ = 1: reward minus value. λ = 0: one step's surprise. At γ = 1 the surprises add up to what came, less V₀."""
    for sample in ("0", "2"):
        far, near = (tokens({"sample": sample, "lam": lam})["tokens"] for lam in ("1", "0"))
        reward = tokens({"sample": sample})["reward"]
        assert [token["gae"] for token in far] == pytest.approx([reward - token["value"] for token in far], abs=1e-5)
        assert [token["gae"] for token in near] == pytest.approx([token["surprise"] for token in near], abs=1e-6)
        assert sum(token["surprise"] for token in near) == pytest.approx(reward - near[0]["value"], abs=1e-5)
    discounted = tokens({"sample": "0", "gamma": "0.9", "lam": "0"})["tokens"]
    assert discounted[0]["surprise"] == pytest.approx(0.9 * discounted[1]["value"] - discounted[0]["value"], abs=1e-6)


def test_the_opening_parenthesis_decides_and_the_critic_knows() -> None:
    found = tokens({"prompt": "37+85+46=", "sample": "0"})
    first, *rest = found["tokens"]
    assert found["texts"][0]["text"].startswith("(")
    assert first["text"] == "("
    assert first["true_gain"] > 0.4
    assert all(abs(token["true_gain"]) < 0.1 for token in rest)
    assert first["gae"] > 0.4 > 0.15 > max(abs(token["gae"]) for token in rest)
    # What was gained on the way is what came in the end, less what was to be expected at first.
    total = sum(token["true_gain"] for token in found["tokens"])
    assert total == pytest.approx(found["reward"] - first["true_value"])


def test_an_untrained_critic_is_wrong_and_the_groups_mean_is_not() -> None:
    found, kept = bootstrapping({}), json.loads(LEARNING.read_text())
    rewards = [one["reward"] for one in tokens({})["texts"]]
    assert found["group_mean"] == sum(rewards) / 8
    assert found["true_values"] == [token["true_value"] for token in tokens({})["tokens"]]
    first, *_, last = found["critic"]
    # Without any value GAE is the discounted reward: ten tokens come after the first.
    assert (first["steps"], set(first["values"]), first["wrong"]) == (0, {0.0}, 0.0)
    assert first["right"] == pytest.approx(0.95**10, abs=1e-6)
    true = [problem["true"] for problem in kept["problems"]]
    assert first["distance"] == pytest.approx(sum(true) / len(true)), "all predictions are 0"
    assert last["distance"] < found["group_distance"] < first["distance"] / 2
    assert found["group_distance"] == pytest.approx(
        sum(abs(problem["group"] - problem["true"]) for problem in kept["problems"]) / len(true)
    )
    assert last["right"] == pytest.approx(tokens({})["tokens"][0]["true_gain"], abs=0.1)


def test_steps_by_hand() -> None:
    found = steps({"prompt": "37+85+46="})
    marks = [step["reward"] for done in found["completions"] for step in done["steps"]]
    mean = sum(marks) / len(marks)
    deviation = (sum((mark - mean) ** 2 for mark in marks) / (len(marks) - 1)) ** 0.5 + 1e-4
    for done in found["completions"]:
        z = [(step["reward"] - mean) / deviation for step in done["steps"]]
        for step, place in zip(done["steps"], range(len(z)), strict=True):
            assert done["process"][step["begin"]] == pytest.approx(sum(z[place:]), abs=1e-5)
        assert done["steps"][-1]["end"] == len(done["tokens"]) - 1
    before, after = found["completions"][0], steps({"turned": "0.0"})["completions"][0]
    assert after["steps"][0]["turned"]
    assert after["outcome"] == before["outcome"], "an outcome reward does not see a step"
    assert after["process"][0] < before["process"][0]
    turned_answer = steps({"turned": f"0.{len(before['steps']) - 1}"})["completions"][0]
    assert turned_answer["outcome"] < 0 < before["outcome"]
    with pytest.raises(GrpoError, match="turned: no step"):
        steps({"turned": "0.99"})


def test_no_preset_but_a_critic_or_step_rewards_tells_tokens_apart() -> None:
    rows = {row["label"]: row["distinct"] for row in presets({})["rows"]}
    assert rows.pop("ppo") > 3
    assert rows.pop("grpo with process rewards") == 3
    assert set(rows.values()) == {1}
    assert "dr_grpo" in rows


def test_equal_rewards_are_equal_advantages() -> None:
    rows = {row["name"]: row for row in strategies({"own": "I am sure: 14"})["rows"]}
    [right] = {rows[name]["advantage"] for name in ("reasons", "recalls", "lucky", "yours")}
    # Four of five right: mean 4/5, sample deviation √(1/5).
    assert right == pytest.approx(0.2 / (0.2**0.5 + 1e-4))
    assert rows["wrong"]["advantage"] == pytest.approx(-0.8 / (0.2**0.5 + 1e-4))


def test_the_gameable_check_prefers_a_guess() -> None:
    rows = {row["text"]: row for row in gamed({})["rows"]}
    assert rows["(18;16)168"]["gameable"]["reward"] == pytest.approx(1 - 0.03 * 7)
    assert rows["161"]["gameable"]["reward"] == 1
    assert not rows["161"]["right"]
    assert rows["161"]["gameable"]["advantage"] > rows["(18;16)168"]["gameable"]["advantage"]
    assert rows["161"]["mended"]["advantage"] < 0 < rows["(18;16)168"]["mended"]["advantage"]


@pytest.mark.parametrize("text", ["", "9" * 30, "x", "(18;16)", "٣"])
def test_nonsense_earns_nothing(text: str) -> None:
    for task in (Gameable(), Gameable("mended")):
        assert task.score(Problem("p", "37+85+46=", "168"), text) == {"paid": 0.0}


def test_golds_of_the_gameable_task_earn_everything() -> None:
    for name in ("gameable", "gameable:mended"):
        task = load_task(name)
        assert all(task.score(problem, problem.answer) == {"paid": 1.0} for problem in task.heldout()[:50])
    with pytest.raises(GrpoError, match="gameable:mended"):
        load_task("gameable:other")


def test_own_rewards_as_a_run_calls_them() -> None:
    found = {function["name"]: function["outcomes"] for function in reward_calls({})["functions"]}
    assert [one["value"] for one in found["near"]] == [1.0, 0.8, None, 0.0, None]
    assert found["near"] == found["near_as_in_trl"]
    assert [one["fault"] for one in found["careless"]] == ["failure", "", "failure", "failure", "mistake"]
    assert found["careless"][3]["why"] == "ZeroDivisionError: division by zero"
    assert "return a finite number" in found["careless"][4]["why"]


def test_values_are_the_critics_and_explain_most() -> None:
    """A critic that knew nothing would leave all of the rewards' variance."""
    values, rewards = [], []
    for prompt in ("37+85+46=", "12+34+56=", "29+60+75=", "91+18+44=", "63+27+85="):
        for done in valued_group(prompt, 3).completions:
            assert done.values is not None
            values += done.values.tolist()
            rewards += [done.reward] * len(done)
    errors = torch.tensor(rewards) - torch.tensor(values)
    assert 1 - errors.var() / torch.tensor(rewards).var() > 0.4


@pytest.mark.parametrize("key", sorted(ANSWERS))
def test_every_answer_has_a_default(key: str) -> None:
    assert ANSWERS[key]({})
