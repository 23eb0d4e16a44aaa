"""The launcher's ranks (launch.py), seen from within: how they end, and which run a restart continues.

A rank that ends together with all others (finished, stopped, or refused) exits with 0 and leaves its exit code in a
file; any other exit code makes the launcher start all ranks again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grpo.distributed import world
from grpo.errors import GrpoError, LostRankError

LAUNCHER = "GRPO_LAUNCHER"
"""Variable with the launcher's process id and its folder."""
RANK_VARIABLES = (LAUNCHER, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
REFUSED = 2
"""Exit code after an error that the user must fix."""
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_PRINT = 5.0
"""Time that ranks which do not print an error leave to the one that does: when one ends, torchrun ends the others."""


@dataclass(frozen=True)
class Launcher:
    process: int
    folder: Path
    """Files of the launcher's ranks: exit codes, errors, the run's name."""

    def ending(self, local_rank: int) -> Path:
        return self.folder / f"{local_rank}.json"

    def errors(self, local_rank: int) -> Path:
        """The stderr of a rank that does not print to the terminal."""
        return self.folder / f"{local_rank}.stderr"

    @property
    def variable(self) -> str:
        return f"{self.process} {self.folder}"


@dataclass(frozen=True)
class Ending:
    code: int
    error: str = ""


def launcher() -> Launcher | None:
    """The launcher of this process; None for one that is not its rank."""
    process, _, folder = os.environ.get(LAUNCHER, "").partition(" ")
    return Launcher(int(process), Path(folder)) if folder else None


def prints(error: GrpoError) -> bool:
    """Whether this process prints the error that ends it: all ranks have the same one, and rank 0 has the terminal.

    A lost rank may be rank 0: then every other rank prints it, or the launcher does. Before ranks have met, each host
    may have an error of its own.
    """
    is_lost = isinstance(error, LostRankError)
    if launcher() is None:
        return is_lost or os.environ.get("RANK" if world.has_joined() else "LOCAL_RANK", "0") == "0"
    return not is_lost


def leave(code: int) -> int:
    """The exit code of this process, which ends with `code` together with all other ranks."""
    found = launcher()
    if found is None:
        return code
    write_ending(found, Ending(code))
    return 0


def fail(error: GrpoError) -> int:
    """The exit code of this process, which ends with this error."""
    is_lost, found = isinstance(error, LostRankError), launcher()
    if found is not None and is_lost:
        write_ending(found, Ending(1, str(error)))
    if is_lost:
        return 1
    if not prints(error):
        time.sleep(SECONDS_TO_PRINT)
    return leave(REFUSED) if world.has_joined() else REFUSED


def write_ending(found: Launcher, ending: Ending) -> None:
    path = found.ending(int(os.environ["LOCAL_RANK"]))
    path.write_text(json.dumps(vars(ending)))


def read_ending(found: Launcher, local_rank: int) -> Ending | None:
    """How a rank ended; None where it did not say."""
    path = found.ending(local_rank)
    return Ending(**json.loads(path.read_text())) if path.exists() else None


def remember_run(name: str) -> None:
    """Notes the run's name, so that restarted ranks resume it."""
    if (found := launcher()) is not None:
        (found.folder / "run").write_text(name)


def run_to_resume(found: Launcher | None = None) -> str:
    """The run that the ranks of this launcher have begun; empty at their first start."""
    found = found or launcher()
    path = found.folder / "run" if found else None
    return path.read_text() if path and path.exists() else ""


def end_with_launcher() -> None:
    """Kills this process when its launcher is gone: a rank is in a session of its own and would go on.

    A command that a rank has started, in a callback for instance, has its variables and is not a rank.
    """
    if (found := launcher()) is None:
        return
    import psutil

    if os.getppid() != found.process and psutil.pid_exists(found.process):
        for name in RANK_VARIABLES:
            os.environ.pop(name, None)
        return
    threading.Thread(target=_watch, args=(found,), daemon=True).start()


def _watch(found: Launcher) -> None:
    while os.getppid() == found.process:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    shutil.rmtree(found.folder, ignore_errors=True)  # the launcher was killed and has left it
    os.kill(os.getpid(), signal.SIGKILL)
