"""The questions that the views of a run ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from grpo.lab.api import MOST_METRICS
from grpo.lab.compare import AXES
from grpo.lab.search import TEXT, shown
from grpo.lab.site.record import Recorder

WHOLE = ("series", "signal", "difficulty", "timeline")
"""Views of the whole run. A page asks each for a number of points; one answer is recorded for all."""
POINTS = 240
PROMPTS = 60
"""Prompts that are recorded across steps; pinned ones come first."""
POINTS_COMPARED = 200


def address_of(run: str) -> str:
    return f"/api/runs/{quote(run, safe='~')}"


def record_run(
    recorder: Recorder,
    run: str,
    steps: Sequence[int],
    what_if: Sequence[int],
    groups: int | None = None,
    whole: bool = True,
) -> Iterator[int]:
    """Records all views of a run; of views of one step, these steps with this many groups (None: all), and other
    settings under "what if" for the steps `what_if`. The search has the whole texts or, to save room, those it shows.
    Yields each step when it is done."""
    base = address_of(run)
    about = recorder.ask(base)
    recorder.keep(base, {**about, "what_if": [step for step in what_if if step in steps]})
    for view in WHOLE:
        recorder.keep(f"{base}/{view}", recorder.ask(f"{base}/{view}?points={POINTS}"))
    recorder.record(f"{base}/{view}" for view in ("findings", "probes", "episodes"))
    if about["kind"] == "sft":  # has no groups
        for step in steps:
            recorder.record([f"{base}/steps/{step}/spans"])
            yield step
        return
    prompts = recorder.ask(f"{base}/prompts")[:PROMPTS]
    recorder.keep(f"{base}/prompts", prompts)
    recorder.record(f"{base}/prompts/{prompt['key']}" for prompt in prompts)
    kept: set[tuple[int, int]] = set()
    for step in steps:
        kept |= {(step, group) for group in _record_step(recorder, f"{base}/steps/{step}", groups, step in what_if)}
        yield step
    texts = [row for row in _completions(recorder, base, steps) if (row["step"], row["group_index"]) in kept]
    rows = texts if whole else [shown(row) for row in texts]
    recorder.keep(f"{base}/completions", {"rows": rows, "cut": None if rows == texts else TEXT})


def record_comparison(recorder: Recorder, run: str, metrics: Sequence[str]) -> None:
    """The page Compare of a single run: one answer per axis with all metrics, of which the page picks some."""
    for axis in AXES:
        asked = {"runs": run, "by": axis}
        answers = [
            recorder.ask(f"/api/compare?{urlencode({**asked, 'metrics': ','.join(some), 'points': POINTS_COMPARED})}")
            for some in (metrics[begin : begin + MOST_METRICS] for begin in range(0, len(metrics), MOST_METRICS))
        ]
        whole = {
            part: {name: one for each in answers for name, one in each[part].items()} for part in ("curves", "bands")
        }
        recorder.keep(f"/api/compare?{urlencode(asked)}", {**answers[0], **whole, "metrics": list(metrics)})


def _completions(recorder: Recorder, base: str, steps: Sequence[int]) -> Iterator[Any]:
    """The rows of the search, which the page filters by itself; an answer has whole steps, and here whole texts."""
    for step in steps:
        rows = recorder.ask(f"{base}/completions?order=oldest&whole=1&begin={step}")["rows"]
        yield from (row for row in rows if row["step"] == step)


def _record_step(recorder: Recorder, url: str, groups: int | None, others: bool) -> list[int]:
    """Records the views of a step, with at most `groups` groups, evenly spaced; returns the groups."""
    found = recorder.ask(url)
    stride = 1 if groups is None else max(1, -(-len(found["groups"]) // groups))
    found["groups"] = found["groups"][::stride]
    recorder.keep(url, found)
    recorder.record([f"{url}/spans"])
    for group in found["groups"]:
        address = f"{url}/groups/{group['index']}"
        detail = recorder.ask(address)
        recorder.keep(address, detail)
        if group["traced"]:
            recorder.keep(f"{address}/tokens", _lens(recorder, address, detail["completions"]))
    settled = recorder.ask(f"{url}/whatif")
    recorder.keep(f"{url}/whatif", settled)
    if others:
        # Some choices contradict settings of the run.
        recorder.record_also_refusals(f"{url}/whatif?{urlencode(settings)}" for settings in _other_settings(settled))
    return [group["index"] for group in found["groups"]]


def _lens(recorder: Recorder, group: str, completions: Sequence[Mapping[str, Any]]) -> Any:
    """The tokens of all completions. The lab shows long ones one at a time (`alone`)."""
    samples = sorted(done["sample"] for done in completions)
    lens = recorder.ask(f"{group}/tokens/{samples[0]}")
    missing = [sample for sample in samples if sample not in [row["sample"] for row in lens["rows"]]]
    for sample in missing:
        lens["rows"] += recorder.ask(f"{group}/tokens/{sample}")["rows"]
    return {**lens, "alone": bool(missing)}


def _other_settings(settled: Mapping[str, Any]) -> list[dict[str, str]]:
    """The presets, and each choice by itself, as the page's buttons ask for them."""
    recorded, choices = settled["recorded_settings"], settled["choices"]
    presets = [
        {name: value for name, value in preset.items() if value != recorded.get(name, value)}
        for preset in settled["presets"].values()
    ]
    single = [{name: value} for name, values in choices.items() for value in values if value != recorded[name]]
    return [{name: _text(value) for name, value in settings.items()} for settings in [*presets, *single] if settings]


def _text(value: Any) -> str:
    """A value as JavaScript writes it.

    >>> _text(5.0), _text(0.2), _text("mean")
    ('5', '0.2', 'mean')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
