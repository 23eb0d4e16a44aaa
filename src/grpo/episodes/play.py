"""Plays episodes: sends the turns of a rollout to the replier, and turns its answers into observations.

The engine samples turns and calls `Play`. A round is over when every turn has been answered, so what a completion reads
never depends on who answered first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo.config import Episodes as Settings
from grpo.episodes.answers import Answer, Answers, Episode
from grpo.episodes.opening import Opening
from grpo.episodes.template import ConversationTemplate, Message
from grpo.episodes.tools import CallReader
from grpo.errors import GrpoError
from grpo.kill_points import ROUND, point
from grpo.model.policy import Policy
from grpo.rewards.pool.invoke import Outcome, Request
from grpo.rollout.protocol import Ended, Sampling, Turn
from grpo.types import Call, Observation, Problem

CHARACTERS_PER_TOKEN = 64
"""A text with more characters than this for each token allowed is cut before it is encoded."""
MARK = " [cut]"
"""Ends a text that was cut, for models that have tokens for it."""


class Episodes:
    """Makes the other side of episodes; `Engine.episodes`."""

    def __init__(self, settings: Settings, answers: Answers, policy: Policy):
        self.settings, self.answers, self.policy = settings, answers, policy
        self.max_turn_tokens = settings.max_turn_tokens
        policy.tools = answers.replier.schemas
        self.template = ConversationTemplate(policy)
        self.template.check()
        prefix = self.template.turn_prefix() if policy.tokenizer.chat_template else ""
        answers.replier.reader = CallReader(policy.tools, policy.tokenizer, prefix)
        self.waited = 0.0
        """Seconds that rollouts have waited for answers."""
        self.read: dict[Any, list[int]] = {}
        """Tokens of the observations of this rollout, by what they are made of."""
        self.mark = "" if self.is_unknown(self.template.encode_plain(MARK)) else MARK

    def begin(self, problems: Sequence[Problem], group_size: int, sampling: Sampling) -> Play:
        self.read.clear()
        return Play(self, problems, group_size, sampling)

    def observation(self, episode: Episode, answer: Answer, *, closed: bool = True) -> Observation:
        """The answer as the model reads it, its texts cut to `max_observation_tokens`. `closed`: the turn before it
        ended with an end token."""
        whole = [answer] if isinstance(answer, str) else [call.answer for call in answer]
        most = self.settings.max_observation_tokens
        length = CHARACTERS_PER_TOKEN * most
        while True:
            texts = [cut(text, length, self.mark) for text in whole]
            calls = () if isinstance(answer, str) else tuple(map(_answered, answer, texts))
            messages = self.template.tool_messages(calls) if calls else [{"role": "user", "content": texts[0]}]
            tokens = self._read(episode.begun or episode.problem, messages, closed)
            if len(tokens) <= most:
                break
            longest = max(map(len, texts))
            if not longest:
                raise GrpoError(
                    f"field episodes.max_observation_tokens: the chat template writes {len(tokens)} tokens around an "
                    f"observation, and {most} are allowed; raise it"
                )
            length = min(longest - 1, longest * most // len(tokens))
        # The template's own tokens may be the unknown one: in some models it is the end token.
        if self.is_unknown(tokens) and any(self.is_unknown(self.template.encode_plain(text)) for text in texts):
            raise GrpoError(
                f"{self.answers.replier.name}, problem {episode.problem.label}: {self.policy.name} has no token for "
                f"part of the answer {texts[0][:40]!r}; answer in characters that it has, or use another model"
            )
        return Observation(episode.tokens, np.array(tokens, dtype=np.int64), "\n".join(texts), calls)

    def _read(self, problem: Problem, messages: Sequence[Message], closed: bool) -> list[int]:
        """The tokens of an observation. Completions often read the same, and rendering it is most of the work."""
        key = (bool(problem.messages), closed, *(tuple(message.items()) for message in messages))
        if key not in self.read:
            self.read[key] = self.template.observation(problem, messages, closed=closed)
        return self.read[key]

    def is_unknown(self, tokens: Sequence[int]) -> bool:
        """Whether one of them stands for what the model has no token for."""
        return getattr(self.policy.tokenizer, "unk_token_id", None) in tokens


class Play:
    """The other side of the episodes of one rollout."""

    def __init__(self, episodes: Episodes, problems: Sequence[Problem], group_size: int, sampling: Sampling):
        self.maker, self.replier = episodes, episodes.answers.replier
        self.group_size, self.sampling = group_size, sampling
        self.episodes = [
            Episode(problem, f"{sampling.purpose}/{sampling.step}/{problem.id}/{sample}")
            for problem in problems
            for sample in range(group_size)
        ]
        """By the number of their completion."""
        self.ended: dict[int, Ended] = {}
        """Episodes whose last turn needs no answer."""
        self.asked: list[tuple[dict[int, int], Callable[[], list[Outcome]]]] = []
        """For each call of `answer`: the number of requests of each completion, and what waits for their outcomes."""
        self.failed: dict[int, Ended] = {}
        """Episodes that could not begin; they end after their first turn."""
        begun = self._begin()
        groups = [begun[i : i + group_size] for i in range(0, len(begun), group_size)]
        self.openings = [
            Opening.of(problem, group, episodes.policy) for problem, group in zip(problems, groups, strict=True)
        ]
        self.problems: Sequence[Problem] = [opening.problem for opening in self.openings]
        shared = {p: each.prompt for p, each in enumerate(self.openings) if each.prompt is not None}
        self.prompts: Mapping[int, np.ndarray] = {**shared, **self._stand_ins()}

    def _begin(self) -> list[Problem | None]:
        """The problem as each completion begins it; None where its episode cannot begin."""
        asked = [self.replier.begin(episode) for episode in self.episodes]
        requests = [request for request in asked if request]
        outcomes = iter(self._wait(self.maker.answers.start(requests)) if requests else [])
        begun: list[Problem | None] = []
        for number, (episode, request) in enumerate(zip(self.episodes, asked, strict=True)):
            problem = self.replier.began(episode, next(outcomes)) if request else episode.problem
            if isinstance(problem, Ended):
                self.failed[number] = problem
            begun.append(None if isinstance(problem, Ended) else problem)
        return begun

    def _stand_ins(self) -> dict[int, np.ndarray]:
        """A token for each prompt that an environment was to make, where none of the group's could begin. What follows
        it is never scored."""
        policy = self.maker.policy
        groups = range(0, len(self.episodes), self.group_size)
        failed = [p for p, n in enumerate(groups) if all(n + i in self.failed for i in range(self.group_size))]
        token = next(each for each in (*sorted(policy.end_tokens), 0, 1) if not self.maker.is_unknown([each]))
        return {p: np.array([token]) for p in failed if not policy.prompt_tokens(self.problems[p])}

    def _wait(self, finish: Callable[[], list[Outcome]]) -> list[Outcome]:
        started = time.monotonic()
        outcomes = finish()
        self.maker.waited += time.monotonic() - started
        return outcomes

    def opening(self) -> Mapping[int, Observation]:
        found = [each for opening in self.openings for each in opening.observations or (None,) * self.group_size]
        most = self.sampling.max_new_tokens
        for number, each in enumerate(found):
            if each is not None and len(each.tokens) >= most:
                raise GrpoError(
                    f"{self.replier.name}, problem {self.episodes[number].problem.label}: the completions of a problem "
                    f"begin with different texts, here with {len(each.tokens)} tokens, which max_new_tokens ({most}) "
                    "counts; begin them alike, such as with the seed that reset is given, or raise max_new_tokens"
                )
        return {number: each for number, each in enumerate(found) if each is not None}

    def answer(self, turns: Sequence[Turn]) -> None:
        requests: list[Request] = []
        counts: dict[int, int] = {}
        for turn in turns:
            episode = self.episodes[turn.completion]
            episode.add(turn)
            failed = self.failed.get(turn.completion)
            asked = failed or (self.replier.ask(episode) if turn.finish == "stop" else Ended(turn.finish))
            if isinstance(asked, Ended):
                self.ended[turn.completion] = asked
            else:
                counts[turn.completion] = len(asked)
                requests += asked
        if counts:
            self.asked.append((counts, self.maker.answers.start(requests) if requests else list))

    def collect(self, room: Mapping[int, int]) -> Mapping[int, Observation | Ended]:
        found: dict[int, Observation | Ended] = {**self.ended}
        for counts, wait in self.asked:
            outcomes = iter(self._wait(wait))
            for completion, count in counts.items():
                own = [next(outcomes) for _ in range(count)]
                found[completion] = self._next(self.episodes[completion], own, room[completion])
        self.ended, self.asked = {}, []
        point(ROUND)
        return {**found, **self._last({n: end for n, end in found.items() if isinstance(end, Ended)})}

    def _last(self, ended: Mapping[int, Ended]) -> Mapping[int, Ended]:
        """The ends of episodes, with the last word of their replier."""
        asked = {n: self.replier.end(self.episodes[n], end) for n, end in ended.items()}
        requests = {n: request for n, request in asked.items() if request}
        outcomes = self._wait(self.maker.answers.start([*requests.values()])) if requests else []
        return {
            n: self.replier.last(self.episodes[n], ended[n], outcome)
            for n, outcome in zip(requests, outcomes, strict=True)
        }

    def _next(self, episode: Episode, outcomes: Sequence[Outcome], room: int) -> Observation | Ended:
        settings, limit = self.maker.settings, self.maker.answers.limits.seconds
        episode.seconds += sum(
            limit if outcome.fault == "timeout" else outcome.extra.get("seconds", 0.0) for outcome in outcomes
        )
        answer = self.replier.answer_of(episode, outcomes)
        if isinstance(answer, Ended):
            return answer
        if len(episode.turns) >= settings.max_turns:
            return Ended("turns")
        if settings.max_seconds and episode.seconds > settings.max_seconds:
            return Ended("seconds")
        closed = not any(stop in episode.turns[-1] for stop in self.sampling.stop)
        observation = self.maker.observation(episode, answer, closed=closed)
        if len(observation.tokens) >= room:
            return Ended("length")
        episode.read += (observation,)
        return observation

    def close(self) -> None:
        """Closes the environments of episodes that have not ended."""
        requests = [self.replier.end(episode, Ended("stop")) for episode in self.episodes if episode.is_open]
        for episode in self.episodes:
            episode.is_open = False
        if asked := [request for request in requests if request]:
            self.maker.answers.start(asked)()


def _answered(call: Call, text: str) -> Call:
    return replace(call, answer=text)


def cut(text: str, length: int, mark: str) -> str:
    """The text, or as much of its beginning as leaves room for the mark.

    >>> cut("one two three", 13, " [cut]"), cut("one two three", 10, " [cut]"), cut("one two three", 2, " [cut]")
    ('one two three', 'one  [cut]', 'on')
    """
    if len(text) <= length:
        return text
    return text[: length - len(mark)] + mark if length > len(mark) else text[:length]
