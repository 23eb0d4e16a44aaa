"""Plays episodes with scripted turns, as an engine does with sampled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpo.config import Episodes as Settings
from grpo.config import Scoring
from grpo.episodes.answers import Answers
from grpo.episodes.play import Episodes, Play
from grpo.episodes.start import start_answers
from grpo.model.policy import Policy
from grpo.rollout.protocol import Ended, Sampling, Turn
from grpo.tasks import Task
from grpo.types import Observation, Problem
from helpers.policies import CharacterTokenizer

POLICY = Policy(None, CharacterTokenizer(), "characters", frozenset([1]))
SAMPLING = Sampling(seed=0, temperature=1.0, max_new_tokens=1000, step=3)

Heard = list[Observation | Ended]


def answers_of(task: Task, settings: Settings | None = None) -> Answers:
    found = start_answers(settings or Settings(), Scoring(workers=2), task)
    assert found is not None
    return found


def begin(answers: Answers, problems: Sequence[Problem], settings: Settings | None = None, group_size: int = 1) -> Play:
    return Episodes(settings or Settings(), answers, POLICY).begin(problems, group_size, SAMPLING)


def play_through(
    play: Play, scripts: Sequence[Sequence[str]], room: int = 1000, cut: Mapping[str, str] | None = None
) -> list[Heard]:
    """What each completion reads after each turn of its script; its last entry is the end of its episode. `cut`: turns
    that were cut at a limit, by their text."""
    heard: list[Heard] = [[] for _ in scripts]
    left = dict.fromkeys(range(len(scripts)), room)
    while left:
        turns = []
        for number in left:
            text = scripts[number][len(heard[number])]
            finish = (cut or {}).get(text, "stop")
            turns.append(Turn(number, text, len(text) + 1, finish))  # type: ignore[arg-type]
            left[number] -= len(text) + 1
        play.answer(turns[::2])
        play.answer(turns[1::2])
        for number, found in play.collect(left).items():
            heard[number].append(found)
            if isinstance(found, Ended):
                del left[number]
            else:
                left[number] -= len(found.tokens)
    play.close()
    return heard
