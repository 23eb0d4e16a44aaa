"""Episodes of the built-in engine: the same whenever rows start, pause, go on or are dropped, and as the stock model
would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from grpo.model.policy import Policy
from grpo.rollout.builtin import Engine
from grpo.rollout.cpu.kv_cache import DecodeCache
from grpo.rollout.protocol import Sampling
from grpo.rollout.schedule import Look, Room, Schedule
from grpo.types import Completion, Group, Problem
from helpers.plays import ScriptedEpisodes
from helpers.policies import ARCHITECTURES, random_adapter, random_policy

PROBLEMS = [Problem(str(i), text, "") for i, text in enumerate(["hello", "a longer prompt", "hi"])]
GROUP_SIZE = 3
SAMPLING = Sampling(seed=0, temperature=1.0, max_new_tokens=40)


class FickleSchedule(Schedule):
    """Looks every other token. Lets a random number of rows in, and drops running and paused rows at random."""

    seed, drops, paused_drops, resumed = 0, 0, 0, 0

    def __init__(self, *arguments: object):
        super().__init__(*arguments, ahead=2)  # type: ignore[arg-type]
        self.generator = np.random.default_rng(self.seed)

    def look(self, ended: Sequence[int], paused: Mapping[int, int] | None = None) -> Look:
        running = int(self._running_N.sum())
        self.room = Room(self.room.blocks, running + int(self.generator.integers(0 if running else 1, 4)))
        look = super().look(ended, paused)
        FickleSchedule.resumed += len(look.resumed)
        return look

    def _grow(self) -> list[int]:
        running, kept = np.flatnonzero(self._running_N), np.flatnonzero(self._kept_N)
        chosen = [n for n in running[1:] if self.generator.random() < 0.1]
        chosen += [n for n in kept if len(running) and self.generator.random() < 0.08]
        FickleSchedule.drops += len(chosen)
        FickleSchedule.paused_drops += len({*chosen} & {*kept.tolist()})
        for n in chosen:
            self._remove(np.array([n]))
        return sorted({*super()._grow(), *map(int, chosen)})


def policy_of(architecture: str) -> Policy:
    policy = random_policy(architecture)
    policy.end_tokens = frozenset([1, 2, 3])
    return policy


def played(
    policy: Policy,
    script: ScriptedEpisodes | None = None,
    sampling: Sampling = SAMPLING,
    room: tuple[int, int] = (0, 0),
) -> list[Group]:
    return Engine(policy, *room, episodes=script or ScriptedEpisodes()).sample(PROBLEMS, GROUP_SIZE, sampling)


def completions_of(groups: Sequence[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def check_same(found: Sequence[Group], expected: Sequence[Group]) -> None:
    for a, b in zip(completions_of(found), completions_of(expected), strict=True):
        assert a.sequence.tolist() == b.sequence.tolist()
        assert a.sampled.tolist() == b.sampled.tolist()
        assert (a.finish, a.turns, a.text, a.steps) == (b.finish, b.turns, b.text, b.steps)
        assert [seen.after for seen in a.observations] == [seen.after for seen in b.observations]
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def check_any_order(
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    sampling: Sampling = SAMPLING,
    expected: Sequence[Group] | None = None,
) -> None:
    expected = expected or played(policy, sampling=sampling)
    turns = [len(completion.turns) for completion in completions_of(expected)]
    assert {1, 2} <= {*turns}
    assert max(turns) >= 3
    with monkeypatch.context() as patch:
        patch.setattr("grpo.rollout.builtin.Schedule", FickleSchedule)
        patch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 2)
        FickleSchedule.drops = FickleSchedule.paused_drops = FickleSchedule.resumed = 0
        check_same(played(policy, sampling=sampling), expected)
    assert FickleSchedule.resumed
    assert FickleSchedule.paused_drops
    assert FickleSchedule.drops > FickleSchedule.paused_drops


# --- the same in any order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "gpt2", "cohere", "granite"])
def test_episodes_are_the_same_in_any_order(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(architecture)
    expected = played(policy)
    check_any_order(policy, monkeypatch, expected=expected)
    check_stock_logprobs(expected, random_policy(architecture, attention="eager"))


def check_stock_logprobs(groups: Sequence[Group], stock: Policy) -> None:
    """In one pass over prompt and episode, of the tokens that it sampled."""
    for group in groups:
        for completion in group.completions:
            tokens = torch.tensor([*group.prompt_tokens, *completion.sequence])
            with torch.no_grad():
                logp_LV = stock.model(tokens[None]).logits[0].log_softmax(-1)
            logp_L = logp_LV[len(group.prompt_tokens) - 1 : -1].gather(
                1, torch.from_numpy(completion.sequence)[:, None]
            )
            np.testing.assert_allclose(completion.logprobs, logp_L[completion.sampled, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "bloom", "gemma2"])
def test_turns_through_generate(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(architecture, attention="eager")
    policy.padded, policy.end_tokens = True, frozenset([1, 2, 3])
    found = played(policy)
    if architecture == "llama":
        check_same(found, played(policy_of("llama")))
    check_same(played(policy, room=(2, 0)), found)
    check_stock_logprobs(found, random_policy(architecture, attention="eager"))


def test_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_adapter("llama")
    policy.end_tokens = frozenset([1, 2, 3])
    check_any_order(policy, monkeypatch)


@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
def test_a_cache_that_copies_prompts(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(architecture)
    shared = played(policy)
    monkeypatch.setattr("grpo.rollout.cpu.decoding.SharedPromptCache", DecodeCache)
    check_any_order(policy, monkeypatch, expected=shared)


@pytest.mark.parametrize(
    "options", [{"stop": ("AB", "K", "no")}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 5}], ids=str
)
def test_stop_strings_and_other_ways_of_sampling(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(**{"seed": 2, "temperature": 1.0, "max_new_tokens": 40} | options)
    check_any_order(policy_of("llama"), monkeypatch, sampling)
