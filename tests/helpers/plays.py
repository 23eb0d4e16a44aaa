"""The other side of episodes, as a function of what was said: for tests of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grpo.rollout.protocol import Ended, Sampling, Turn
from grpo.types import Observation, Problem

Answer = Callable[[int, int, str], Sequence[int] | None]
"""(completion, turns before, text of this turn) -> tokens to read, or None: the episode is over."""


def talk(completion: int, turn: int, text: str) -> Sequence[int] | None:
    """Completions of 1 to 4 turns. What they read depends on what they said, and holds end tokens."""
    if turn >= completion * 7 % 4:
        return None
    total = sum(map(ord, text)) + 11 * completion
    return [1 + (total + 17 * i) % 40 for i in range(total % 6)] + [1]


@dataclass
class ScriptedEpisodes:
    """Makes `ScriptedPlay`s, and keeps them."""

    answer: Answer = talk
    openings: Mapping[int, Sequence[int]] = field(default_factory=dict)
    max_turn_tokens: int = 0
    turn_rewards: bool = False
    plays: list[ScriptedPlay] = field(default_factory=list)

    def begin(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> ScriptedPlay:
        self.plays.append(ScriptedPlay(self, problems))
        return self.plays[-1]


class ScriptedPlay:
    def __init__(self, script: ScriptedEpisodes, problems: Sequence[Problem]):
        self.script, self.problems = script, problems
        self.prompts: dict[int, np.ndarray] = {}
        self.turns: dict[int, list[Turn]] = {}
        self.waiting: dict[int, Observation | Ended] = {}
        self.collected: list[dict[int, int]] = []
        """`room` of each round."""
        self.closed = 0

    def opening(self) -> Mapping[int, Observation]:
        return {n: Observation(0, np.array(tokens), "open") for n, tokens in self.script.openings.items()}

    def answer(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            said = self.turns.setdefault(turn.completion, [])
            tokens = self.script.answer(turn.completion, len(said), turn.text)
            said.append(turn)
            rewards = tuple(float(i) for i in range(len(said))) if self.script.turn_rewards else ()
            if tokens is None or turn.finish != "stop":
                self.waiting[turn.completion] = Ended(turn.finish, turn_rewards=rewards, traits={"over": 1.0})
            else:
                after = sum(turn.tokens for turn in said)
                self.waiting[turn.completion] = Observation(after, np.array(tokens, np.int64), str(tokens))

    def collect(self, room: Mapping[int, int]) -> Mapping[int, Observation | Ended]:
        self.collected.append(dict(room))
        answers, self.waiting = self.waiting, {}
        assert answers.keys() == room.keys()
        return {
            n: Ended("length") if isinstance(answer, Observation) and len(answer.tokens) >= room[n] else answer
            for n, answer in answers.items()
        }

    def close(self) -> None:
        self.closed += 1
