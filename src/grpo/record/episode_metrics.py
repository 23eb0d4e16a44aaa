"""Metrics of episodes, in training and in evaluation: turns, tool calls, observations, and why episodes ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import get_args

from grpo.record.metric import SHARE, Metric
from grpo.types import Completion, Finish

EPISODE_METRICS: dict[str, Metric] = {
    "turns_mean": Metric(
        "Mean number of turns that the model took in an episode.",
        "turns",
        "As many as the task needs; at episodes.max_turns, episodes do not finish.",
    ),
    "turns_max": Metric(
        "Turns in the longest episode of the step.",
        "turns",
        "Below episodes.max_turns.",
    ),
    "calls": Metric(
        "Mean number of tool calls in an episode; 0 where the task or an environment answers.",
        "count",
        "Rises where tools help.",
    ),
    "call_errors": Metric(
        "Share of the tool calls that were answered with an error: the tool raised, no tool has that name, or the "
        "arguments do not fit.",
        SHARE,
        "Falls; if it stays high, the model does not know the form of a call.",
    ),
    "call_timeouts": Metric(
        "Share of the tool calls that took longer than episodes.tool_seconds and were killed.",
        SHARE,
        "0, or near it; a rise means that the policy learns slow calls.",
    ),
    "call_crashes": Metric(
        "Share of the tool calls that ended their process or ran out of memory.",
        SHARE,
        "0, or near it.",
    ),
    "observation_tokens": Metric(
        "Mean number of tokens that an episode read between its turns. They are not trained on, and length_mean does "
        "not count them.",
        "tokens",
        "Together with length_mean well below max_new_tokens.",
    ),
    "void_turns": Metric(
        "Share of the turns that neither call nor answer: they are blank, were cut at a limit of tokens, or hold calls "
        "of which none could be read.",
        SHARE,
        "Near 0; a rise often comes before a collapse.",
    ),
    "cut_turns": Metric(
        "Share of the turns that were cut at a limit of tokens: max_new_tokens or episodes.max_turn_tokens. A cut turn "
        "is the last of its episode, and calls nothing.",
        SHARE,
        "Near 0; if higher, raise the limit that finish/length or finish/turn_length names.",
    ),
}
"""Recorded where completions are episodes."""


def episode_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """The metrics of `EPISODE_METRICS`, and `finish/X`, the share of episodes that ended for reason X; empty where the
    completions are no episodes."""
    if not any(done.turns for done in completions):
        return {}
    calls = [call for done in completions for seen in done.observations for call in seen.calls]
    turns = [len(done.turns) for done in completions]

    def share_of_calls(fault: str) -> float:
        return sum(call.fault == fault for call in calls) / max(1, len(calls))

    return {
        "turns_mean": fmean(turns),
        "turns_max": float(max(turns)),
        "calls": len(calls) / len(completions),
        "call_errors": share_of_calls("error"),
        "call_timeouts": share_of_calls("timeout"),
        "call_crashes": share_of_calls("crash"),
        "observation_tokens": fmean(done.sequence_length - len(done) for done in completions),
        "void_turns": sum(map(void_turns, completions)) / sum(turns),
        "cut_turns": sum(map(is_cut, completions)) / sum(turns),
        **{f"finish/{reason}": fmean(done.finish == reason for done in completions) for reason in get_args(Finish)},
    }


def is_cut(done: Completion) -> bool:
    """Whether its last turn was cut at a limit of tokens."""
    return done.finish in ("length", "turn_length")


def void_turns(done: Completion) -> int:
    """Turns that are blank, were cut, or hold calls of which none could be read: such a call has no name."""
    unread = {seen.after for seen in done.observations if seen.calls and not any(call.name for call in seen.calls)}
    blank = {end for text, end in zip(done.turns, done.turn_ends, strict=True) if not text.strip()}
    return len(unread | blank | ({len(done)} if is_cut(done) else set()))
