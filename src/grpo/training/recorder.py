"""Writes a run's record behind the loop: one thread, one step at a time, in order.

The next step's rollout begins while this one is written. At most one step is under way; whatever goes wrong with it is
raised at the next hand-over, or wherever the loop waits. The run's database belongs to this thread from a hand-over
until `wait` or `settle` returns; then the loop may read and write.
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

MOST_NONFINITE_STEPS = 3
SECONDS_BETWEEN_TRIES = 10.0
"""How long a full disk is left alone before it is tried again, where the settings say to wait."""
HEAD_START = 0.05
"""Seconds that a step is left lying: the next rollout is launched meanwhile. Both need Python's lock, and what has to
wait for it is the GPU."""

Written = TypeVar("Written")


class Recorder:
    def __init__(
        self, run: Run, callbacks: Callback, config: Config | SftConfig, stop: StopRequest, *, nonfinite_steps: int = 0
    ):
        self.run, self.callbacks, self.config, self.stop = run, callbacks, config, stop
        self.monitor = Monitor(run)
        self.nonfinite_steps = nonfinite_steps
        """How many steps in a row, up to now, had a gradient that was not finite."""
        self.told_faults: set[str] = set()
        self.waited = 0.0
        """Seconds the loop has waited for the record since it last handed a step over."""
        self._hurry = threading.Event()
        """Somebody waits."""
        self._ending = threading.Event()
        """Training is over, and nobody waits for space any more."""
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="record")
        self._writing: futures.Future[None] | None = None

    def hand_over(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        token_budget: int,
    ) -> None:
        """Begins to write a step, once the one before is written. Nothing that is handed over may change any more."""
        self.wait()
        self._hurry.clear()
        spans, self.waited = {**seconds, "record": self.waited}, 0.0
        self._writing = self._thread.submit(self._write, step, groups, metrics, spans, time.time(), token_budget)

    def wait(self) -> None:
        """Until all is written. Raises what went wrong."""
        if self._writing is None:
            return
        start = time.perf_counter()
        self._hurry.set()
        futures.wait([self._writing])  # Ctrl-C here leaves it to be settled
        self.waited += time.perf_counter() - start
        written, self._writing = self._writing, None
        written.result()

    def settle(self) -> None:
        """Until all is written, when another error is on its way: what goes wrong here is only said. Not to be left
        sooner, whatever is pressed: whoever comes next would commit half a step."""
        self._ending.set()
        self._hurry.set()
        while self._writing is not None and not self._writing.done():
            with suppress(KeyboardInterrupt):
                futures.wait([self._writing])
        self._thread.shutdown(wait=False)
        if self._writing is not None and (error := self._writing.exception()):
            self.callbacks.on_warning(str(error))

    def warn(self, kind: str, text: str, step: int | None = None) -> None:
        """Said aloud, and kept in the record."""
        self.callbacks.on_warning(text)
        self.run.add_finding(kind, text, step)

    def diagnose(self, step: int) -> None:
        for finding in self.monitor.news(step):
            self.warn(finding.kind, finding.text, step)

    def with_space(self, write: Callable[[], Written]) -> Written:
        """What `write` returns; where the disk is full and the settings say so, again and again until it is not."""
        while True:
            try:
                return write()
            except DiskFullError as error:
                if self.config.checkpoints.disk_full == "stop" or self.stop.requested or self._ending.is_set():
                    raise
                self.callbacks.on_warning(f"{error}; trying again every {SECONDS_BETWEEN_TRIES:.0f} s")
                self._ending.wait(SECONDS_BETWEEN_TRIES)

    def _write(
        self,
        step: int,
        groups: Sequence[Group],
        metrics: Mapping[str, float],
        spans: Mapping[str, float],
        ended: float,
        token_budget: int,
    ) -> None:
        """A step made again after a kill must be what it was, and is shouted about if it is not."""
        self._hurry.wait(HEAD_START)
        kept = self.config.system.token_groups
        differences = self.run.differences(step, groups, metrics)
        self.with_space(lambda: self.run.record(step, groups, metrics, spans, kept, ended))
        if differences:
            more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
            self.warn("replay", f"step {step} was made again and is not the same: {differences[0]}{more}", step)
        self._tell_faults(step, groups)
        self._keep_budget(step, token_budget)
        self.callbacks.on_step(step, metrics, groups)
        self._watch_nonfinite(step, groups, metrics)
        if self.run.kind == "grpo" and (step + 1) % EVERY == 0:
            self.diagnose(step)

    def _tell_faults(self, step: int, groups: Sequence[Group]) -> None:
        """The first fault of each kind and reward; all are in the record, completion by completion."""
        for group in groups:
            for completion in group.completions:
                kind, _, _ = completion.why.partition(": ")
                if kind and kind not in self.told_faults:
                    self.told_faults.add(kind)
                    scored = "is left unscored" if completion.reward is None else f"scores {completion.reward:g}"
                    reason = error_line(completion.why).removeprefix(f"{kind}: ")
                    self.warn("reward", f"step {step}: {kind}: {reason}; the completion {scored}", step)

    def _keep_budget(self, step: int, tokens: int) -> None:
        """Memory ran out in this step, and it was done again in smaller pieces: later ones begin with these."""
        if tokens != self.run.meta("token_budget"):
            self.run.set_meta("token_budget", tokens)
            self.warn("memory", f"step {step}: memory ran out; from here on micro-batches hold {tokens} tokens", step)

    def _watch_nonfinite(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        self.nonfinite_steps = self.nonfinite_steps + 1 if metrics.get("skipped_updates") else 0
        if self.nonfinite_steps:
            problems = f"; problems {', '.join(group.problem.id for group in groups)}" if groups else ""
            self.warn("nonfinite", f"step {step}: the gradient was not finite, no update taken{problems}", step)
        if self.nonfinite_steps >= MOST_NONFINITE_STEPS:
            raise GrpoError(
                f"field lr: {MOST_NONFINITE_STEPS} steps in a row had a gradient that was not finite, the last is step "
                f"{step}; lower lr (now {self.config.lr:g}){self._narrow()} and start again or resume from an earlier "
                "checkpoint"
            )

    def _narrow(self) -> str:
        return ", compute in bfloat16 (--system.dtype mixed)" if self.config.system.dtype == "half" else ""
