"""Probability that a group has no signal."""

from __future__ import annotations


def zero_signal_chance(pass_rate: float, group_size: int) -> float:
    """Probability that all completions of a problem are right, or all wrong: p^G + (1 − p)^G.

    >>> zero_signal_chance(0.5, 2), zero_signal_chance(1.0, 8)
    (0.5, 1.0)
    """
    return pass_rate**group_size + (1 - pass_rate) ** group_size
