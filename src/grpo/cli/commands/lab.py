"""`grpo lab`: starts the web app, or writes it as a static site or one run as one file."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from grpo.cli.commands.options import parse
from grpo.errors import GrpoError

PROG = "grpo lab"
MOST_MEGABYTES = 1000


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """Inspect runs in the browser, during training and after: groups, advantages, tokens. `grpo lab build FOLDER`
    writes the lab as a static site, `grpo lab export RUN FILE` one run as one file."""

    runs: str = "runs"
    """Folder that holds the runs."""
    port: int = 8765
    """Port; 0: any free one."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    token: str = ""
    """Secret in the printed address; empty: a random one; none: no token, every user of this machine can read the
    runs. The list of processes shows a token given here."""
    open: bool = True
    """Open the browser."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Write the lab as a static site, for any web host or opened as a file: chapters, story, game, the shipped run."""

    folder: str
    """Folder to write, new or empty or of an earlier build; also the first argument."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write one run as one HTML file that opens anywhere, without a server and offline."""

    run: str
    """The run; also the first argument."""
    file: str
    """File to write, new or of an earlier export; also the second argument."""
    runs: str = "runs"
    """Folder that holds the runs."""
    megabytes: float = 5.0
    """Largest size of the file. Steps of a longer run are left out evenly, and the page says which it has."""


def command(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["build"]:
            return _build(parse(BuildOptions, arguments[1:], f"{PROG} build", ("folder",)))
        if arguments[:1] == ["export"]:
            return _export(parse(ExportOptions, arguments[1:], f"{PROG} export", ("run", "file")))
        if arguments and not arguments[0].startswith("-"):
            raise GrpoError(
                f'argument "{arguments[0]}" (command line): unknown; write grpo lab, grpo lab build FOLDER or '
                "grpo lab export RUN FILE"
            )
        return _serve(parse(LabOptions, arguments, PROG, ()))
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise GrpoError(f'the lab needs {missing.name}: pip install "grpo-lab[lab]"') from None


def _serve(options: LabOptions) -> int:
    if not 0 <= options.port < 65536:
        raise GrpoError(f"field port (command line): must be 0 to 65535; got {options.port}")
    from grpo.lab.server import serve

    serve(Path(options.runs), address=options.host, port=options.port, token=options.token, open_browser=options.open)
    return 0


def _build(options: BuildOptions) -> int:
    from grpo.lab.site.build import build

    size = build(Path(options.folder), _report)
    _report("")
    print(f"{options.folder}: {size / 1e6:.1f} MB. Open {options.folder}/index.html, or serve it:")
    print(f"  python -m http.server --directory {shlex.quote(options.folder)}")
    return 0


def _export(options: ExportOptions) -> int:
    if not 0 < options.megabytes <= MOST_MEGABYTES:
        raise GrpoError(
            f"field megabytes (command line): must be above 0, at most {MOST_MEGABYTES:,}; got {options.megabytes:g}"
        )
    from grpo.lab.site.export import export

    about = export(Path(options.runs), options.run, Path(options.file), round(1e6 * options.megabytes), _report)
    _report("")
    print(f"{options.file}: {about}. Open it in a browser; it needs no server.")
    return 0


def _report(text: str) -> None:
    """Shows progress on one line of a terminal; an empty text clears it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}" + " …" * bool(text), end="", file=sys.stderr, flush=True)
