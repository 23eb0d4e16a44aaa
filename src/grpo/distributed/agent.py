"""The agent of one host: torch's elastic agent, which starts the ranks and starts all of them again after one died.

Differences to torch's: signals stop the run after its step instead of killing it, a rank that refused its input is not
restarted, rank 0 has the terminal, and the reason of a restart is one line.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

from grpo.config import Scale
from grpo.distributed.worker import LAUNCHER, REFUSED, Launcher, read_ending, run_to_resume
from grpo.errors import GrpoError, LostRankError, RankError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 2
"""Seconds in which ranks end by themselves after one died, or after a second signal; then they are killed."""
FAREWELL = 10.0
"""Seconds that the host of the store waits for the other hosts' ranks to end."""
ENDED_ELSEWHERE = "another host has ended the run; its terminal says why"
CAUSE, REFUSAL = "cause", "refusal"
"""Keys in the store of the hosts, under which a host reports what happened to one of its ranks."""
CAUSE_SECONDS = 3.0
"""Time in which the host of a lost rank tells the others what happened to it; a host that is gone tells nothing."""
SHOWN_LINES = 40
SHOW_CURSOR = "\x1b[?25h"


class Refused(Exception):  # noqa: N818  not an error of the launcher: the rank has printed one
    """A rank refused its input before it joined the others."""


