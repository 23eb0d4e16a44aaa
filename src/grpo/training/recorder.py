"""Writes each step to the record in a background thread, one step at a time, in order.

What is written: `record/columns.py` (tables: `record/schema.sql`).

The next step's rollout runs while a step is written. At most one step is in progress. An error in writing is raised at
the next `hand_over` or `wait`. The thread owns the run's database from `hand_over` until `wait` or `settle` returns;
then the loop may read and write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from typing import TypeVar

from grpo.config import Config, SftConfig
from grpo.errors import DiskFullError, GrpoError
from grpo.record.diagnosis.monitor import EVERY, Monitor
from grpo.record.events import Callback
from grpo.record.store import Run
from grpo.rewards import error_line
from grpo.training.stop import StopRequest
from grpo.types import Group

MAX_NONFINITE_STEPS = 3
RETRY_SECONDS = 10.0
"""Seconds between attempts to write to a full disk, with `checkpoints.disk_full = "wait"`."""
WRITE_DELAY = 0.05
"""Seconds before a step is written. The next rollout is launched meanwhile: both need Python's lock, and a late launch
leaves the GPU idle."""

Written = TypeVar("Written")


class Recorder:
    def __init__(
        self,
        run: Run,
        callbacks: Callback,
        config: Config | SftConfig,
        stop: StopRequest,
        *,
        nonfinite_steps: int = 0,
        exact: bool = True,
    ):
        self.run, self.callbacks, self.config, self.stop = run, callbacks, config, stop
        self.exact = exact
        """Whether a step that is computed again must equal its record: not if the number of ranks has changed."""
        self.monitor = Monitor(run)
        self.nonfinite_steps = nonfinite_steps
        """Consecutive steps, up to the last one, with a gradient that was not finite."""
        self.reported_faults: set[str] = set()
        self.waited = 0.0
        """Seconds the loop has waited for the record since the last `hand_over`."""
        self._hurry = threading.Event()
        """Set while the loop waits: the delay ends."""
        self._ending = threading.Event()
        """Set when training is over: no more waiting for disk space."""
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="record")
        self._writing: futures.Future[None] | None = None

    def hand_over(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        token_budgets: Sequence[int],
    ) -> None:
        """Start to write a step after the previous one is written. The arguments must not change afterwards."""
        self.wait()
        self._hurry.clear()
        spans, self.waited = {**seconds, "record": self.waited}, 0.0
        self._writing = self._thread.submit(self._write, step, groups, metrics, spans, time.time(), token_budgets)

    def wait(self) -> None:
        """Wait until the step is written; raise its error."""
        if self._writing is None:
            return
        start = time.perf_counter()
        self._hurry.set()
        futures.wait([self._writing])  # Ctrl-C here leaves the step to `settle`
        self.waited += time.perf_counter() - start
        written, self._writing = self._writing, None
        written.result()

    def settle(self) -> None:
        """Wait until the step is written when training has ended; an error is a warning. Ctrl-C does not interrupt it,
        because the next writer would commit half a step."""
        self._ending.set()
        self._hurry.set()
        while self._writing is not None and not self._writing.done():
            with suppress(KeyboardInterrupt):
                futures.wait([self._writing])
        self._thread.shutdown(wait=False)
        if self._writing is not None and (error := self._writing.exception()):
            self.callbacks.on_warning(str(error))

    def warn(self, kind: str, text: str, step: int | None = None) -> None:
        """Report a warning and record it as a finding."""
        self.callbacks.on_warning(text)
        self.run.add_finding(kind, text, step)

    def diagnose(self, step: int) -> None:
        for finding in self.monitor.new_findings(step):
            self.warn(finding.kind, finding.text, step)

    def retry_when_full(self, write: Callable[[], Written]) -> Written:
        """Call `write`. With `checkpoints.disk_full = "wait"`, retry while the disk is full."""
        while True:
            try:
                return write()
            except DiskFullError as error:
                if self.config.checkpoints.disk_full == "stop" or self.stop.requested or self._ending.is_set():
                    raise
                self.callbacks.on_warning(f"{error}; retrying every {RETRY_SECONDS:.0f} s")
                self._ending.wait(RETRY_SECONDS)

    def _write(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        spans: Mapping[str, float],
        ended: float,
        token_budgets: Sequence[int],
    ) -> None:
        """Write one step and report what it shows. A step computed again after a kill must equal the recorded one."""
        self._hurry.wait(WRITE_DELAY)
        kept = self.config.system.token_groups
        differences = self.run.differences(step, groups, metrics) if self.exact else []
        self.retry_when_full(lambda: self.run.record(step, groups, metrics, spans, kept, ended))
        if differences:
            more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
            self.warn("replay", f"step {step} was computed again and differs: {differences[0]}{more}", step)
        self._report_faults(step, groups)
        self._record_budgets(step, token_budgets)
        self.callbacks.on_step(step, metrics, groups)
        self._watch_nonfinite(step, groups, metrics)
        if self.run.kind == "grpo" and (step + 1) % EVERY == 0:
            self.diagnose(step)

    def _report_faults(self, step: int, groups: Sequence[Group]) -> None:
        """Report the first fault of each kind and reward. The record has all of them, by completion."""
        for group in groups:
            for completion in group.completions:
                kind, _, _ = completion.why.partition(": ")
                if kind and kind not in self.reported_faults:
                    self.reported_faults.add(kind)
                    scored = "is left unscored" if completion.reward is None else f"scores {completion.reward:g}"
                    reason = error_line(completion.why).removeprefix(f"{kind}: ")
                    self.warn("reward", f"step {step}: {kind}: {reason}; the completion {scored}", step)

    def _record_budgets(self, step: int, budgets: Sequence[int]) -> None:
        """Record the token budgets, by rank, that an out-of-memory error in this step has halved."""
        before = self.run.meta("token_budgets")
        if list(budgets) == before:
            return
        self.run.set_meta("token_budgets", list(budgets))
        for rank, (was, tokens) in enumerate(zip(before, budgets, strict=True)):
            if tokens != was:
                where = f"rank {rank} is " if len(budgets) > 1 else ""
                text = f"step {step}: {where}out of memory; micro-batches now hold {tokens} tokens"
                self.warn("memory", text, step)

    def _watch_nonfinite(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        self.nonfinite_steps = self.nonfinite_steps + 1 if metrics.get("skipped_updates") else 0
        if self.nonfinite_steps:
            problems = f"; problems {', '.join(group.problem.label for group in groups)}" if groups else ""
            self.warn("nonfinite", f"step {step}: the gradient was not finite, no update taken{problems}", step)
        if self.nonfinite_steps >= MAX_NONFINITE_STEPS:
            half = self.config.system.dtype == "half"
            precision = ", compute in bfloat16 (--system.dtype mixed)" if half else ""
            raise GrpoError(
                f"field lr: {MAX_NONFINITE_STEPS} steps in a row had a gradient that was not finite, the last is step "
                f"{step}; lower lr (now {self.config.lr:g}){precision} and start again, or resume from an "
                "earlier checkpoint"
            )
