"""Checks an environment before training: does it repeat, what does it answer, what does it earn, how long does it take?

Each episode is played twice with the same turns, in a worker process as in training. The turns are made up: calls with
arguments of the right types, or short texts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from grpo.cli.terminal.group import printable
from grpo.config import Scoring
from grpo.episodes.agent import turn_sent
from grpo.episodes.environment_replies import NOTHING, EnvironmentReplies
from grpo.errors import GrpoError
from grpo.rewards import error_line
from grpo.rewards.conversation import conversation
from grpo.rewards.functions import parse
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import History, Outcome, Request
from grpo.rewards.pool.workers import Workers
from grpo.rewards.signature import refuse_unknown_columns
from grpo.types import Observation, Problem

TRIED = 4
"""Problems that are tried where no number is given."""
TEXTS = ("1", "", "I do not know.", '{"action": "look"}')
"""Turns of an episode, after the gold answer, where there is one."""
MADE_UP: Mapping[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


@dataclass
class EpisodeFindings:
    problem: str
    observations: list[str] = field(default_factory=list)
    """Texts from reset, and for each turn."""
    turns: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    """Of each turn."""
    reward: float | None = None
    fault: str = ""
    why: str = ""
    close: str = ""
    """What went wrong in close."""
    seconds: list[float] = field(default_factory=list)
    """Of each call when it was played again: reset, each turn, and the end."""

    @property
    def course(self) -> tuple[Any, ...]:
        """What must be the same when it is played again."""
        return self.observations, self.rewards, self.reward, self.fault


@dataclass
class EnvFindings:
    env: str
    tools: list[str]
    wrong_calls: dict[str, str]
    """What the model reads after a call that cannot be made."""
    episodes: list[EpisodeFindings]
    differences: list[str]
    """Where the second playing of an episode went another way."""
    asks_for_replay: bool
    """False where the class says `repeatable = False`: then nothing is played again."""

    @property
    def sound(self) -> bool:
        """No call failed, and episodes repeat, where they have to."""
        return not any(each.fault for each in self.episodes) and not (self.differences and self.asks_for_replay)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


def check_environment(
    env: str, every: Sequence[Problem], count: int, scoring: Scoring, text: str = "", reward: str = ""
) -> EnvFindings:
    """Plays episodes of `count` problems for each environment, twice. `text`: every turn, in place of those made up.
    `reward`: functions that read environments."""
    replies = EnvironmentReplies(env)
    specs = parse(reward)
    taken = replies.take({spec: None for spec in specs if spec.is_function}, evaluation=False)
    for spec in specs:
        if spec not in taken:
            raise GrpoError(
                f"reward {spec}: does not take environments; check it without --env, or leave it out of --reward"
            )
        refuse_unknown_columns(f"reward {spec}", taken[spec], every)
    replies.kinds.check_columns(every)
    by_title: dict[str, list[Problem]] = {}
    for problem in every:
        by_title.setdefault(replies.kinds.of(problem).title, []).append(problem)
    problems = [problem for some in by_title.values() for problem in some[:count]]
    limits = Limits(scoring.seconds, int(scoring.memory_gb * 2**30), workers=1)
    workers, weights = Workers([replies], limits), replies.weights("check")
    try:
        # All once, then all again: so objects that share state, or a file, are noticed.
        first, second = (
            [play(workers, problem, trial_turns(problem, replies, text), weights) for problem in problems]
            for _ in range(2)
        )
    finally:
        workers.close()
    pairs = [*zip(first, second, strict=True)]
    for before, again in pairs:
        before.seconds = again.seconds  # the first calls also start a process
    return EnvFindings(
        env=env,
        tools=[schema["function"]["name"] for schema in replies.schemas],
        wrong_calls={
            call: text
            for schemas in replies.schemas_by_title.values()
            for call, text in (wrong_calls(schemas) if schemas else {}).items()
        },
        episodes=first,
        differences=[
            difference(before, again)
            for problem, (before, again) in zip(problems, pairs, strict=True)
            if before.course != again.course and (replies.kinds.of(problem).repeatable or len(by_title) == 1)
        ],
        asks_for_replay=any(kind.repeatable for kind in replies.kinds.by_name.values()),
    )


def trial_turns(problem: Problem, replies: EnvironmentReplies, text: str) -> list[str]:
    """Turns of one episode: a call of each tool, or texts."""
    kind = replies.kinds.of(problem)
    if kind.tools and not text:
        schemas = replies.schemas_by_title[kind.title]
        return [json.dumps([made_up_call(schema["function"], problem)]) for schema in schemas]
    texts = [text] * len(TEXTS) if text else [*filter(None, [problem.answer]), *TEXTS]
    return [turn_sent(each, ()) for each in texts] if kind.messages else texts


def made_up_call(function: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """
    >>> schema = {"properties": {"step": {"type": "integer"}, "way": {"type": "string", "enum": ["up", "down"]}}}
    >>> made_up_call({"name": "move", "parameters": schema}, Problem("p", "", ""))
    {'name': 'move', 'arguments': {'step': 1, 'way': 'up'}}
    """
    arguments = {}
    for name, schema in function["parameters"].get("properties", {}).items():
        kinds = schema.get("type", "string")
        kind = kinds if isinstance(kinds, str) else kinds[0]
        arguments[name] = schema["enum"][0] if "enum" in schema else MADE_UP.get(kind, problem.answer or "x")
    return {"name": function["name"], "arguments": arguments}


def wrong_calls(schemas: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the model reads after calls that cannot be made, by the call."""
    from grpo.episodes.tools import CallReader

    reader, found = CallReader(schemas), {}
    for written in ("{", '{"name": "no_such_tool", "arguments": {}}'):
        [asked], _ = reader.read(f"<tool_call>{written}</tool_call>")
        found[written] = asked.error
    for schema in schemas:
        name = schema["function"]["name"]
        for arguments in ({}, {"no_such_argument": 1}):
            call = {"name": name, "arguments": arguments}
            if error := reader.checked(call, "").error:
                found[json.dumps(call)] = error
    return found


