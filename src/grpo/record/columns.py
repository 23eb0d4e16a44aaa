"""What is recorded: the columns of every table of schema.sql, and how steps, groups and completions fill them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo.record.trace import traced_groups
from grpo.types import Completion, Group

ENCODER = json.JSONEncoder(allow_nan=False)

METRIC = ("step", "name", "value")
SPAN = ("step", "name", "start", "seconds")
FINDING = ("recorded", "step", "kind", "text")
GROUP = ("step", "group_index", "problem_id", "prompt", "answer", "policy_version")
PROMPT = ("problem_id", "place", "text", "tokens")
SAMPLE = ("step", "group_index", "sample_index")
"""The key of a completion."""
CONTENT = ("text", "length", "finish", "reward", "correct", "parts", "traits", "extra", "advantage", "logprob", "why")
COMPLETION = (*SAMPLE, *CONTENT)
FLOAT_ARRAYS = ("logprobs", "ref_logprobs", "old_logprobs", "advantages", "trainer_logprobs", "entropies")
INTEGER_ARRAYS = ("tokens", "observed", "observed_after")
TOKEN_ARRAYS = (*SAMPLE, *INTEGER_ARRAYS, *FLOAT_ARRAYS, "denominator")
SPOKEN = ("who", "text", "tokens", "after", "calls", "reward", "fault")
TURN = (*SAMPLE, "turn", *SPOKEN)
PROBE = ("step", "probe_index", "problem_id", "prompt", "answer", "samples")


def insert(table: str, columns: Sequence[str]) -> str:
    """
    >>> insert("evals", ("step", "recorded"))
    'INSERT INTO evals (step, recorded) VALUES (?, ?)'
    """
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def metric_rows(step: int, metrics: Mapping[str, float]) -> list[tuple[int, str, float | None]]:
    return [(step, name, finite(value)) for name, value in metrics.items()]


def group_row(step: int, index: int, group: Group) -> tuple[Any, ...]:
    problem = group.problem
    return step, index, problem.id, problem.prompt, problem.answer, group.policy_version


def prompt_row(group: Group) -> tuple[Any, ...]:
    tokens = np.asarray(group.prompt_tokens, "<i4").tobytes()
    return group.problem.id, group.problem.place, group.prompt_text, tokens


def completion_rows(step: int, index: int, group: Group) -> list[tuple[Any, ...]]:
    return [(step, index, place, *content(done)) for place, done in enumerate(group.completions)]


def content(done: Completion) -> tuple[Any, ...]:
    """A completion's values in the order of CONTENT."""
    length = len(done)
    total = _total(done.advantages) if done.advantages is not None else None
    advantage = None if total is None else total / max(length, 1)
    logprob = _total(done.logprobs)
    reward, about = finite(done.reward), map(as_json, (done.parts, done.traits, done.extra))
    return done.text, length, done.finish, reward, done.correct, *about, advantage, logprob, done.why


def turn_rows(step: int, index: int, group: Group) -> list[tuple[Any, ...]]:
    return [
        (step, index, place, turn, *spoken)
        for place, done in enumerate(group.completions)
        for turn, spoken in enumerate(turns(done))
    ]


def turns(done: Completion) -> list[tuple[Any, ...]]:
    """What an episode wrote and read, in order, as values in the order of SPOKEN; empty where it is not an episode."""
    if not done.turns:
        return []
    ends, rewards = done.turn_ends, {position + 1: reward for position, reward in done.steps}
    wrote = [
        ("model", text, end - start, start, "[]", finite(rewards.get(end)), "")
        for text, start, end in zip(done.turns, [0, *ends[:-1]], ends, strict=True)
    ]
    read = []
    for seen in done.observations:
        fault = next((call.fault for call in seen.calls if call.fault), "")
        who, calls = "tool" if seen.calls else "environment", as_json([vars(call) for call in seen.calls])
        read.append((who, seen.text, len(seen.tokens), seen.after, calls, None, fault))
    # An observation comes before the turn that begins where it stands.
    *others, last = sorted([*read, *wrote], key=lambda spoken: spoken[SPOKEN.index("after")])
    return [*others, (*last[:-1], last[-1] or done.fault)]


def token_rows(step: int, groups: Sequence[Group], count: int) -> list[tuple[Any, ...]]:
    """Token arrays of `count` groups."""
    rows = []
    for index in traced_groups(groups, count):
        for sample_index, done in enumerate(groups[index].completions):
            trainer, entropies, denominator = (
                (done.trace.logprobs, done.trace.entropies, done.trace.denominator) if done.trace else (None,) * 3
            )
            floats = (done.logprobs, done.ref_logprobs, done.old_logprobs, done.advantages, trainer, entropies)
            blobs = (None if array is None else np.asarray(array, "<f4").tobytes() for array in floats)
            tokens = np.asarray(done.tokens, "<i4").tobytes()
            rows.append((step, index, sample_index, tokens, *_observed(done), *blobs, denominator))
    return rows


def _observed(done: Completion) -> tuple[bytes | None, bytes | None]:
    """The tokens that it read, and how many sampled tokens precede each; None where it read none."""
    pairs = [(token, seen.after) for seen in done.observations for token in seen.tokens]
    if not pairs:
        return None, None
    tokens, after = np.array(pairs, "<i4").T
    return tokens.tobytes(), after.tobytes()


def probe_rows(step: int, groups: Sequence[Group]) -> list[tuple[Any, ...]]:
    rows = []
    for index, group in enumerate(groups):
        samples = [
            {"text": done.text, "reward": done.reward, "correct": done.correct, **_turns_kept(done)}
            for done in group.completions
        ]
        problem = group.problem
        rows.append((step, index, problem.id, problem.prompt, problem.answer, as_json(samples)))
    return rows


def _turns_kept(done: Completion) -> dict[str, Any]:
    """The turns and observations of an episode, for the record of a probe."""
    rows = [dict(zip(SPOKEN, spoken, strict=True)) for spoken in turns(done)]
    return {"turns": [{name: row[name] for name in ("who", "text", "fault")} for row in rows]} if rows else {}


def decoded(column: str, value: Any) -> Any:
    """A value of token_arrays or prompts as the array that was stored."""
    return np.frombuffer(value, "<i4" if column in INTEGER_ARRAYS else "<f4") if isinstance(value, bytes) else value


def as_json(value: Any) -> str:
    try:
        return ENCODER.encode(value)
    except (ValueError, TypeError):  # not finite, or a numpy number
        return ENCODER.encode(finite(value))


def finite(value: Any) -> Any:
    """The JSON value with None for NaN and infinities, which JSON cannot hold."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _total(array: np.ndarray) -> float | None:
    """The sum; None if it is not finite."""
    total = float(np.add.reduce(array, dtype=np.float64))
    return total if math.isfinite(total) else None
