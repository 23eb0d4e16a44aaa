"""Rewards of episodes: what reward functions see of them, what environments add, and what their faults cost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.tasks import load_task
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Call, Completion, Group, Observation, Problem, changed, chat

TALKATIVE = str(Path(__file__).parents[1] / "helpers/talkative.py")
ASKED = Problem("p", "ask: ", "42")
EMPTY = np.zeros(0, dtype=np.int64)
GAME = SimpleNamespace(
    parts=("Game",),
    part_of=lambda problem: "Game",
    take=lambda functions, evaluation: {spec: ("environments",) for spec in functions if spec.name == "state"},
)
"""An environment that calls the function `state` itself."""


def test_reward_functions_see_the_whole_conversation(tmp_path: Path) -> None:
    """Rows that are conversations give messages in TRL's form; others the text of the last turn."""
    (tmp_path / "mine.py").write_text(
        """
def seen(completions, log_extra, **columns):
    log_extra("seen", completions)
    return [0.0] * len(completions)
"""
    )
    calls = (Call("add", '{"a": 1, "b": 2}', "3"), Call("", "{a", "error: no JSON", "error"))
    read = (
        Observation(0, EMPTY, "Go."),
        Observation(2, EMPTY, "3\nerror: no JSON", calls),
        Observation(4, EMPTY, "yes"),
    )
    done = Completion("done", EMPTY, EMPTY, "stop", turns=("add!", "so 3?", "done"), observations=read)
    talk = Problem("t", "2+1", "", messages=chat("2+1"), conversational=True)
    groups = [Group(problem, EMPTY, (done,), 0) for problem in (talk, ASKED)]
    with Scorer(load_task(TALKATIVE), f"{tmp_path}/mine.py:seen", Scoring(workers=1)) as scorer:
        messages, text = (group.completions[0].extra["seen"] for group in scorer.score(groups))
    asked = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    assert messages == [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "add!", "tool_calls": [asked]},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "tool", "name": "", "content": "error: no JSON"},
        {"role": "assistant", "content": "so 3?"},
        {"role": "user", "content": "yes"},
        {"role": "assistant", "content": "done"},
    ]
    assert text == "done"


def test_faults_of_episodes_are_scored_and_counted() -> None:
    done = Completion("42", EMPTY, EMPTY, "stop", turns=("a", "42"), parts={"Game": 0.5}, traits={"moves": 2.0})
    hung, broken = (changed(done, fault=fault, why="it was so") for fault in ("timeout", "failure"))
    group = Group(ASKED, EMPTY, (done, hung, broken), 0)
    scoring = Scoring(workers=1, most_failures=0.03)
    with Scorer(load_task(TALKATIVE), "task", scoring, environment=GAME) as scorer:
        [scored] = scorer.score([group])
        good, zero, unscored = scored.completions
        assert (good.reward, good.parts, good.traits) == (
            1.5,
            {"Game": 0.5, "correct": 1.0},
            {"turns": 2.0, "moves": 2.0},
        )
        assert (zero.reward, zero.correct, zero.parts) == (0.0, False, {"Game": 0.0, "correct": 0.0})
        assert (unscored.reward, unscored.correct) == (None, None)
        assert [one.why for one in scored.completions] == [
            "",
            "timeout in its episode: it was so",
            "failure in its episode: it was so",
        ]
        with pytest.raises(GrpoError, match=r"episodes: failed on 4 of the last 6 completions.*failure: it was so"):
            scorer.score([group])


def test_an_environment_alone_gives_the_reward() -> None:
    """Accuracy is the task's verdict all the same, where it has one."""
    done = Completion("41", EMPTY, EMPTY, "stop", turns=("41",), parts={"Game": 0.5})
    with Scorer(load_task(TALKATIVE), environment=GAME) as scorer:
        [scored] = scorer.score([Group(ASKED, EMPTY, (done,), 0)])
        assert (scored.completions[0].reward, scored.completions[0].correct) == (0.5, None)
    with Scorer(Arithmetic(), "task", environment=GAME) as scorer:
        [scored] = scorer.score([Group(ASKED, EMPTY, (changed(done, text="42"),), 0)])
        assert (scored.completions[0].reward, scored.completions[0].correct) == (1.5, True)


def test_an_episode_without_a_reward_earned_0() -> None:
    """Many environments reward nothing but the win, so a batch may have no reward at all. Where there are other
    rewards, one that never gives any has no part in them."""
    won = Completion("42", EMPTY, EMPTY, "stop", turns=("42",), parts={"Game": 0.5})
    lost = changed(won, parts={})
    broken = changed(lost, fault="failure", why="it was so")

    def earned(scorer: Scorer, *completions: Completion) -> list[object]:
        [scored] = scorer.score([Group(ASKED, EMPTY, completions, 0)])
        return [(one.reward, one.parts) for one in scored.completions]

    with Scorer(Arithmetic(), environment=GAME) as scorer:
        assert earned(scorer, won, lost, broken) == [(0.5, {"Game": 0.5}), (0.0, {"Game": 0.0}), (None, {})]
        assert earned(scorer, lost, lost) == [(0.0, {"Game": 0.0})] * 2
    with Scorer(Arithmetic(), "task", environment=GAME) as scorer:
        assert earned(scorer, won, lost) == [
            (1.5, {"Game": 0.5, "correct": 1.0}),
            (1.0, {"Game": 0.0, "correct": 1.0}),
        ]
        assert earned(scorer, lost) == [(1.0, {"correct": 1.0})]


def test_functions_that_the_environment_calls_count_with_their_weights() -> None:
    """A function of the evaluation's rewards has no part in those of training."""
    parts = {"Game": 0.5, "state": 2.0, "evaluated": 7.0}
    done = Completion("42", EMPTY, EMPTY, "stop", turns=("42",), parts=parts, extra={"seen": 1}, logged={"hits": 2.0})
    with Scorer(Arithmetic(), "python:state*0.25, task", functions={"state": len}, environment=GAME) as scorer:
        [scored] = scorer.score([Group(ASKED, EMPTY, (done,), 0)])
    [one] = scored.completions
    assert (one.reward, one.parts) == (0.5 + 0.25 * 2.0 + 1.0, {"Game": 0.5, "state": 2.0, "correct": 1.0})
    assert (one.extra, one.logged) == ({"seen": 1}, {"hits": 2.0})


def test_a_function_that_takes_environments_needs_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def state(environments): return [env.count for env in environments]\n")
    with (
        Scorer(Arithmetic(), f"{tmp_path}/mine.py:state", Scoring(workers=1)) as scorer,
        pytest.raises(
            GrpoError, match=r"mine\.py:state: takes environments, and the run has none; name one with --env"
        ),
    ):
        scorer.ready([ASKED])
