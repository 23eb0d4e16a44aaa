"""Confidence intervals of a mean over few seeds, by Student's t-distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; low and high are infinite for a single value."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], level: float = 0.95, least_error: float = 0.0) -> Interval:
    """Mean ± t·s/√n. `least_error` is a lower bound of the standard error.

    >>> mean_interval([1.0, 2.0, 3.0])                       # 2 ± 4.303 · 1/√3
    Interval(mean=2.0, low=-0.4841..., high=4.4841...)
    """
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    error = max(stdev(values) / math.sqrt(len(values)), least_error)
    half = t_quantile((1 + level) / 2, len(values) - 1) * error
    return Interval(mean, mean - half, mean + half)


def paired_interval(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, least_error: float = 0.0
) -> Interval:
    """Interval of first − second, paired by seed: variation that a seed's runs share cancels."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    return mean_interval(differences, level, least_error)


def t_quantile(probability: float, degrees: int) -> float:
    """The t below which this much of Student's distribution lies, for a probability of a half or more.

    >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 10**6), 3)
    (4.303, 1.96)
    """
    if not 0.5 <= probability < 1 or degrees < 1:
        raise ValueError(f"no quantile for probability {probability} and {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while t_cumulative(high, degrees) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cumulative(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_cumulative(t: float, degrees: int) -> float:
    """The share of Student's distribution below t ≥ 0: 1 − I(ν/(ν + t²); ν/2, 1/2) / 2."""
    return 1 - incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the mirrored function converges fast
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)) by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, 10_000):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
