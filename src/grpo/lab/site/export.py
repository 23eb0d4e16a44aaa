"""`grpo lab export`: one run as one HTML file. Steps of a run that is too large for it are left out evenly."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError, one_line
from grpo.lab.catalogue import Catalogue, UnknownRunError
from grpo.lab.site import page
from grpo.lab.site.record import Recorder
from grpo.lab.site.runs import address_of, record_run
from grpo.lab.site.writing import check_writable, writing

FONTS = ("Main-Regular", "Math-Italic", "Size1-Regular", "Size2-Regular")
"""Fonts that the formulas of a run's views use."""
MARK = '<meta name="generator" content="grpo lab export" />'
FEWEST_STEPS = 5
"""If fewer steps fit, groups are left out too."""
WORKER = "offline/pattern-worker.js"
"""The worker that the views of a run start."""
SAMPLED = 3
"""Steps that are recorded to estimate the size of all."""


def export(runs: Path, run: str, file: Path, limit: int, report: Callable[[str], None]) -> str:
    """Writes the file; returns its size and content in words."""
    with writing("file", file):
        _check(file)
    _check_run(runs, run)
    recorder = Recorder(runs)
    about = recorder.ask(address_of(run))
    parts = _parts()
    fixed = sum(len(text) for text in parts.values())
    total = about["steps"]
    steps, groups = _choice(recorder, run, about, limit - fixed, report, whole=True)
    # Steps are worth more than the ends of long texts in the search.
    whole = len(steps) == total and groups is None
    if not whole:
        steps, groups = _choice(recorder, run, about, limit - fixed, report, whole=False)
    while True:
        chosen = Recorder(recorder.runs)
        chosen.record(["/api/metrics"])
        for place, step in enumerate(record_run(chosen, run, steps, [about["telling_step"]], groups, whole)):
            report(f"recording step {step}: {place + 1} of {len(steps)}")
        text = _page(run, about, steps, groups, chosen, parts)
        size = len(text.encode())
        if size <= limit:
            break
        # The estimate was too low: shorter texts in the search, then a fifth fewer steps each time.
        if whole:
            whole = False
            continue
        if len(steps) <= 1:
            raise GrpoError(
                f"field megabytes (command line): must be at least {size / 1e6 + 0.05:.1f}, the size with one step; "
                f"got {limit / 1e6:g}"
            )
        steps = _even(steps, len(steps) * 4 // 5, about["telling_step"])
    with writing("file", file):
        _write(file, text)
    kept = "all steps" if len(steps) == total else f"{len(steps)} of {total} steps"
    return f"{size / 1e6:.1f} MB, {kept}" + (f", at most {groups} groups of each" if groups else "")


def _check(file: Path) -> None:
    if not file.parent.is_dir():
        raise GrpoError(f"field file: no folder {file.parent}; make it first")
    if file.is_dir():
        raise GrpoError(f"field file: {file} is a folder; name a file such as {file}/run.html")
    if file.exists() and not (file.is_file() and MARK.encode() in _beginning(file)):
        raise GrpoError(f"field file: {file} exists and is not an export; name another file")
    check_writable(file.parent)


def _check_run(runs: Path, run: str) -> None:
    try:
        Catalogue(runs).open(run).close()
    except UnknownRunError:
        raise GrpoError(f"field run: no run {one_line(run, 80)!r} in {runs}; --runs names another folder") from None


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(2000)


def _write(file: Path, text: str) -> None:
    """An earlier export stays until the new one is whole."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _choice(
    recorder: Recorder, run: str, about: dict[str, Any], room: int, report: Callable[[str], None], *, whole: bool
) -> tuple[list[int], int | None]:
    """The steps that fit into this many bytes, and how many groups of each (None: all)."""
    report("measuring the run")
    every = list(range(about["steps"]))
    tried = _even(every, SAMPLED, about["telling_step"])
    sample = Recorder(recorder.runs)
    for _ in record_run(sample, run, tried, [], whole=whole):
        pass
    sizes = {start: len(text) for start, text in zip(sample.chunks, sample.scripts().values(), strict=True)}
    of_steps = sum(size for start, size in sizes.items() if "/steps/" in start)
    search = sizes.pop(f"{address_of(run)}/completions", 0)
    per_step = max(1, (of_steps + search) // max(1, len(tried)))
    fits = (room - (sum(sizes.values()) - of_steps)) // per_step
    if fits >= FEWEST_STEPS or len(every) <= fits:
        return _even(every, fits, about["telling_step"]), None
    groups = max(1, about["prompts_per_step"] * max(fits, 1) // FEWEST_STEPS) if about["prompts_per_step"] else 1
    return _even(every, FEWEST_STEPS, about["telling_step"]), groups


def _even(steps: Sequence[int], count: int, telling: int) -> list[int]:
    """At most `count` steps, evenly spaced, with the first and the last; the nearest gives way to the telling one.

    >>> _even(range(10), 4, 5)
    [0, 3, 5, 9]
    """
    if count >= len(steps):
        return list(steps)
    count = max(1, count)
    chosen = [steps[round(place * (len(steps) - 1) / max(1, count - 1))] for place in range(count)]
    if telling in steps and telling not in chosen:
        nearest = min(range(len(chosen)), key=lambda place: (abs(chosen[place] - telling), -place))
        chosen[nearest] = telling
    return sorted(set(chosen))


def _parts() -> dict[str, str]:
    """Scripts and style sheets of the page: everything but the run."""
    return {
        "theme": page.inline_script((page.STATIC / "js/theme.js").read_text()),
        "libraries": page.inline_script("\n".join((page.STATIC / path).read_text() for path in page.LIBRARIES)),
        "worker": page.inline_script(page.worker_text(WORKER, page.worker_scripts()[WORKER])),
        "app": page.inline_script(page.linker().link("js/exported.js")),
        "style": _formula_style() + page.style_text(page.styles(), page.data_url),
    }


def _formula_style() -> str:
    """KaTeX's style sheet with the fonts in use, each in the one format that is vendored."""
    used = re.compile(rf"KaTeX_({'|'.join(FONTS)})\.woff2")
    style = page.style_text([page.KATEX_STYLE], lambda path: page.data_url(path) if used.search(path) else "")
    style = re.sub(r',url\(""\) format\("\w+"\)', "", style)
    return re.sub(r'@font-face\{[^}]*url\(""\)[^}]*\}', "", style)


def _page(
    run: str, about: dict[str, Any], steps: Sequence[int], groups: int | None, recorder: Recorder, parts: dict[str, str]
) -> str:
    facts = {
        "run": run,
        "icon": page.data_url("icon.svg"),
        "exported": datetime.now(UTC).isoformat(timespec="minutes"),
        "version": version("grpo-lab"),
        "steps": None if len(steps) == about["steps"] else list(steps),
        "groups": groups,
    }
    # Names of runs are text of any kind: < and > cannot begin a tag in this form.
    embedded = json.dumps(facts).replace("<", "\\u003c").replace(">", "\\u003e")
    data = f"window.grpoExport = {embedded};\n{recorder.index_script()}{''.join(recorder.scripts().values())}"
    data = page.inline_script(data)
    scripts = [parts["theme"], parts["libraries"], parts["worker"], data, parts["app"]]
    head = f"""{page.policy("", scripts, [parts["style"]])}
    {MARK}
    <link rel="icon" href="{facts["icon"]}" />
    <style>{parts["style"]}</style>
    <script>{parts["theme"]}</script>"""
    body = "".join(f"\n    <script>{text}</script>" for text in scripts[1:])
    return page.page(site="export", title=f"{about['name']} · grpo lab", head=head, body=body, home=f"/runs/{run}")
