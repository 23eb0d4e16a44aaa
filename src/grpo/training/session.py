"""What one run holds while it trains: task, policy, reference, optimizer, engine, record, checkpoints and callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from grpo.config import Config
from grpo.config.rules import warnings
from grpo.config.schema import as_dict, resolve
from grpo.errors import DiskFullError, GrpoError
from grpo.model.critic import Critic, make_critic
from grpo.model.device import little_to_collect, peak_memory, pick_device, placement, prepare_machine
from grpo.model.files import model_files
from grpo.model.load import load_policy
from grpo.model.lora import adapt, freeze
from grpo.model.lora import restore as restore_adapter
from grpo.model.optimizer import make_optimizer, restore_state, state_tensors
from grpo.model.policy import Policy
from grpo.model.tensorfile import Mirror
from grpo.record.checkpoints import Checkpoint, Checkpoints, Snapshot
from grpo.record.events import Callback, Callbacks
from grpo.record.lock import RunLock
from grpo.record.loggers import with_loggers
from grpo.record.store import Run, fresh_name
from grpo.rewards import Pending, Scorer
from grpo.rewards.pool.workers import refuse_while_scoring
from grpo.rewards.steps import score_steps, step_marks
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks import Task, load_task
from grpo.training.evaluation import evaluate
from grpo.training.fingerprint import fingerprints
from grpo.training.preflight import check_memory, check_shape, preflight
from grpo.training.recorder import Recorder
from grpo.training.resume import checkpoint_to_resume, existing_run, kept_budget
from grpo.training.stop import StopRequest
from grpo.types import Group, Problem


@dataclass(eq=False)
class Session:
    config: Config
    task: Task
    scorer: Scorer
    policy: Policy
    reference: Policy | None
    critic: Critic | None
    optimizer: torch.optim.AdamW
    engine: Engine
    run: Run
    recorder: Recorder
    checkpoints: Checkpoints
    callbacks: Callbacks
    stop: StopRequest
    lock: RunLock
    mirror: Mirror = field(default_factory=Mirror)
    notes: Sequence[str] = ()
    first_step: int = 0
    saved_step: int = -1

    @classmethod
    def start(cls, config: Config, callbacks: Sequence[Callback] = ()) -> Self:
        """Begins the run, or goes on from its last whole checkpoint. Whatever can be refused is, before it is made."""
        refuse_while_scoring()
        config = resolve(config)
        listening = with_loggers(callbacks, config.system.log)
        with ExitStack() as undo:
            session = cls._start(config, listening, undo)
            undo.pop_all()
        return session

    @classmethod
    def _start(cls, config: Config, callbacks: Callbacks, undo: ExitStack) -> Self:
        folder, device = Path(config.system.runs), pick_device(config.system)
        task = load_task(config.task, config.data, config.dataset)
        # Workers load people's code while the model is loaded here.
        scorer = undo.enter_context(Scorer(task, config.reward, config.scoring, device))
        prints = fingerprints(config, task)
        run, lock, checkpoint = existing_run(config, folder), None, None
        if run is not None:
            undo.callback(run.close)
            lock = RunLock(run.path)
            undo.callback(lock.close)
            checkpoint = checkpoint_to_resume(run, config, prints, callbacks)

        sizes = check_memory(config, task, torch.device(device))
        if config.loss.credit == "process":
            step_marks(task)
        policy, reference, critic, optimizer = _models(config, checkpoint)
        for network in (policy, critic.body if critic else policy):
            network.gradient_checkpointing = config.system.gradient_checkpointing
        policy.token_budget = kept_budget(run, config) or sizes.token_budget
        threads = prepare_machine(config.system, policy, run)
        engine = Engine(
            policy, config.system.max_concurrent_completions or (run.meta("rows_at_once") if run else None) or 0
        )
        notes = [*warnings(config), *preflight(config, scorer, policy, engine, run.path if run else None)]
        if run is None or lock is None:
            name = config.run or fresh_name(folder, f"{task.name}-{config.algorithm}")
            meta = {
                "fingerprints": prints,
                "threads": threads,
                "rows_at_once": engine.rows_at_once,
                "token_budget": policy.token_budget,
                "memory": {"device": device, "predicted": sizes.predicted},
            }
            run = Run.create(folder, name, kind="grpo", config=as_dict(config), meta=meta)
            lock = RunLock(run.path)
        stop = StopRequest(callbacks)
        nonfinite_steps = checkpoint.state["nonfinite_steps"] if checkpoint else 0
        session = cls(
            config=config,
            task=task,
            scorer=scorer,
            policy=policy,
            reference=reference,
            critic=critic,
            optimizer=optimizer,
            engine=engine,
            run=run,
            recorder=Recorder(run, callbacks, config, stop, nonfinite_steps=nonfinite_steps),
            checkpoints=Checkpoints(run.path, keep=config.checkpoints.keep),
            callbacks=callbacks,
            stop=stop,
            lock=lock,
        )
        if checkpoint:
            session.first_step = session.saved_step = checkpoint.step
        session.notes = notes
        return session

    def _begin(self) -> None:
        """What runs from here on, to the record and the callbacks."""
        self.run.set_config(as_dict(self.config))  # more steps, perhaps
        self.run.set_meta("token_budget", self.policy.token_budget)
        self.run.rewind(self.config.steps)  # steps beyond the ones asked for, of a run that once was longer
        self.run.set_status("running")
        self.callbacks.on_start(self.run, self.config, self.first_step)
        for note in self.notes:
            self.recorder.warn("assumed", note)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """However training ends, the record and the callbacks learn how, and the run is free for the next trainer."""
        light = little_to_collect(self.policy.device)
        with closing(self.lock), closing(self.scorer), recorded_ending(self.run, self.callbacks, self.stop), light:
            try:
                self._begin()
                yield
                self.recorder.wait()
            finally:
                self.recorder.settle()
                self.checkpoints.settle()

    def sampling(self, step: int = 0, purpose: str = "train") -> Sampling:
        return Sampling(
            seed=self.config.seed,
            temperature=self.config.temperature,
            max_new_tokens=self.config.max_new_tokens,
            step=step,
            purpose=purpose,
        )

    def sample(self, problems: Sequence[Problem], step: int) -> Pending:
        """Groups of completions. Those of one sampling batch are scored while the next is sampled."""
        pending = Pending(self.scorer)
        for groups in self.engine.sampling_batches(problems, self.config.group_size, self.sampling(step)):
            pending.add(groups)
        return pending

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """+ rewards, and those of the steps where they count."""
        return self.scored(self.scorer.submit(groups))

    def scored(self, pending: Pending) -> list[Group]:
        """The groups that are being scored, once they are."""
        groups = pending.collect()
        if self.config.loss.credit == "process":
            groups = score_steps(self.task, groups, self.policy.tokenizer.batch_decode)
        return groups

    def refresh_reference(self, step: int) -> None:
        """Every so many steps the reference becomes a copy of the policy (iterative GRPO)."""
        every = self.config.loss.refresh
        if every and step and step % every == 0:
            assert self.reference is not None
            self.reference.model.load_state_dict(self.policy.model.state_dict())

    def record(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> None:
        """Hands the step to the recorder, with what is true now and may not be when it is written."""
        metrics = {**metrics, "peak_memory": peak_memory(self.policy.device)}
        self.recorder.wait()
        self._report_checkpoints()
        self.recorder.hand_over(step, groups, metrics, seconds, self.policy.token_budget)

    def evaluate(self, step: int) -> None:
        """Held-out accuracy after `step` steps, and a group for each pinned problem."""
        self.recorder.wait()
        heldout = self.task.heldout()
        asked = heldout[: self.config.evaluation.problems]
        self.callbacks.on_evaluation_start(step, len(asked))
        row, groups = evaluate(self.engine, self.scorer, asked, self.sampling())
        self.recorder.with_space(lambda: self.run.record_eval(step, row, groups))
        pinned = heldout[: self.config.evaluation.probes]
        sampling = self.sampling(purpose="probe")
        probes = self.scorer.score(self.engine.sample(pinned, self.config.group_size, sampling)) if pinned else []
        self.recorder.with_space(lambda: self.run.record_probes(step, probes))
        self.callbacks.on_evaluation(step, row)
        if step:
            self.recorder.diagnose(step - 1)
        if step and self.run.best_step(up_to=step) == step:
            self.checkpoint(step)

    def checkpoint(self, step: int, *, last: bool = False) -> None:
        """Writes in the background; the copy is taken now. The last one is waited for."""
        self.recorder.wait()  # a checkpoint must not be ahead of the record
        if step != self.saved_step:
            self._check_weights(step)
        self.recorder.with_space(lambda: self._save(step, last))
        self._report_checkpoints()

    def _report_checkpoints(self) -> None:
        for checkpoint in self.checkpoints.written():
            self.callbacks.on_checkpoint(checkpoint.step, checkpoint.path)

    def _check_weights(self, step: int) -> None:
        critic = [] if self.critic is None else [(f"critic.{name}", w) for name, w in self.critic.named_parameters()]
        for name, weight in (*self.policy.trainable(), *critic):
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
                lambda: take_snapshot(self.policy, self.optimizer, self.mirror, state, self._beside_the_policy()),
                self.run.best_step(),
            )
            self.saved_step = step
        if last:
            try:
                self.checkpoints.wait()
            except DiskFullError:
                self.saved_step = -1  # to be written again
                raise

    def _beside_the_policy(self) -> dict[str, dict[str, torch.Tensor]]:
        """By file: what else has changed since the run began and decides how it goes on."""
        files = {}
        if self.critic is not None:
            files["critic"] = self.critic.tensors()
        if self.reference is not None and self.config.loss.refresh:
            files["reference"] = {f"reference/{name}": tensor for name, tensor in self.reference.weights().items()}
        return files


def take_snapshot(
    policy: Policy,
    optimizer: torch.optim.AdamW,
    mirror: Mirror,
    state: dict[str, Any],
    beside: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
) -> Snapshot:
    """Copies weights and moments as they are now, and the tensors of files beside them."""
    weights, moments, beside = policy.weights(), state_tensors(policy.trainable(), optimizer), beside or {}
    copies = mirror.copy(
        {**weights, **moments, **{name: t for tensors in beside.values() for name, t in tensors.items()}}
    )
    return Snapshot(
        weights={name: copies[name] for name in weights},
        files=model_files(policy),
        optimizer_tensors={name: copies[name] for name in moments},
        beside={file: {name: copies[name] for name in tensors} for file, tensors in beside.items()},
        state=state,
    )


@contextmanager
def recorded_ending(run: Run, callbacks: Callback, stop: StopRequest) -> Iterator[StopRequest]:
    """However training ends, the record says how, and callbacks hear of it."""
    status = "failed"
    try:
        with stop:
            yield stop
        status = "stopped" if stop.requested else "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        # On a full disk the status stays "running"; the error that is on its way says why.
        with suppress(DiskFullError):
            run.set_status(status)
        callbacks.on_end(run)


def _models(
    config: Config, checkpoint: Checkpoint | None
) -> tuple[Policy, Policy | None, Critic | None, torch.optim.AdamW]:
    """Policy, reference where there is a KL term, critic where there is one, and optimizer. The reference is the model
    the run began with, or what the checkpoint says it was refreshed to."""
    place = placement(config.system)
    whole = checkpoint if not config.lora.rank else None
    if whole:
        check_shape(config.model, whole.model)
    policy = load_policy(str(whole.model) if whole else config.model, **place)
    if config.lora.rank:
        adapt(policy, config.lora, config.seed)
        if checkpoint:
            restore_adapter(policy.model, checkpoint.model)
    reference = None
    if config.loss.beta and config.lora.rank:
        reference = policy  # with its adapters switched off
    elif config.loss.beta:
        reference = load_policy(config.model, **place)
        freeze(reference)
    optimizer = make_optimizer(policy, config.optimizer)
    critic = make_critic(config, policy) if config.loss.baseline == "value" else None
    if checkpoint:
        policy.name, policy.version = config.model, checkpoint.state["policy_version"]
        restore_state(policy, optimizer, checkpoint.tensors("optimizer"))
        if critic is not None:
            if not checkpoint.has("critic"):
                raise GrpoError(
                    "field loss.baseline: the run began without a critic, and cannot get one; start another"
                )
            critic.restore(checkpoint.tensors("critic"))
        # A run that began without refreshing it still has the reference it began with.
        if reference is not None and config.loss.refresh and checkpoint.has("reference"):
            refreshed = checkpoint.tensors("reference")
            # Tied weights are there once, under their first name.
            reference.model.load_state_dict(
                {name.removeprefix("reference/"): tensor for name, tensor in refreshed.items()}, strict=False
            )
    return policy, reference, critic, optimizer
