"""Runs a program nobody has read, in bubblewrap: no network, nothing of the machine but its system folders, which it
cannot write, and limits on everything it could use up.

The program's word counts for nothing: whoever calls compares its output.
"""

from __future__ import annotations

import os
import resource
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from grpo.errors import GrpoError

NOBODY = 65534
FIRST_LENT_USER = 2_000_000_000
INSTALL = "install it (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
ALWAYS = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
    *("--clearenv", "--cap-drop", "ALL"),
    *("--dev", "/dev", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"),
    *("--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox", "--chdir", "/tmp"),
]
RUNNER = """\
import resource
for kind, most in {limits}: resource.setrlimit(kind, (most, most))
del resource, kind, most
exec(compile(open("/program.py", encoding="utf-8").read(), "program.py", "exec"), {{"__name__": "__main__"}})
"""
"""Inside, before the program: here the kernel counts processes of this sandbox alone."""


@dataclass(frozen=True)
class ProgramLimits:
    seconds: float = 5.0
    """By the clock, start included; processor time has the same limit for each process."""
    memory: int = 512 << 20
    """Bytes of address space of each process."""
    processes: int = 8
    """Processes and threads at once."""
    disk: int = 16 << 20
    """Bytes in /tmp, the only place to write to, which is gone afterwards."""
    output: int = 64 << 10
    """Bytes of output, and of error output; with more the program is ended."""


@dataclass(frozen=True)
class Ran:
    """What came of a program."""

    output: str
    error: str
    """What it wrote to stderr; a Python program's traceback is there."""
    status: int | None
    """Its exit code, or minus the signal that ended it; None where it took too long or said too much and was ended."""
    ended: Literal["", "time", "output"] = ""


def run_program(program: str, given: str = "", limits: ProgramLimits | None = None) -> Ran:
    """Runs a Python program with `given` as its standard input. An OSError where it could not be started: that is not
    the program's fault."""
    limits = limits or ProgramLimits()
    require()
    code, given_file, report = _memory_file(program), _memory_file(given), _memory_file("")
    try:
        process = _started(_command(code, report, limits), stdin=given_file, pass_fds=[code, report])
        ran = _watched(process, limits)
        # bubblewrap's own report, out of the program's reach, tells an exit code only of a program that was started.
        if not ran.ended and b'"exit-code"' not in os.pread(report, 1 << 16, 0):
            raise OSError(f"bubblewrap could not start the program: {(ran.error.strip().splitlines() or [''])[-1]}")
        return ran
    finally:
        for descriptor in (code, given_file, report):
            os.close(descriptor)


def _started(command: Sequence[str], stdin: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=pipe, stderr=pipe, pass_fds=pass_fds, cwd="/", **_as_nobody()
        )
    except OSError as error:  # border: a machine out of processes or memory; without its number it is no crash
        raise OSError(f"bubblewrap could not be started: {error}") from error


def require() -> None:
    """Raises where programs cannot be confined: they are not run then."""
    _bubble()


@cache
def _bubble() -> tuple[str, ...]:
    """The command that confines programs, and after it the interpreter for them; found by trying."""
    if shutil.which("bwrap") is None:
        raise GrpoError(f"task code: bubblewrap (bwrap) is not there, and programs are not run without it; {INSTALL}")
    why = ""
    # The interpreter that runs this, or the system's where that one lies in a folder only its owner can read.
    for python, folder in ((str(Path(sys.executable).resolve()), sys.base_prefix), ("/usr/bin/python3", "/usr")):
        own = () if Path(folder).is_relative_to("/usr") else ("--ro-bind", folder, folder)
        command = ("bwrap", *ALWAYS, *_system(), *own)
        tried = subprocess.run(
            [*command, "--tmpfs", "/tmp", python, "-I", "-S", "-c", "print(6 * 7)"],
            **{"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "cwd": "/", **_as_nobody()},
        )
        if tried.stdout == "42\n":
            return (*command, python)
        why = why or (tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"])[-1]
    raise GrpoError(
        f"task code: bubblewrap cannot confine programs here ({why}); it takes bubblewrap 0.8 and user namespaces: "
        "sysctl kernel.unprivileged_userns_clone=1, with AppArmor kernel.apparmor_restrict_unprivileged_userns=0, in a "
        "container a security profile that permits them"
    )


def _command(code: int, report: int, limits: ProgramLimits) -> list[str]:
    caps = [
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_CPU, max(1, round(limits.seconds + 0.5))),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ]
    *bubble, python = _bubble()
    return [
        *(*bubble, "--json-status-fd", str(report)),
        *("--size", str(limits.disk), "--tmpfs", "/tmp", "--ro-bind-data", str(code), "/program.py"),
        # What bubblewrap itself has made in memory is no place to write to either.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *(python, "-I", "-S", "-B", "-X", "utf8", "-c", RUNNER.format(limits=caps)),
    ]


def _system() -> list[str]:
    """The folders with system libraries, read-only."""
    words = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for folder in ("/bin", "/lib", "/lib64"):
        path = Path(folder)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), folder]
        elif path.exists():
            words += ["--ro-bind", folder, folder]
    return words


def _as_nobody() -> dict[str, Any]:
    """Root gives itself up for a user who owns nothing. Others have nothing to give up but their name, and the sandbox
    shows programs none of their files."""
    if os.geteuid() != 0:
        return {}
    return {"user": os.getuid() or FIRST_LENT_USER + os.getpid(), "group": NOBODY, "extra_groups": []}


def _memory_file(text: str) -> int:
    """A file that exists in memory alone, open at its beginning."""
    descriptor = os.memfd_create("sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _watched(process: subprocess.Popen[bytes], limits: ProgramLimits) -> Ran:
    """Reads until the program ends, or ends it; with it go all its processes."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    said = {process.stdout: b"", process.stderr: b""}
    ended: Literal["", "time", "output"] = ""
    with process, selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not ended:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                stream = process.stdout if key.fileobj is process.stdout else process.stderr
                chunk = os.read(key.fd, 1 << 16)
                said[stream] += chunk
                if not chunk:
                    selector.unregister(stream)
                elif len(said[stream]) > limits.output:
                    ended = "output"
            if time.monotonic() >= deadline:
                ended = "time"
        if ended:
            process.kill()
    output, error = (said[stream][: limits.output].decode(errors="replace") for stream in said)
    status = process.returncode
    # bubblewrap says 128 + n where the program was ended by signal n.
    return Ran(output, error, None if ended else 128 - status if status > 128 else status, ended)
