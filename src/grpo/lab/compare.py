"""Comparison of runs: metrics by steps, tokens or seconds; seeds of one config as a band; settings that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from grpo.config.parse import flat
from grpo.record.store import Run

AXES = ("steps", "tokens", "seconds")
MOST_PROBES = 6
NOT_TRAINING = ("run", "resume", "allow_change", "quiet", "system.runs", "system.threads")
"""Settings that say nothing about the training."""


def compare(runs: Sequence[tuple[str, Run]], metrics: Sequence[str], by: str, points: int) -> dict[str, Any]:
    settings = {run_id: dict(flat(run.config)) for run_id, run in runs}
    at = {run_id: positions(run, by) for run_id, run in runs}
    grouped = experiments(settings)
    width_of = widths(at, grouped, points)
    curves = {
        metric: {run_id: curve(run, metric, at[run_id], width_of[run_id]) for run_id, run in runs} for metric in metrics
    }
    return {
        "runs": [run_id for run_id, _ in runs],
        "by": by,
        "metrics": list(metrics),
        "curves": curves,
        "bands": {metric: bands(curves[metric], grouped, width_of) for metric in metrics},
        "evaluations": {run_id: evals(run, at[run_id]) for run_id, run in runs},
        "experiments": grouped,
        "differences": differences(settings),
        "probes": shared_probes(runs),
    }


def differences(settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings with different values. A setting that some of the records lack, such as older ones, does not count.

    >>> differences({"a": {"lr": 1e-4, "steps": 80, "stop": ""}, "b": {"lr": 1e-3, "steps": 80}})
    [{'name': 'lr', 'values': {'a': 0.0001, 'b': 0.001}}]
    """
    names = dict.fromkeys(name for row in settings.values() for name in row if name not in NOT_TRAINING)
    values = {name: {run_id: row[name] for run_id, row in settings.items() if name in row} for name in names}
    return [
        {"name": name, "values": found}
        for name, found in values.items()
        if len({json.dumps(value) for value in found.values()}) > 1
    ]


def experiments(settings: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Groups runs that differ only in their seed."""
    together: dict[str, list[str]] = {}
    for run_id, row in settings.items():
        own = {
            name: value
            for name, value in row.items()
            if name not in (*NOT_TRAINING, "seed") and not name.startswith("system.")
        }
        together.setdefault(json.dumps(own, sort_keys=True), []).append(run_id)
    return list(together.values())


def positions(run: Run, by: str) -> dict[int, float]:
    """The position of each step's end on the axis; seconds are training time, without evaluations."""
    if by == "steps":
        return {row["step"]: row["step"] + 1 for row in run.select("SELECT step FROM steps")}
    if by == "tokens":
        rows = run.select("SELECT step, value AS amount FROM metrics WHERE name = 'tokens' ORDER BY step")
    else:
        rows = run.select("SELECT step, sum(seconds) AS amount FROM spans GROUP BY step ORDER BY step")
    total, found = 0.0, {}
    for row in rows:
        total += row["amount"] or 0.0
        found[row["step"]] = total
    return found


def widths(at: Mapping[str, Mapping[int, float]], grouped: Sequence[Sequence[str]], points: int) -> dict[str, int]:
    """Steps per interval of each run's curve: the same for the seeds of one config, however far each has come.

    >>> widths({"a": {0: 1, 899: 900}, "b": {0: 1, 299: 300}, "c": {0: 1}}, [["a", "b"], ["c"]], 200)
    {'a': 5, 'b': 5, 'c': 1}
    """
    steps = {run_id: max(found, default=0) + 1 for run_id, found in at.items()}
    return {run_id: -(-max(steps[each] for each in ids) // points) for ids in grouped for run_id in ids}


def curve(run: Run, metric: str, at: Mapping[int, float], width: int) -> list[dict[str, float]]:
    """Means over intervals of `width` steps; an interval without a value is left out."""
    intervals = [list(part) for _, part in groupby(run.series(metric), lambda row: row[0] // width)]
    return [
        {"x": at.get(part[-1][0], 0.0), "y": sum(value for _, value in part) / len(part), "step": part[-1][0]}
        for part in intervals
    ]


Curve = Sequence[Mapping[str, float]]


def bands(
    curves: Mapping[str, Curve], grouped: Sequence[Sequence[str]], width_of: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [
        {"runs": ids, "points": band([curves[run_id] for run_id in ids], width_of[ids[0]])}
        for ids in grouped
        if len(ids) > 1
    ]


def band(curves: Sequence[Curve], width: int) -> list[dict[str, float]]:
    """Mean over seeds and one sample standard deviation to either side, in the intervals that all of them have.

    >>> low, high = {"step": 0, "x": 1.0, "y": 0.0}, {"step": 0, "x": 3.0, "y": 2.0}
    >>> band([[low], [high, {"step": 1, "x": 9.0, "y": 9.0}]], 1)
    [{'x': 2.0, 'mean': 1.0, 'low': -0.41421356237309515, 'high': 2.414213562373095}]
    """
    by_interval = [{point["step"] // width: point for point in curve} for curve in curves]
    points = []
    for interval in sorted(set.intersection(*map(set, by_interval))):
        together = [found[interval] for found in by_interval]
        middle, spread = fmean(point["y"] for point in together), stdev(point["y"] for point in together)
        x = fmean(point["x"] for point in together)
        points.append({"x": x, "mean": middle, "low": middle - spread, "high": middle + spread})
    return points


def evals(run: Run, at: Mapping[int, float]) -> list[dict[str, Any]]:
    keys = ("step", "accuracy", "low", "high")
    return [
        {"x": at.get(row["step"] - 1, 0.0), **{key: row[key] for key in keys}}
        for row in run.evals()
        if row["accuracy"] is not None
    ]


def shared_probes(runs: Sequence[tuple[str, Run]]) -> list[dict[str, Any]]:
    """Pinned prompts that all runs share, with each run's first and last samples."""
    by_prompt: dict[str, dict[str, list[dict[str, Any]]]] = {}
    answers: dict[str, str] = {}
    for run_id, run in runs:
        for row in run.probes():
            answers[row["prompt"]] = row["answer"]
            by_prompt.setdefault(row["prompt"], {}).setdefault(run_id, []).append(
                {"step": row["step"], "samples": row["samples"]}
            )
    shared = {prompt: by_run for prompt, by_run in by_prompt.items() if len(by_run) == len(runs)}
    return [
        {
            "prompt": prompt,
            "answer": answers[prompt],
            "runs": {run_id: [rows[0], rows[-1]] for run_id, rows in by_run.items()},
        }
        for prompt, by_run in list(shared.items())[:MOST_PROBES]
    ]
