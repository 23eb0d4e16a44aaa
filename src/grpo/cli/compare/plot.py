"""Plots a comparison: means over seeds with 95% confidence bands."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo.cli.compare.intervals import t_quantile
from grpo.cli.compare.results import RunResult, measure_of, summarise
from grpo.errors import GrpoError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Distinct for colour-blind readers (Okabe and Ito, and a brown)."""
POINTS = 200


def check_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise GrpoError(
            'the picture needs matplotlib: pip install "grpo-lab[plot]" (or compare without one: --picture none)'
        )


def draw(arms: Mapping[str, Sequence[RunResult]], file: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")  # without a window
    from matplotlib import pyplot

    figure, ((by_step, by_token, by_second), (held_out, memory, compute)) = pyplot.subplots(
        2, 3, figsize=(15, 8), layout="constrained"
    )
    colours = {arm: COLOURS[i % len(COLOURS)] for i, arm in enumerate(arms)}
    _curves(by_step, "steps", arms, colours, lambda run: (np.arange(1, len(run.rewards) + 1), _smooth(run.rewards)))
    _curves(by_token, "tokens sampled", arms, colours, lambda run: (np.array(run.tokens), _smooth(run.rewards)))
    _curves(by_second, "seconds of training", arms, colours, lambda run: (np.array(run.seconds), _smooth(run.rewards)))
    by_step.set_ylabel("reward")
    _curves(held_out, "steps", arms, colours, lambda run: tuple(np.array(run.evals, dtype=float).T))
    held_out.set_ylabel("held-out accuracy" if measure_of(arms) == "accuracy" else "held-out reward")
    held_out.legend(fontsize=8)
    for axes, measure, unit, label in (
        (memory, "memory", 2**30, "GiB at peak"),
        (compute, "operations", 1e12, "10¹² operations"),
    ):
        _bars(axes, measure, unit, label, arms, colours)
    seeds = min(len(runs) for runs in arms.values())
    bands = f"{seeds} seeds; bands and bars are 95% intervals of the mean" if seeds > 1 else "one seed"
    figure.suptitle(f"{title}   ({bands})")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _curves(
    axes: Any,
    label: str,
    arms: Mapping[str, Sequence[RunResult]],
    colours: Mapping[str, str],
    curve: Callable[[RunResult], Any],
) -> None:
    for i, (arm, runs) in enumerate(arms.items()):
        x, mean, half = band([curve(run) for run in runs])
        line = ("-", "--", ":")[i // len(COLOURS) % 3]  # when colours repeat
        axes.plot(x, mean, line, color=colours[arm], label=arm, linewidth=1.6)
        axes.fill_between(x, mean - half, mean + half, color=colours[arm], alpha=0.15, linewidth=0)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    # Limits follow the means: bands of two or three seeds are far wider.
    means = np.concatenate([line.get_ydata() for line in axes.lines])
    room = max(0.05, 0.25 * float(np.ptp(means)))
    axes.set_ylim(float(means.min()) - room, float(means.max()) + room)


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x values where all curves are defined, the mean there, and half the width of its 95% interval.

    >>> x, mean, half = band([(np.array([0, 2]), np.array([0.0, 2.0])), (np.array([0, 4]), np.array([2.0, 2.0]))])
    >>> float(x[-1]), float(mean[0]), float(mean[-1]), round(float(half[0]), 2)
    (2.0, 1.0, 2.0, 12.71)
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = np.linspace(first, last, POINTS)
    values = np.stack([np.interp(places, x, y) for x, y in curves])
    if len(curves) < 2:
        return places, values[0], np.zeros(POINTS)
    half = t_quantile(0.975, len(curves) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(curves))
    return places, values.mean(axis=0), half


def _smooth(values: Sequence[float]) -> np.ndarray:
    """Moving average over a twentieth of the run to either side."""
    reach = len(values) // 20
    return np.array([np.mean(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))])


def _bars(
    axes: Any,
    measure: str,
    unit: float,
    label: str,
    arms: Mapping[str, Sequence[RunResult]],
    colours: Mapping[str, str],
) -> None:
    found = {arm: rows[measure] for arm, rows in summarise(arms).items()}
    places = np.arange(len(arms))
    axes.barh(places, [each.mean / unit for each in found.values()], color=[colours[arm] for arm in arms])
    if all(np.isfinite(each.low) for each in found.values()):
        halves = [(each.high - each.mean) / unit for each in found.values()]
        means = [each.mean / unit for each in found.values()]
        axes.errorbar(means, places, xerr=halves, fmt="none", ecolor="#444444", capsize=3)
    axes.set_yticks(places, list(arms))
    axes.invert_yaxis()
    axes.set_xlabel(label)
