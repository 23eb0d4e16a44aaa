"""Runs an untrusted program in bubblewrap: no network, read-only system folders, few system calls, limits on every
resource.

The caller compares the program's output; nothing the program claims about itself counts.
"""

from __future__ import annotations

import os
import platform
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
from grpo.tasks.checkers.seccomp import MACHINES, syscall_filter

NOBODY = 65534
FIRST_UNUSED_UID = 2_000_000_000
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
"""Runs inside the sandbox, before the program: there the kernel counts only the sandbox's processes."""


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use."""

    seconds: float = 5.0
    """Wall-clock time, start included; the CPU time of each process has the same limit."""
    memory: int = 512 << 20
    """Bytes of address space of each process."""
    processes: int = 8
    """Simultaneous processes and threads."""
    disk: int = 16 << 20
    """Bytes in /tmp, the only writable folder, which is deleted afterwards."""
    output: int = 64 << 10
    """Bytes of stdout, and of stderr; a program that writes more is killed."""


@dataclass(frozen=True)
class ProgramResult:
    """Output and exit status of a program."""

    output: str
    error: str
    """Its stderr, where a Python program's traceback is."""
    status: int | None
    """Exit code, or minus the signal that ended it; None where the time or output limit killed it."""
    limit: Literal["", "time", "output"] = ""
    """The limit that killed it."""


def run_program(program: str, stdin: str = "", limits: ProgramLimits | None = None) -> ProgramResult:
    """Run a Python program. Raises OSError where bubblewrap could not start it, which is not the program's fault."""
    limits = limits or ProgramLimits()
    require()
    code, stdin_file, report, calls = files = [_memory_file(text) for text in (program, stdin, "", _syscall_filter())]
    try:
        process = _started(_command(code, report, calls, limits), stdin=stdin_file, pass_fds=[code, report, calls])
        result = _read(process, limits)
        # bubblewrap's report, which the program cannot reach, has an exit code only where the program was started.
        if not result.limit and b'"exit-code"' not in os.pread(report, 1 << 16, 0):
            raise OSError(f"bubblewrap could not start the program: {(result.error.strip().splitlines() or [''])[-1]}")
        return result
    finally:
        for descriptor in files:
            os.close(descriptor)


def _started(command: Sequence[str], stdin: int, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=pipe, stderr=pipe, pass_fds=pass_fds, cwd="/", **_as_nobody()
        )
    except OSError as error:  # border: a machine out of processes or memory; without its errno it is not a crash
        raise OSError(f"bubblewrap could not be started: {error}") from error


def require() -> None:
    """Raise GrpoError where bubblewrap cannot sandbox programs here."""
    _bubble()


@cache
def _bubble() -> tuple[str, ...]:
    """The bubblewrap command and, last, the Python interpreter that works inside it."""
    if shutil.which("bwrap") is None:
        raise GrpoError(f"task code: needs bubblewrap (bwrap) to run programs safely; {INSTALL}")
    why = ""
    # This interpreter, or the system's where this one is in a folder that only its owner can read.
    for python, folder in ((str(Path(sys.executable).resolve()), sys.base_prefix), ("/usr/bin/python3", "/usr")):
        own = () if Path(folder).is_relative_to("/usr") else ("--ro-bind", folder, folder)
        command = ("bwrap", *ALWAYS, *_system(), *own)
        calls = _memory_file(_syscall_filter())
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "cwd": "/", "pass_fds": [calls]}
        try:
            tried = subprocess.run(
                [*command, "--seccomp", str(calls), "--tmpfs", "/tmp", python, "-I", "-S", "-c", "print(6 * 7)"],
                **{**options, **_as_nobody()},
            )
        finally:
            os.close(calls)
        if tried.stdout == "42\n":
            return (*command, python)
        why = why or (tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"])[-1]
    raise GrpoError(
        f"task code: bubblewrap cannot sandbox programs here ({why}); it needs bubblewrap 0.8 and user namespaces: "
        "sysctl kernel.unprivileged_userns_clone=1, with AppArmor kernel.apparmor_restrict_unprivileged_userns=0, in a "
        "container a security profile that permits them"
    )


@cache
def _syscall_filter() -> bytes:
    machine = platform.machine()
    if machine not in MACHINES:
        raise GrpoError(f"task code: programs can be sandboxed on {' and '.join(MACHINES)}, not on {machine}")
    return syscall_filter(machine)


def _command(code: int, report: int, calls: int, limits: ProgramLimits) -> list[str]:
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
        *(*bubble, "--json-status-fd", str(report), "--seccomp", str(calls)),
        *("--size", str(limits.disk), "--tmpfs", "/tmp", "--ro-bind-data", str(code), "/program.py"),
        # Also read-only: the folders that bubblewrap itself created in memory.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *(python, "-I", "-S", "-B", "-X", "utf8", "-c", RUNNER.format(limits=caps)),
    ]


def _system() -> list[str]:
    """Arguments that bind the folders with system libraries, read-only."""
    words = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for folder in ("/bin", "/lib", "/lib64"):
        path = Path(folder)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), folder]
        elif path.exists():
            words += ["--ro-bind", folder, folder]
    return words


def _as_nobody() -> dict[str, Any]:
    """Root runs bubblewrap as a user who owns nothing. Others keep their user id: the sandbox hides their files."""
    if os.geteuid() != 0:
        return {}
    return {"user": os.getuid() or FIRST_UNUSED_UID + os.getpid(), "group": NOBODY, "extra_groups": []}


def _memory_file(content: str | bytes) -> int:
    """An in-memory file with this content, open at its start."""
    descriptor = os.memfd_create("sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content.encode(errors="replace") if isinstance(content, str) else content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _read(process: subprocess.Popen[bytes], limits: ProgramLimits) -> ProgramResult:
    """Read output until the program ends or a limit kills it and all its processes."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + limits.seconds
    written = {process.stdout: b"", process.stderr: b""}
    limit: Literal["", "time", "output"] = ""
    with process, selectors.DefaultSelector() as selector:
        for stream in written:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not limit:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                stream = process.stdout if key.fileobj is process.stdout else process.stderr
                chunk = os.read(key.fd, 1 << 16)
                written[stream] += chunk
                if not chunk:
                    selector.unregister(stream)
                elif len(written[stream]) > limits.output:
                    limit = "output"
            if time.monotonic() >= deadline:
                limit = "time"
        if limit:
            process.kill()
    output, error = (written[stream][: limits.output].decode(errors="replace") for stream in written)
    status = process.returncode
    # bubblewrap exits with 128 + n where signal n ended the program.
    return ProgramResult(output, error, None if limit else 128 - status if status > 128 else status, limit)