class Output(LogsSpecs):
    """Rank 0 inherits the terminal. The others' stderr goes to a file."""

    def __init__(self, launcher: Launcher):
        super().__init__()
        self.launcher = launcher

    @property
    def root_log_dir(self) -> str:
        return str(self.launcher.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for local_rank, variables in envs.items():
            variables[LAUNCHER] = self.launcher.variable
            self.launcher.ending(local_rank).unlink(missing_ok=True)
        hidden = [local_rank for local_rank, variables in envs.items() if variables["RANK"] != "0"]
        inherited = dict.fromkeys(envs, "")
        return LogsDest(
            stdouts=inherited | dict.fromkeys(hidden, os.devnull),
            stderrs=inherited | {local_rank: str(self.launcher.errors(local_rank)) for local_rank in hidden},
            error_files=dict.fromkeys(envs, os.devnull),
        )


class Agent(LocalElasticAgent):
    def __init__(self, spec: WorkerSpec, launcher: Launcher, scale: Scale, *, is_first: bool):
        super().__init__(spec, Output(launcher))
        self.launcher, self.scale, self.is_first = launcher, scale, is_first
        self.stopping = False
        self.reported = False
        """Whether the reason of a restart has been printed."""

    def exit_code(self) -> int:
        """Start the ranks, wait until they have ended together, and return their exit code."""
        try:
            with self._handling_signals():
                result = self.run()
        except SignalException:  # torch's handler, before ours was installed again
            raise KeyboardInterrupt from None
        except RendezvousTimeoutError:
            why = f"field scale.nodes: not all {self.scale.nodes} hosts came to {self.scale.join} within"
            kind = GrpoError if self._worker_group.state == WorkerState.INIT else LostRankError
            raise kind(f"{why} {self.scale.join_timeout:g} s; start the same command on each host") from None
        except RendezvousClosedError:
            raise self._ended_elsewhere() from None
        if result is None:  # the agent's answer to a closed meeting
            raise self._ended_elsewhere()
        endings = [read_ending(self.launcher, worker.local_rank) for worker in self._worker_group.workers]
        codes = [ending.code for ending in endings if ending]  # only rank 0 says that the run finished or stopped
        return max(codes, default=130 if self.stopping else 0)

    # Hooks of torch's agent, in the order in which it calls them.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started = super()._start_workers(worker_group)
        self._install_handlers()  # starting the ranks has installed torch's
        self.reported = False
        if worker_group.group_rank != 0:
            ranks = [worker.global_rank for worker in worker_group.workers]
            here = f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"
            size = worker_group.workers[0].world_size
            report(f"this host has {here} of {size}; the terminal of the first host shows the run")
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._fallen():
            killed = self._end_others()
            self._judge({local_rank: code for local_rank, code in self._fallen().items() if local_rank not in killed})
        result = super()._monitor_workers(worker_group)
        handler = worker_group.spec.rdzv_handler
        if result.state == WorkerState.HEALTHY and worker_group.group_world_size != 1 and handler.is_closed():
            raise self._ended_elsewhere()
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if not self.reported:  # another host was faster than the ranks of this one
            cause = self._told_by_others(CAUSE) or "another host has started again"
            report(f"{cause}; all ranks restart from the last checkpoint")
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """The host of the store leaves last."""
        group = self._worker_group
        store: Any = group.store
        ended = [f"ended/{rank}" for rank in range(group.group_world_size or 1)]
        deadline = time.monotonic() + FAREWELL
        with suppress(RuntimeError):  # border: other hosts may be gone
            store.set(ended[group.group_rank or 0], "")
            while self.is_first and not store.check(ended) and time.monotonic() < deadline:
                time.sleep(0.1)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = GRACE) -> None:
        if self._pcontext:  # here, because torch's own method has no timeout before 2.13
            self._pcontext.close(death_sig, min(timeout, GRACE))
        super()._shutdown(death_sig)

    def _fallen(self) -> dict[int, int]:
        """Exit codes by local rank of those that did not end together with the others."""
        codes = {local_rank: process.poll() for local_rank, process in self._processes().items()}
        return {local_rank: code for local_rank, code in codes.items() if code}

    def _end_others(self) -> set[int]:
        """Wait until all ranks have ended; kill those that do not. Returns the killed ones, by local rank."""
        processes, deadline = self._processes(), time.monotonic() + GRACE
        while any(process.poll() is None for process in processes.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        running = {local_rank for local_rank, process in processes.items() if process.poll() is None}
        for local_rank in running:
            os.killpg(processes[local_rank].pid, signal.SIGKILL)
        return running

    def _judge(self, fallen: dict[int, int]) -> None:
        """Report why ranks fell, and raise an error unless they are to be restarted."""
        if self.stopping:
            raise KeyboardInterrupt
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        if REFUSED in fallen.values():
            refused = min(local_rank for local_rank, code in fallen.items() if code == REFUSED)
            if ranks[refused] != 0:
                lines = show_end_of(self.launcher.errors(refused))
                self._tell_others(REFUSAL, f"{self._name(refused)}: {lines[-1].removeprefix('grpo: ')}")
            raise Refused
        local_rank, cause = self._cause(fallen)
        if ranks[local_rank] != 0:
            show_end_of(self.launcher.errors(local_rank))
        self.reported = True
        most = self._worker_group.spec.max_restarts
        if self._remaining_restarts == 0:
            run = run_to_resume(self.launcher)
            again = f"; continue with --run {run} --resume" if run else ""
            raise LostRankError(f"{cause}; restarts used up: {most} of {most}{again}")
        begun = " from the last checkpoint" if run_to_resume(self.launcher) else ""
        wait = f", after at most {self.scale.join_timeout:g} s for all hosts" if self.scale.nodes > 1 else ""
        report(f"{cause}; restart {most - self._remaining_restarts + 1} of {most}{begun}{wait}")

    def _cause(self, fallen: dict[int, int]) -> tuple[int, str]:
        """(local rank, what happened) of the rank that fell first: a killed one, then a crashed one, then one that lost
        another."""

        def error_of(local_rank: int) -> str:
            ending = read_ending(self.launcher, local_rank)
            return ending.error if ending else ""

        first = min(fallen, key=lambda local_rank: (fallen[local_rank] > 0, bool(error_of(local_rank)), local_rank))
        code = fallen[first]
        if error_of(first):  # it lost another rank, whose host may know more
            return first, self._told_by_others(CAUSE, CAUSE_SECONDS) or error_of(first)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._tell_others(CAUSE, f"{self._name(first)} {how}")
        return first, f"{self._name(first)} {how}"

    def _name(self, local_rank: int) -> str:
        return f"rank {self._worker_group.workers[local_rank].global_rank} on {socket.gethostname()}"

    def _ended_elsewhere(self) -> GrpoError:
        """The error of a run that another host has ended."""
        if refusal := self._told_by_others(REFUSAL):
            return RankError(refusal)
        return LostRankError(self._told_by_others(CAUSE) or ENDED_ELSEWHERE)

    def _tell_others(self, key: str, what: str) -> None:
        store: Any = self._worker_group.store
        with suppress(RuntimeError):  # border: the first host may be gone
            store.set(key, what)

    def _told_by_others(self, key: str, seconds: float = 0.0) -> str:
        """What another host has told within these seconds; empty if none has."""
        store: Any = self._worker_group.store
        deadline = time.monotonic() + seconds
        with suppress(RuntimeError):  # border: the first host may be gone
            while self.scale.nodes > 1 and store is not None:
                if store.check([key]):
                    return str(store.get(key).decode())
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.05)
        return ""

    def _processes(self) -> dict[int, Popen[bytes]]:
        context: Any = self._pcontext
        handlers = context.subprocess_handlers if context else {}
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self._install_handlers()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _install_handlers(self) -> None:
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # under nohup it stays ignored
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """The first signal is passed on, once to each rank: the run stops after its step. The second ends it now."""
        running = [process.pid for process in self._processes().values() if process.poll() is None]
        if self.stopping and number == signal.SIGHUP:
            return  # a terminal that closes sends it twice
        if self.stopping or not running:
            raise KeyboardInterrupt
        self.stopping = True
        if self._worker_group.group_rank:  # rank 0 says so on the first host
            report("stopping after this step with a checkpoint; a second signal stops at once")
        for pid in running:
            with suppress(ProcessLookupError):
                # Until a rank handles signals, SIGTERM ends it even inside a wait for the others; SIGINT would not.
                os.kill(pid, signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)


def report(line: str) -> None:
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""  # a live view that was killed has hidden it
    with suppress(OSError):  # border: the terminal may have closed
        print(f"{cursor}grpo: {line}", file=sys.stderr, flush=True)


def show_end_of(errors: Path) -> list[str]:
    """Print the last lines, and return them."""
    lines = errors.read_text(errors="replace").splitlines()[-SHOWN_LINES:] if errors.exists() else []
    with suppress(OSError):  # border: the terminal may have closed
        sys.stderr.writelines(f"{line}\n" for line in lines)
    return lines or [""]