def play(workers: Workers, problem: Problem, turns: Sequence[str], weights: Mapping[str, float]) -> EpisodeFindings:
    """Plays until the environment ends the episode or no turns are left."""
    found = EpisodeFindings(problem.label)

    def ask(turns: Sequence[str]) -> Outcome:
        history = History(f"check/0/{problem.id}/0", tuple(turns), tuple(found.observations))
        started = time.perf_counter()
        read = [Observation(i, NOTHING, text) for i, text in enumerate(found.observations[1:], 1)]
        spoken = conversation(turns, read[: max(0, len(turns) - 1)]) if turns else ()
        request = Request(problem, (turns[-1] if turns else "",), conversations=(spoken,), histories=(history,))
        [[[outcome]]] = workers.start([request])()
        found.seconds.append(time.perf_counter() - started)
        if outcome.fault == "mistake":
            raise GrpoError(f"{workers.names[0]}, problem {problem.label}: {outcome.why}")
        found.fault, found.why = outcome.fault, error_line(outcome.why) if outcome.why else ""
        if outcome.extra:
            found.observations += [outcome.extra["text"] or ""] * (outcome.kept or outcome.extra["text"] is not None)
            found.close = outcome.extra.get("close", "")
        values = [weights[name] * value for name, value in outcome.parts.items() if value is not None]
        found.reward = sum(values) if values else None
        return outcome

    outcome = ask(())
    for turn in turns:
        if not outcome.kept:
            return found
        found.turns.append(turn)
        outcome = ask(found.turns)
        found.rewards.append(outcome.extra.get("reward"))
    if outcome.kept:
        ask(found.turns)
    return found


def difference(before: EpisodeFindings, again: EpisodeFindings) -> str:
    """Where two playings of an episode part."""
    for i, (one, other) in enumerate(zip(before.observations, again.observations, strict=False)):
        if one != other:
            when = f"after turn {i}" if i else "in reset"
            return f"problem {before.problem}, {when}: {printable(one, 60)!r}, then {printable(other, 60)!r}"
    if before.fault != again.fault:
        return f"problem {before.problem}: {before.fault or 'no fault'}, then {again.fault or 'no fault'}"
    return (
        f"problem {before.problem}: the rewards {[*before.rewards, before.reward]}, then "
        f"{[*again.rewards, again.reward]}"
    )


def lines(found: EnvFindings) -> Iterator[str]:
    """The report for a person."""
    what = f"tools {', '.join(found.tools)}" if found.tools else "step(text)"
    yield f"environment {found.env} ({what}): {len(found.episodes)} episodes, each played twice with the same turns"
    seconds = [each for episode in found.episodes for each in episode.seconds[1:]] or [0.0]
    resets = [episode.seconds[0] for episode in found.episodes]
    yield f"{1e3 * fmean(resets):.1f} ms for reset, {1e3 * fmean(seconds):.1f} ms for a turn"
    rewards = [episode.reward for episode in found.episodes if episode.reward is not None]
    if rewards:
        yield f"rewards of the episodes: {min(rewards):.4g} to {max(rewards):.4g}, mean {fmean(rewards):.4g}"
    elif not any(episode.fault for episode in found.episodes):
        yield "no rewards: neither step nor get_reward gives one; name a reward with --reward when you train"
    if not found.asks_for_replay:
        yield "repeatable = False: an episode whose worker process is lost stays unscored"
    elif not found.differences:
        yield "repeats: the same turns gave the same answers and rewards"
    for each in found.differences:
        yield f"{'NOT REPEATABLE' if found.asks_for_replay else 'not repeatable'} {each}"
    for episode in found.episodes:
        if episode.fault:
            turn = f"turn {len(episode.turns)}" if episode.turns else "reset"
            yield f"FAULT {episode.fault} in problem {episode.problem}, {turn}: {episode.why}"
        if episode.close:
            yield f"close failed in problem {episode.problem}: {episode.close}"
    yield f"the first episode, problem {found.episodes[0].problem}: the model's turns and what it reads"
    yield from _episode_lines(found.episodes[0], calls=bool(found.tools))
    if found.wrong_calls:
        yield "calls that cannot be made, and what the model reads"
        yield from (f"  {printable(call, 50):50}  {printable(text, 90)}" for call, text in found.wrong_calls.items())


def _episode_lines(episode: EpisodeFindings, *, calls: bool) -> Iterator[str]:
    turns = ["reset", *episode.turns]
    rewards = [None, *episode.rewards]
    for i, turn in enumerate(turns):
        text = "" if i >= len(episode.observations) else episode.observations[i]
        if calls and i and text:
            text = "; ".join(each["answer"] for each in json.loads(text))
        reward = "" if rewards[i] is None else f"  reward {rewards[i]:.4g}"
        yield f"  {printable(turn, 50):50}  {printable(text, 60)}{reward}"
