"""Rounds: the turns of episodes, and what they read between them.

A row whose turn has ended is paused and its turn handed to the other side at once. When no row runs and none can start,
the answers to all paused rows are collected: each has another turn, or its episode is over. Rows go on in the order of
their numbers, so that no token depends on who answered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from grpo.rollout.decoding import Decoding, Given
from grpo.rollout.protocol import Ended, Play, Turn
from grpo.rollout.schedule import Schedule
from grpo.rollout.turns import SampledTurn, TurnReader
from grpo.types import Completion, Observation

NOTHING = np.zeros(0, np.int64)


@dataclass(eq=False)
class OpenCompletion:
    """The turns and observations of a completion so far."""

    turns: list[SampledTurn] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    sequence: np.ndarray = field(default_factory=lambda: NOTHING)
    """All that it has sampled and read."""
    ended: Ended | None = None

    @property
    def turn_ends(self) -> np.ndarray:
        """Tokens that it had sampled when each turn ended."""
        return np.cumsum([len(turn.tokens) for turn in self.turns])

    def completion(self) -> Completion:
        assert self.ended is not None
        texts, ended = tuple(turn.text for turn in self.turns), self.ended
        rewards = zip(self.turn_ends.tolist(), ended.turn_rewards, strict=True) if ended.turn_rewards else ()
        return Completion(
            texts[-1],
            np.concatenate([turn.tokens for turn in self.turns]),
            np.concatenate([turn.logprobs for turn in self.turns]),
            ended.finish,
            turns=texts,
            observations=(*self.observations, *([ended.last] if ended.last else ())),
            steps=tuple((end - 1, reward) for end, reward in rewards),
            parts=ended.parts,
            traits=ended.traits,
            extra=ended.extra,
            logged=ended.logged,
            fault=ended.fault,
            why=ended.why,
        )


class Rounds:
    def __init__(self, play: Play, schedule: Schedule, decoding: Decoding, reader: TurnReader, max_turn_tokens: int):
        """Sets the limits of all first turns, and what completions read before them."""
        self.play, self.schedule, self.decoding, self.reader = play, schedule, decoding, reader
        self.max_turn_tokens = max_turn_tokens or schedule.new_tokens
        self.episodes = [OpenCompletion() for _ in schedule.time_N]
        self.asked: list[int] = []
        """Completions whose answer has not been collected."""
        opening = play.opening()
        decoding.observe({n: self._given(n, opening.get(n)) for n in range(len(self.episodes))})

    def answer(self, completions: Sequence[int]) -> dict[int, int]:
        """Has the turns of these completions, which have just ended, answered. Returns the tokens of each so far."""
        if not completions:
            return {}
        starts = [len(self.episodes[n].sequence) for n in completions]
        turns = []
        for n, sampled in zip(completions, self.reader.read(completions, starts), strict=True):
            episode = self.episodes[n]
            episode.turns.append(sampled)
            episode.sequence = np.concatenate([episode.sequence, sampled.tokens])
            turns.append(Turn(n, sampled.text, len(sampled.tokens), self._finish(episode)))
        self.play.answer(turns)
        self.asked += completions
        return {n: len(self.episodes[n].sequence) for n in completions}

    def collect(self) -> list[int]:
        """Waits for all answers. Returns the completions whose episode is over; the others go on."""
        asked, self.asked = sorted(self.asked), []
        answers = self.play.collect({n: self.schedule.new_tokens - len(self.episodes[n].sequence) for n in asked})
        going_on: dict[int, Given] = {}
        for n in asked:
            answer = answers[n]
            if isinstance(answer, Ended):
                self.episodes[n].ended = answer
            else:
                going_on[n] = self._given(n, answer)
        self.decoding.observe(going_on)
        self.schedule.resume(list(going_on))
        return [n for n in asked if n not in going_on]

    def completions(self, numbers: Sequence[int]) -> list[Completion]:
        return [self.episodes[n].completion() for n in numbers]

    def _finish(self, episode: OpenCompletion) -> Literal["stop", "length", "turn_length"]:
        if episode.turns[-1].stopped:
            return "stop"
        return "length" if len(episode.sequence) == self.schedule.new_tokens else "turn_length"

    def _given(self, number: int, observation: Observation | None) -> Given:
        episode, places = self.episodes[number], self.schedule.new_tokens
        after = len(episode.sequence)
        if observation is not None:
            assert observation.after == sum(len(turn.tokens) for turn in episode.turns), "stands after another token"
            episode.observations.append(observation)
            episode.sequence = np.concatenate([episode.sequence, observation.tokens])
        start = len(episode.sequence)
        assert start < places, f"completion {number}: {start} of {places} places are taken before its turn"
        return Given(episode.sequence, after, min(start + self.max_turn_tokens, places))
