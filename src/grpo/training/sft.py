"""Supervised fine-tuning: the stage before GRPO, on the same packing, record and callbacks.

Rows are read and asked as `grpo train --data` does it, or are a task's problems with their gold answers; the loss is
the mean −logp of the answer's tokens, end token included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch

from grpo.config import Optimizer, SftConfig
from grpo.config.schema import as_dict, validate
from grpo.errors import GrpoError
from grpo.model.device import placement, prepare_machine
from grpo.model.load import load_policy
from grpo.model.oom_retry import within_memory
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.packing import pack
from grpo.model.policy import Policy
from grpo.model.policy import logprobs as policy_logprobs
from grpo.model.schedule import learning_rate
from grpo.model.tensorfile import Mirror
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.lock import RunLock
from grpo.record.loggers import with_loggers
from grpo.record.store import Run, fresh_name
from grpo.rewards.pool.workers import refuse_while_scoring
from grpo.tasks import Task, load_task
from grpo.tasks.rows import Source, written_answers
from grpo.training.gradient import unscale
from grpo.training.session import recorded_ending, take_snapshot
from grpo.training.stop import StopRequest
from grpo.types import Completion, Group, Problem


def sft(config: SftConfig, *, callbacks: Sequence[Callback] = ()) -> Run:
    """Fine-tunes `config.model` on `config.data`; the run's last checkpoint holds the model."""
    refuse_while_scoring()
    validate(config)
    listening = with_loggers(callbacks, config.system.log)
    task = load_task(config.task, config.data, config.dataset) if config.task else None
    policy = load_policy(config.model, **placement(config.system))
    policy.gradient_checkpointing = config.system.gradient_checkpointing
    prepare_machine(config.system, policy)
    batches, steps = batches_of(config, task, policy)
    warmup_steps = min(config.warmup_steps, steps // 10)  # a short run must not be all warm-up
    optimizer = make_optimizer(policy, Optimizer(adam_beta2=0.98, weight_decay=config.weight_decay))
    folder = Path(config.system.runs)
    name = config.run or fresh_name(folder, "sft")
    run = Run.create(folder, name, kind="sft", config=as_dict(config) | {"steps": steps})

    checkpoints, mirror = Checkpoints(run.path), Mirror()

    def report_checkpoints() -> None:
        for written in checkpoints.written():
            listening.on_checkpoint(written.step, written.path)

    def checkpoint(step: int) -> None:
        checkpoints.wait()
        report_checkpoints()  # before a newer one replaces them
        state = {"policy_version": policy.version}
        checkpoints.save(step, lambda: take_snapshot(policy, optimizer, mirror, state))

    with closing(RunLock(run.path)), recorded_ending(run, listening, StopRequest(listening)) as stop:
        listening.on_start(run, config, 0)
        for step, batch_rows in enumerate(islice(batches, steps)):
            start = time.perf_counter()
            lr = learning_rate(config.lr, step, steps=steps, warmup_steps=warmup_steps, schedule=config.schedule)
            budget = policy.token_budget
            loss, tokens = accumulate_gradients(policy, batch_rows, config.system.token_budget)
            if policy.token_budget != budget:
                told = f"step {step}: memory ran out; from here on micro-batches hold {policy.token_budget} tokens"
                listening.on_warning(told)
                run.add_finding("memory", told, step)
            norm = take_step(policy, optimizer, lr=lr, grad_clip=config.grad_clip)
            metrics = {"sft_loss": loss, "tokens": float(tokens), "lr": lr, "grad_norm": norm}
            run.record(step, [], metrics, {"update": time.perf_counter() - start})
            listening.on_step(step, metrics, [])
            report_checkpoints()
            if config.checkpoint_every and (step + 1) % config.checkpoint_every == 0:
                checkpoint(step + 1)
            if stop.requested:
                break
        checkpoint(step + 1)
        checkpoints.wait()
        report_checkpoints()
    return run


def batches_of(config: SftConfig, task: Task | None, policy: Policy) -> tuple[Iterator[list[Group]], int]:
    """Endless batches of a file's rows or a task's problems, and how many of them are asked for."""
    if task is not None:
        return golds(task, config, policy), config.steps
    rows = read_rows(Source(config.data, config.dataset), policy)
    steps = config.steps or math.ceil(config.epochs * len(rows) / config.batch_size)
    return shuffled(rows, config.batch_size, config.seed), steps


def golds(task: Task, config: SftConfig, policy: Policy) -> Iterator[list[Group]]:
    """Endless batches of a task's training problems with their gold answers."""
    for step in count():
        yield with_answers(task.draw(step, config.batch_size, config.seed), policy)


def answered(problem: Problem, prompt: Sequence[int], answer: Sequence[int], policy: Policy) -> Group:
    """A group of one completion: the written answer."""
    tokens = np.array([*answer, policy.tokenizer.eos_token_id], dtype=np.int64)
    limit = getattr(policy.model.config, "max_position_embeddings", None)
    if limit and len(prompt) + len(tokens) > limit:
        raise GrpoError(
            f"{problem.id}: {len(prompt) + len(tokens)} tokens exceed the {limit} positions of {policy.name}"
        )
    completion = Completion(problem.answer, tokens, np.zeros(len(tokens), dtype=np.float32), "stop")
    return Group(problem, np.array(prompt, dtype=np.int64), (completion,), policy_version=0)


def read_rows(source: Source, policy: Policy) -> list[Group]:
    return with_answers(written_answers(source), policy)


def with_answers(problems: Sequence[Problem], policy: Policy) -> list[Group]:
    """Each problem, asked as GRPO will ask it, with its answer."""
    answers = policy.tokenizer([problem.answer for problem in problems], add_special_tokens=False)["input_ids"]
    return [
        answered(problem, policy.prompt_tokens(problem), answer, policy)
        for problem, answer in zip(problems, answers, strict=True)
    ]


def shuffled(rows: Sequence[Group], batch_size: int, seed: int) -> Iterator[list[Group]]:
    """Endless batches, every row once per epoch, in an order keyed by (seed, epoch)."""
    epoch, waiting = 0, np.zeros(0, dtype=np.int64)
    while True:
        while len(waiting) < batch_size:
            waiting = np.concatenate([waiting, np.random.default_rng([seed, epoch]).permutation(len(rows))])
            epoch += 1
        chosen, waiting = waiting[:batch_size], waiting[batch_size:]
        yield [rows[i] for i in chosen]


def accumulate_gradients(policy: Policy, groups: Sequence[Group], token_budget: int) -> tuple[float, int]:
    """Leaves the gradient of the mean −logp in the weights; returns that mean and the number of answer tokens."""
    tokens = sum(len(completion) for group in groups for completion in group.completions)
    loss_scale = policy.loss_scale(tokens)

    def accumulated(tokens_at_once: int) -> float:
        total = torch.zeros((), device=policy.device)
        for batch in pack(groups, tokens_at_once, policy.device, padded=policy.padded):
            logp_NL, _ = policy_logprobs(policy, batch, temperature=1.0)
            loss = -logp_NL.sum() / tokens
            (loss_scale * loss).backward()
            total += loss.detach()
        return float(total)

    loss = within_memory(policy, token_budget, accumulated, lambda: policy.model.zero_grad(set_to_none=True))
    unscale(policy.model.parameters(), loss_scale)
    return loss, tokens
