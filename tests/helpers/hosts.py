"""Two hosts of a test: network namespaces with a cable between them, in which `grpo` runs as on machines of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SECONDS = 180.0
"""After which what a test waits for counts as failed."""


@dataclass
class Terminal:
    """In which a command was typed."""

    process: subprocess.Popen[bytes]
    log: Path

    def reports(self) -> list[str]:
        """What `grpo` reported on stderr, line by line."""
        return [line.removeprefix("grpo: ") for line in self.text.splitlines() if line.startswith("grpo: ")]

    @property
    def text(self) -> str:
        return self.log.read_text()

    def code(self) -> int:
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running: {self.text}") from None


@dataclass
class Host:
    name: str
    space: str
    """Its network namespace."""
    disk: Path
    """The folder in which commands are typed."""
    terminals: int = 0

    def type(self, command: str) -> Terminal:
        """Start a command of `grpo` in a new terminal."""
        self.terminals += 1
        log = self.disk / f"terminal-{self.terminals}.txt"
        words = [sys.executable, "-m", *shlex.split(command)]
        inside = ["ip", "netns", "exec", self.space, "unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"']
        surroundings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GRPO_KILL_AT": ""}
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, **surroundings, "PYTHONPATH": path}
        environment.pop("GLOO_SOCKET_IFNAME", None)
        with log.open("wb") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            process = subprocess.Popen([*inside, "sh", *words], cwd=self.disk, env=environment, **streams)
        return Terminal(process, log)

    def processes(self) -> list[psutil.Process]:
        pids = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True).stdout.split()
        found = []
        for pid in map(int, pids):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def power_off(self) -> None:
        """Kill every process."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def plug(self, state: str) -> None:
        """`down`: its cable is pulled; `up`: it is back."""
        subprocess.run(["ip", "-n", self.space, "link", "set", "plug", state], check=True)


@contextmanager
def two_hosts(commands: str, folder: Path) -> Iterator[tuple[Host, Host]]:
    """gpu-1 and gpu-2, set up by shell commands; what runs on them ends with the context."""
    names = ("gpu-1", "gpu-2")
    hosts = [Host(name, f"grpo-{os.getpid()}-{name}", folder / name) for name in names]
    for host in hosts:
        host.disk.mkdir(parents=True)
        commands = commands.replace(host.name, host.space)
    try:
        subprocess.run(["sh", "-e", "-c", commands], check=True)
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            host.power_off()
            subprocess.run(["ip", "netns", "delete", host.space], capture_output=True)


def why_not() -> str:
    """Why this machine cannot play two hosts; empty if it can."""
    if missing := [name for name in ("ip", "unshare") if shutil.which(name) is None]:
        return f"two hosts need the command {missing[0]}"
    space = f"grpo-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", space], capture_output=True, text=True)
    inside = ["ip", "netns", "exec", space, "unshare", "--uts", "true"]
    tried = made if made.returncode else subprocess.run(inside, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", space], capture_output=True)
    return f"two hosts need network namespaces, as root: {tried.stderr.strip()}" if tried.returncode else ""


def eventually(happened: Callable[[], object], *terminals: Terminal) -> None:
    """Waits for what another process does."""
    deadline = time.monotonic() + SECONDS
    while not happened():
        shown = "\n".join(f"{terminal.log}:\n{terminal.text}" for terminal in terminals)
        assert time.monotonic() < deadline, f"it did not happen\n{shown}"
        time.sleep(0.02)
