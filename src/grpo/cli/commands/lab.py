"""`grpo lab`: starts the web app."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grpo.cli.commands.options import parse
from grpo.errors import GrpoError

PROG = "grpo lab"


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """Inspect runs in the browser, during training and after: groups, advantages, tokens."""

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


def command(arguments: list[str]) -> int:
    options = parse(LabOptions, arguments, PROG, ())
    if not 0 <= options.port < 65536:
        raise GrpoError(f"field port (command line): must be 0 to 65535; got {options.port}")
    try:
        from grpo.lab.server import serve
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise GrpoError(f'the lab needs {missing.name}: pip install "grpo-lab[lab]"') from None
    serve(Path(options.runs), address=options.host, port=options.port, token=options.token, open_browser=options.open)
    return 0
