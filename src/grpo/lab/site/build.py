"""`grpo lab build`: the lab as a static site, for any web host or as a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from grpo.errors import GrpoError
from grpo.lab.catalogue import EXAMPLE, RECORDINGS
from grpo.lab.chapters import all_trials
from grpo.lab.site import page
from grpo.lab.site.questions import questions
from grpo.lab.site.record import Recorder
from grpo.lab.site.runs import address_of, record_comparison, record_run
from grpo.lab.site.writing import check_writable, writing

MARK = "grpo-lab-site.json"
"""Names the files that a build wrote: only these are replaced by the next one."""


def build(folder: Path, report: Callable[[str], None]) -> int:
    """Writes the site; returns its size in bytes."""
    with writing("folder", folder):
        earlier = _earlier(folder)
        check_writable(folder)
    files: dict[str, str | bytes] = {}
    report("linking the scripts")
    files["app.js"] = page.app_script()
    for path, text in page.worker_scripts().items():
        files[f"workers/{path}"] = page.worker_text(path, text)
    files |= _appearance()
    recorder = record_lab(report)
    files["data/index.js"] = recorder.index_script()
    files |= {f"data/{name}.js": text for name, text in recorder.scripts().items()}
    report("writing the files")
    with writing("folder", folder):
        _write(folder, files, earlier)
    return sum(len(content.encode() if isinstance(content, str) else content) for content in files.values())


def record_lab(report: Callable[[str], None]) -> Recorder:
    """All that the pages ask for: the chapters, their trials, the shipped runs."""
    recorder = Recorder(Path("no-runs"))
    recorder.keep("/api/runs", {**recorder.ask("/api/runs"), "folder": "runs"})
    recorder.record(["/api/metrics", "/api/nano", "/api/scene"])
    recorder.record(f"/api/trials/named/{name}" for name in all_trials())
    asked = questions()
    for place, url in enumerate(asked):
        if place % 50 == 0:
            report(f"answering the chapters' questions: {place} of {len(asked)}")
        recorder.record([url])
    for name in sorted(folder.name for folder in RECORDINGS.iterdir() if (folder / "run.db").is_file()):
        about = recorder.ask(address_of(f"{EXAMPLE}{name}"))
        steps = range(about["steps"])
        chosen = {0, about["telling_step"], about["steps"] - 1}
        for step in record_run(recorder, f"{EXAMPLE}{name}", steps, sorted(chosen)):
            if step % 10 == 0:
                report(f"recording the views of {name}: step {step} of {len(steps)}")
        record_comparison(recorder, f"{EXAMPLE}{name}", about["metrics"])
    return recorder


def _appearance() -> dict[str, str | bytes]:
    """The page, the style sheets, and the files that they and the scripts load."""
    files: dict[str, str | bytes] = {}

    def address(path: str) -> str:
        files[path] = (page.STATIC / path).read_bytes()
        return path

    files["app.css"] = page.style_text(page.styles(), address)
    for path in ("icon.svg", "js/theme.js", page.KATEX_STYLE, *page.LIBRARIES):
        address(path)
    for font in sorted(page.STATIC.glob("vendor/katex/dist/fonts/*.woff2")):
        address(font.relative_to(page.STATIC).as_posix())
    for licence in sorted(page.STATIC.glob("vendor/**/LICENSE*")):
        address(licence.relative_to(page.STATIC).as_posix())
    head = f"""{page.policy("'self'", [], [])}
    <link rel="icon" href="icon.svg" type="image/svg+xml" />
    <link rel="stylesheet" href="app.css" />
    <script src="js/theme.js"></script>
    <script defer src="data/index.js"></script>
    <script defer src="app.js"></script>"""
    files["index.html"] = page.page(site="site", title="grpo lab", head=head)
    return files


def _earlier(folder: Path) -> set[str]:
    """Files of an earlier build in the folder. One with other files is refused."""
    if folder.exists() and not folder.is_dir():
        raise GrpoError(f"field folder: {folder} is a file; name a folder")
    ours = _named(folder) | {MARK} if (folder / MARK).is_file() else set()
    others = sorted({file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()} - ours)
    if others:
        raise GrpoError(f"field folder: {folder} has other files ({others[0]}); name a new or empty folder")
    return ours


def _named(folder: Path) -> set[str]:
    """The names in the folder's list of files, all of them inside it."""
    try:
        names = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # border: a file that anybody can edit
        names = None
    inside = folder.resolve()
    if isinstance(names, list) and all(isinstance(name, str) and "\0" not in name for name in names):
        targets = [(folder / name).resolve() for name in names]
        if all(target.is_relative_to(inside) and target != inside for target in targets):
            return set(names)
    raise GrpoError(f"field folder: {folder / MARK} is not a list of files in this folder; name a new or empty folder")


def _write(folder: Path, files: dict[str, str | bytes], earlier: set[str]) -> None:
    for name in earlier - files.keys() - {MARK}:
        (folder / name).unlink(missing_ok=True)
    # The list comes first: a build that stops half way can be replaced by the next one.
    for name, content in {MARK: json.dumps(sorted(files), indent=0) + "\n", **files}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
