"""What one run holds while it trains: task, policy, reference, optimizer, engine, record and view."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from grpo.checkpoints import forget_later, latest_checkpoint, save_checkpoint
from grpo.config import Config, System, as_dict, resolve
from grpo.errors import GrpoError
from grpo.evaluation import evaluate
from grpo.optimizer import make_optimizer, restore_state, state_tensors
from grpo.policy import Policy, load_policy
from grpo.rewards import score
from grpo.rollout import SamplingEngine
from grpo.rollout.engine import Engine
from grpo.store import Run, fresh_name
from grpo.tasks import Task, load_task
from grpo.view import View

FREE_TO_CHANGE = {"steps", "run", "resume", "checkpoint_every", "quiet", "evaluation", "system"}
"""Settings a resumed run may have otherwise than it began with; all others would make it another experiment."""


@dataclass(eq=False)
class Session:
    config: Config
    task: Task
    policy: Policy
    reference: Policy | None
    optimizer: torch.optim.AdamW
    engine: SamplingEngine
    run: Run
    view: View
    first_step: int = 0

    @classmethod
    def start(cls, config: Config, view: View) -> Self:
        """Begins the run, or goes on from its last checkpoint. Nothing is written before all that can fail has not."""
        config = resolve(config)
        folder = Path(config.system.runs)
        run = _existing(config, folder)
        checkpoint = latest_checkpoint(run) if run else None

        task = load_task(config.task)
        use_threads(config.system)
        device, dtype = pick_device(config.system), pick_dtype(config.system)
        policy = load_policy(str(checkpoint.path / "model") if checkpoint else config.model, device=device, dtype=dtype)
        reference = load_policy(config.model, device=device, dtype=dtype) if config.loss.beta else None
        optimizer = make_optimizer(
            policy,
            beta1=config.optimizer.adam_beta1,
            beta2=config.optimizer.adam_beta2,
            weight_decay=config.optimizer.weight_decay,
        )
        if checkpoint:
            policy.version = checkpoint.state["policy_version"]
            restore_state(policy, optimizer, checkpoint.optimizer_tensors())
        if run is None:
            name = config.run or fresh_name(folder, f"{config.task}-{config.algorithm}")
            run = Run.create(folder, name, kind="grpo", config=as_dict(config))
        first_step = checkpoint.step if checkpoint else 0
        forget_later(run, first_step)
        run.rewind(first_step)
        session = cls(config, task, policy, reference, optimizer, Engine(policy), run, view, first_step)
        run.set_status("running")
        view.started(run, config, first_step)
        return session

    @property
    def sampling(self) -> dict[str, Any]:
        return {
            "seed": self.config.seed,
            "temperature": self.config.temperature,
            "max_new_tokens": self.config.max_new_tokens,
        }

    def evaluate(self, step: int) -> None:
        """Held-out accuracy after `step` steps, and a group for each pinned problem."""
        heldout = self.task.heldout()
        row, groups = evaluate(self.engine, self.task, heldout[: self.config.evaluation.problems], **self.sampling)
        self.run.record_eval(step, row, groups)
        pinned = heldout[: self.config.evaluation.probes]
        options = {"step": 0, "purpose": "probe", **self.sampling}
        probes = score(self.task, self.engine.sample(pinned, self.config.group_size, **options)) if pinned else []
        self.run.record_probes(step, probes)
        self.view.evaluated(step, row, probes)

    def checkpoint(self, step: int) -> None:
        save_checkpoint(
            self.run,
            step,
            save_model=self.policy.save,
            optimizer_tensors=state_tensors(self.policy, self.optimizer),
            state={"policy_version": self.policy.version},
        )


@contextmanager
def recorded_ending(run: Run, view: View) -> Iterator[None]:
    """However training ends, the record says how, and the view is told."""
    status = "failed"
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        run.set_status(status)
        view.finished(run)


def _existing(config: Config, folder: Path) -> Run | None:
    """The run to go on with; None when a new one is to be made."""
    if config.resume and not config.run:
        raise GrpoError("field resume: which run? name it with --run NAME")
    if not config.run or not (folder / config.run).exists():
        return None
    if not config.resume:
        raise GrpoError(
            f"field run: {config.run} exists in {folder}; go on with it (--resume) or choose another name (--run OTHER)"
        )
    run = Run.open(folder, config.run)
    before, now = run.config, as_dict(config)
    changed = [name for name in now if name not in FREE_TO_CHANGE and now[name] != before.get(name)]
    if changed:
        details = ", ".join(f"{name} was {before.get(name)!r}, is {now[name]!r}" for name in changed)
        raise GrpoError(f"field resume: {config.run} began with other settings ({details}); choose --run OTHER")
    return run


def use_threads(system: System) -> None:
    if system.threads:
        torch.set_num_threads(system.threads)


def pick_device(system: System) -> str:
    if system.device != "auto":
        if system.device.startswith("cuda") and not torch.cuda.is_available():
            raise GrpoError(f"field system.device: {system.device} asked for and there is no GPU; use cpu or auto")
        return system.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def pick_dtype(system: System) -> torch.dtype:
    return torch.bfloat16 if system.dtype == "bfloat16" else torch.float32
