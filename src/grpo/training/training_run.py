"""A run while it trains: record, checkpoints, callbacks and ending. GRPO (session.py) and sft.py share it.

Of several ranks only rank 0 has the record; the others take part where something is gathered or agreed on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from grpo.config import Config, SftConfig
from grpo.config.schema import as_dict
from grpo.distributed.checksum import differing
from grpo.distributed.worker import launcher
from grpo.distributed.world import ALONE, World
from grpo.errors import DiskFullError, GrpoError, LostRankError, headline
from grpo.kill_points import point
from grpo.model.device import frozen_garbage_collector, peak_memory
from grpo.model.files import model_files
from grpo.model.optimizer import AdamW, Named
from grpo.model.policy import Policy
from grpo.model.tensorfile import Mirror
from grpo.record.checkpoints import Checkpoints, Snapshot
from grpo.record.events import Callback, Callbacks
from grpo.record.store import Run
from grpo.training.open_run import OpenRun
from grpo.training.recorder import Recorder
from grpo.training.stop import StopRequest
from grpo.types import Group


@dataclass(eq=False, kw_only=True)
class TrainingRun:
    config: Config | SftConfig
    opened: OpenRun | None
    """None on other ranks than 0."""
    policy: Policy
    optimizer: AdamW
    callbacks: Callbacks
    world: World = ALONE
    assumptions: Sequence[str] = ()
    """Assumptions to report when a run starts."""

    def __post_init__(self) -> None:
        checkpoint = self.opened.checkpoint if self.opened else None
        self.stop = StopRequest(self.callbacks)
        self.stopping = False
        """Whether a rank was asked to stop, as all of them know after a step."""
        self.measured_from = time.perf_counter()
        """When the measurement of idle time began."""
        self.mirror = Mirror()
        self.snapshot: Callable[[], Snapshot]
        """Of the newest checkpoint."""
        self.first_step: int = self.world.from_first(lambda: checkpoint.step if checkpoint else 0)
        self.saved_step = self.first_step or -1
        """Step of the newest checkpoint; -1: none."""
        self.recorder: Recorder | None = None
        if self.opened:
            run, keep = self.opened.run, self.config.checkpoints.keep
            nonfinite_steps = checkpoint.state["nonfinite_steps"] if checkpoint else 0
            exact = self.opened.ranks in (0, self.world.size)
            self.recorder = Recorder(
                run, self.callbacks, self.config, self.stop, nonfinite_steps=nonfinite_steps, exact=exact
            )
            self.checkpoints = Checkpoints(run.path, keep=keep)

    @property
    def run(self) -> Run:
        """The record. Other ranks than 0 have none: where a program asks for it, their work is done, and they exit."""
        if self.opened is None:
            raise SystemExit(0)
        return self.opened.run

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Training happens in this context. When it ends, in any way, the record gets the final status, callbacks get
        `on_end`, and the lock is released."""
        with frozen_garbage_collector(self.policy.device):
            self.measure_idle_time()
            if self.opened is None or self.recorder is None:
                with self.stop:
                    yield
                return
            with closing(self.opened.lock), recorded_ending(self.run, self.callbacks, self.stop):
                try:
                    self._begin(self.opened, self.recorder)
                    yield
                    self.recorder.wait()
                finally:
                    self.recorder.settle()
                    self.checkpoints.settle()

    def _begin(self, opened: OpenRun, recorder: Recorder) -> None:
        """Record how training starts or resumes, and report it."""
        self.run.set_started(as_dict(self.config))  # a resume may ask for more steps
        self.run.rewind(self.config.steps)  # a resume may ask for fewer steps than were recorded
        self.run.set_status("running")
        self.callbacks.on_start(self.run, self.config, self.first_step)
        for assumption in self.assumptions:
            recorder.warn("assumed", assumption)
        if not recorder.exact:
            before, now = opened.ranks, self.world.size
            recorder.warn(
                "world_size",
                f"from step {self.first_step} on the run has {now} rank{'s' if now > 1 else ''} instead of {before}; "
                "results agree to rounding, not bit for bit",
                self.first_step,
            )

    def record(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> None:
        """Pass the step to the recorder, with the values that the next step may change."""
        if self.recorder:
            self.recorder.wait()
            self._report_checkpoints()
        reports = self.world.meet(self._report(seconds))
        self.stopping = any(report.stop for report in reports)
        self.stop.on_some_rank = self.stopping
        if self.recorder:
            budgets = [report.token_budget for report in reports]
            self.recorder.hand_over(
                step, groups, {**metrics, **over_ranks(reports, metrics, seconds)}, seconds, budgets
            )

    def _report(self, seconds: Mapping[str, float]) -> Report:
        return Report(
            stop=self.stop.requested,
            token_budget=self.policy.token_budget,
            peak_memory=peak_memory(self.policy.device),
            rollout=seconds.get("rollout", 0.0),
            idle=self.measure_idle_time(),
            observation_wait=self.measure_observation_wait(),
        )

    def measure_idle_time(self) -> float:
        """Idle share of the time since the last call: called after every step, evaluation and checkpoint."""
        waited, self.world.waited = self.world.waited, 0.0
        begun, self.measured_from = self.measured_from, time.perf_counter()
        return waited / (self.measured_from - begun)

    def measure_observation_wait(self) -> float | None:
        """Seconds that sampling waited for the answers of episodes since the last measurement; None without any."""
        return None

    def go_on_together(self) -> None:
        """Waits for all ranks after an evaluation or a checkpoint, so that the next step does not count this wait."""
        self.world.meet(None)
        self.measure_idle_time()
        self.measure_observation_wait()

    def checkpoint(self, step: int, *, last: bool = False) -> None:
        """Copy the weights now and write them in the background. With `last`, wait until they are written."""
        recorder = self.recorder
        if recorder:
            recorder.wait()  # a checkpoint must not be ahead of the record
        if step != self.saved_step:
            self._check_weights(step)
            if recorder:
                # Taken once, because other ranks take part; a full disk may need it again.
                self.snapshot = cache(lambda: self._take_snapshot(recorder))
            else:
                self._send_tensors()
        if recorder:
            recorder.retry_when_full(lambda: self._save(step, last))
            self._report_checkpoints()
        self.saved_step = step
        self.go_on_together()

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Every weight that training changes, by name."""
        return self.policy.trainable()

    def tensors(self) -> dict[str, Named]:
        """The tensors that a resume needs, by file. Where ranks hold parts of them, rank 0 gets them whole, one by one,
        and all ranks must read to the end."""
        return {"model": self.optimizer.whole(self.policy.weights()), "optimizer": self.optimizer.state()}

    def _take_snapshot(self, recorder: Recorder) -> Snapshot:
        state = {
            "policy_version": self.policy.version,
            "nonfinite_steps": recorder.nonfinite_steps,
            "world_size": self.world.size,
        }
        snapshot = make_snapshot(self.policy, self.mirror, state, self.tensors())
        point("checkpoint.gathered")
        return snapshot

    def _send_tensors(self) -> None:
        """This rank's part in the snapshot that rank 0 takes."""
        for tensors in self.tensors().values():
            for _ in tensors:
                pass
        point("checkpoint.gathered")

    def _report_checkpoints(self) -> None:
        for checkpoint in self.checkpoints.written():
            self.callbacks.on_checkpoint(checkpoint.step, checkpoint.path)

    def _check_weights(self, step: int) -> None:
        if ranks := differing(self.trainable(), self.world):
            which = ", ".join(map(self.world.name, ranks))
            raise GrpoError(
                f"after {step} steps the weights of {which} differ from those of rank 0; older checkpoints are intact, "
                "resume from them (--resume) and check these machines"
            )
        names, weights = zip(*self.trainable(), strict=True)
        finite = torch.stack([torch.isfinite(weight).all() for weight in weights]).tolist()
        if not all(finite):
            name = names[finite.index(False)]
            raise GrpoError(f"weight {name} is not finite after {step} steps; older checkpoints are intact, lower lr")

    def _save(self, step: int, last: bool) -> None:
        if step != self.saved_step:
            self.checkpoints.wait()
            self._report_checkpoints()  # before a newer one replaces them
            self.checkpoints.save(step, self.snapshot, self.run.best_step())
            self.saved_step = step
        if last:
            try:
                self.checkpoints.wait()
            except DiskFullError:
                self.saved_step = -1  # write it again
                raise


class Report(NamedTuple):
    """What a rank tells the others after a step."""

    stop: bool
    token_budget: int
    peak_memory: float
    rollout: float
    """Seconds."""
    idle: float
    """Share of the step that it waited for other ranks and for the network."""
    observation_wait: float | None = None
    """Seconds that sampling waited for the answers of episodes; None without any."""


def over_ranks(
    reports: Sequence[Report], metrics: Mapping[str, float], seconds: Mapping[str, float]
) -> dict[str, float]:
    """Metrics that depend on all ranks: the largest memory, the longest wait for observations, the speed of all
    together, and how idle each was."""
    found = {"peak_memory": max(report.peak_memory for report in reports)}
    if waits := [report.observation_wait for report in reports if report.observation_wait is not None]:
        found["observation_wait"] = max(waits)
    if len(reports) == 1:
        return found
    found |= {f"idle/{rank}": report.idle for rank, report in enumerate(reports)}
    if "tokens_per_second" in metrics:
        slowest = max(report.rollout for report in reports)
        found["tokens_per_second"] = metrics["tokens_per_second"] * seconds["rollout"] / max(slowest, 1e-9)
    return found


def make_snapshot(policy: Policy, mirror: Mirror, state: dict[str, Any], tensors: Mapping[str, Named]) -> Snapshot:
    """Copy the tensors, by file, as they are now."""
    files = mirror.copy(tensors)
    return Snapshot(
        weights=files.pop("model"),
        files=model_files(policy),
        optimizer_tensors=files.pop("optimizer"),
        extra_tensors=files,
        state=state,
    )


@contextmanager
def recorded_ending(run: Run, callbacks: Callback, stop: StopRequest) -> Iterator[None]:
    """Record the final status and call `on_end`, however training ends, unless its ranks are restarted."""
    status, goes_on, failure = "failed", False, ""
    try:
        with stop:
            yield
        status = "stopped" if stop.requested else "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except LostRankError as error:
        goes_on, failure = launcher() is not None, str(error)  # the launcher restarts the ranks
        raise
    except Exception as error:  # such as one of torch: it is raised again, and its first line recorded
        failure = str(error) if isinstance(error, GrpoError) else headline(error)
        raise
    finally:
        if not goes_on:
            # Where the record cannot be written, the status stays "running"; the error being raised says why.
            with suppress(GrpoError):
                if failure != (run.meta("failure") or ""):
                    run.set_meta("failure", failure)
                run.set_status(status)
            callbacks.on_end(run)
