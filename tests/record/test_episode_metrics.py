"""Metrics of episodes, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from grpo.config.sections import Loss
from grpo.record.episode_metrics import EPISODE_METRICS, episode_metrics
from grpo.record.metrics import EVAL_METRICS, check_names, is_timed
from grpo.training.gradient import is_masked
from grpo.training.session import Session
from grpo.training.training_run import Report, over_ranks
from grpo.types import Call, Completion, Finish, Observation


def episode(finish: Finish, turns: tuple[str, ...], *observations: Observation) -> Completion:
    """Each turn of two tokens."""
    length = 2 * len(turns)
    return Completion(turns[-1], np.arange(length), np.zeros(length), finish, turns=turns, observations=observations)


def read(after: int, tokens: int, *calls: Call) -> Observation:
    return Observation(after, np.zeros(tokens, np.int64), "", calls)


RIGHT, WRONG = Call("add", "{}", "3"), Call("add", "{}", "no such argument", "error")
SLOW, UNREAD = Call("add", "{}", "timed out", "timeout"), Call("", "[add", "cannot be read", "error")
EPISODES = [
    episode("stop", ("a", "b", "c"), read(2, 3, RIGHT), read(4, 5, WRONG, SLOW), read(6, 0)),
    episode("turn_length", ("a", "[add", "b"), read(2, 4, RIGHT), read(4, 2, UNREAD)),
    episode("turns", ("a", " "), read(2, 2, UNREAD, RIGHT)),
    episode("stop", ("a",)),
]


def test_by_hand() -> None:
    """Nine turns in four episodes, and seven calls. Void: the unread call, the cut turn and the blank one."""
    found = episode_metrics(EPISODES)
    assert found == {
        "turns_mean": 9 / 4,
        "turns_max": 3.0,
        "calls": 7 / 4,
        "call_errors": 3 / 7,
        "call_timeouts": 1 / 7,
        "call_crashes": 0.0,
        "observation_tokens": 16 / 4,
        "void_turns": 3 / 9,
        "cut_turns": 1 / 9,
        "finish/stop": 0.5,
        "finish/length": 0.0,
        "finish/turn_length": 0.25,
        "finish/turns": 0.25,
        "finish/calls": 0.0,
        "finish/seconds": 0.0,
    }
    assert found.keys() > EPISODE_METRICS.keys()
    for table in ({}, EVAL_METRICS):
        check_names(found, table)


def test_a_turn_that_is_void_twice_counts_once() -> None:
    assert episode_metrics([episode("length", (" ",))])["void_turns"] == 1.0


def test_completions_that_are_no_episodes_have_none() -> None:
    assert episode_metrics([replace(EPISODES[3], turns=())]) == {}


def test_every_limit_truncates() -> None:
    assert [done.truncated for done in EPISODES] == [False, True, True, False]
    assert [is_masked(done, Loss(mask_truncated=True)) for done in EPISODES] == [False, True, True, False]
    assert not any(is_masked(done, Loss()) for done in EPISODES)


def test_the_wait_of_the_rank_that_waited_longest() -> None:
    def report(wait: float | None) -> Report:
        return Report(False, token_budget=0, peak_memory=1.0, rollout=1.0, idle=0.0, observation_wait=wait)

    assert over_ranks([report(0.25), report(0.5)], {}, {})["observation_wait"] == 0.5
    assert "observation_wait" not in over_ranks([report(None)], {}, {})
    assert is_timed("observation_wait")


def test_a_wait_is_measured_once() -> None:
    episodes: Any = SimpleNamespace(waited=1.5)
    session: Any = SimpleNamespace(engine=SimpleNamespace(episodes=episodes))
    assert [Session.measure_observation_wait(session) for _ in range(2)] == [1.5, 0.0]
    session.engine.episodes = None
    assert Session.measure_observation_wait(session) is None
