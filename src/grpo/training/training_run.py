"""A run while it trains: record, checkpoints, callbacks and ending. GRPO (session.py) and sft.py share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from grpo.config import Config, SftConfig
from grpo.config.schema import as_dict
from grpo.errors import DiskFullError, GrpoError
from grpo.model.device import frozen_garbage_collector, peak_memory
from grpo.model.files import model_files
from grpo.model.optimizer import AdamW
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
    opened: OpenRun
    policy: Policy
    optimizer: AdamW
    callbacks: Callbacks
    assumptions: Sequence[str] = ()
    """Assumptions to report when a run starts."""

    def __post_init__(self) -> None:
        checkpoint = self.opened.checkpoint
        self.run: Run = self.opened.run
        self.stop = StopRequest(self.callbacks)
        nonfinite_steps = checkpoint.state["nonfinite_steps"] if checkpoint else 0
        self.recorder = Recorder(self.run, self.callbacks, self.config, self.stop, nonfinite_steps=nonfinite_steps)
        self.checkpoints = Checkpoints(self.run.path, keep=self.config.checkpoints.keep)
        self.mirror = Mirror()
        self.first_step = checkpoint.step if checkpoint else 0
        self.saved_step = checkpoint.step if checkpoint else -1
        """Step of the newest checkpoint; -1: none."""

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Training happens in this context. When it ends, in any way, the record gets the final status, callbacks get
        `on_end`, and the lock is released."""
        with (
            closing(self.opened.lock),
            recorded_ending(self.run, self.callbacks, self.stop),
            frozen_garbage_collector(self.policy.device),
        ):
            try:
                self._begin()
                yield
                self.recorder.wait()
            finally:
                self.recorder.settle()
                self.checkpoints.settle()

    def _begin(self) -> None:
        """Record how training starts or resumes, and report it."""
        self.run.set_config(as_dict(self.config))  # a resume may ask for more steps
        self.run.set_meta("token_budget", self.policy.token_budget)
        self.run.rewind(self.config.steps)  # a resume may ask for fewer steps than were recorded
        self.run.set_status("running")
        self.callbacks.on_start(self.run, self.config, self.first_step)
        for assumption in self.assumptions:
            self.recorder.warn("assumed", assumption)

    def record(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> None:
        """Pass the step to the recorder, with the values that the next step may change."""
        metrics = {**metrics, "peak_memory": peak_memory(self.policy.device)}
        self.recorder.wait()
        self._report_checkpoints()
        self.recorder.hand_over(step, groups, metrics, seconds, self.policy.token_budget)

    def checkpoint(self, step: int, *, last: bool = False) -> None:
        """Copy the weights now and write them in the background. With `last`, wait until they are written."""
        self.recorder.wait()  # a checkpoint must not be ahead of the record
        if step != self.saved_step:
            self._check_weights(step)
        self.recorder.retry_when_full(lambda: self._save(step, last))
        self._report_checkpoints()

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Every weight that training changes, by name."""
        return self.policy.trainable()

    def extra_tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """By file: tensors beside policy and optimizer that a resume needs."""
        return {}

    def _report_checkpoints(self) -> None:
        for checkpoint in self.checkpoints.written():
            self.callbacks.on_checkpoint(checkpoint.step, checkpoint.path)

    def _check_weights(self, step: int) -> None:
        for name, weight in self.trainable():
            if not torch.isfinite(weight).all():
                raise GrpoError(
                    f"weight {name} is not finite after {step} steps; older checkpoints are intact, lower lr"
                )

    def _save(self, step: int, last: bool) -> None:
        if step != self.saved_step:
            self.checkpoints.wait()
            self._report_checkpoints()  # before a newer one replaces them
            state = {"policy_version": self.policy.version, "nonfinite_steps": self.recorder.nonfinite_steps}
            self.checkpoints.save(
                step,
                lambda: take_snapshot(self.policy, self.optimizer, self.mirror, state, self.extra_tensors()),
                self.run.best_step(),
            )
            self.saved_step = step
        if last:
            try:
                self.checkpoints.wait()
            except DiskFullError:
                self.saved_step = -1  # write it again
                raise


def take_snapshot(
    policy: Policy,
    optimizer: AdamW,
    mirror: Mirror,
    state: dict[str, Any],
    extra: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
) -> Snapshot:
    """Copy weights, AdamW's moments and the `extra` tensors as they are now."""
    weights, moments, extra = policy.weights() | optimizer.weights(), optimizer.state(), extra or {}
    copies = mirror.copy(
        {**weights, **moments, **{name: t for tensors in extra.values() for name, t in tensors.items()}}
    )
    return Snapshot(
        weights={name: copies[name] for name in weights},
        files=model_files(policy),
        optimizer_tensors={name: copies[name] for name in moments},
        extra_tensors={file: {name: copies[name] for name in tensors} for file, tensors in extra.items()},
        state=state,
    )


@contextmanager
def recorded_ending(run: Run, callbacks: Callback, stop: StopRequest) -> Iterator[None]:
    """Record the final status and call `on_end`, however training ends."""
    status = "failed"
    try:
        with stop:
            yield
        status = "stopped" if stop.requested else "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        # On a full disk the status stays "running"; the DiskFullError being raised says why.
        with suppress(DiskFullError):
            run.set_status(status)
        callbacks.on_end(run)
