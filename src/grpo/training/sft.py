"""Supervised fine-tuning: the stage before GRPO, with the same packing, record, checkpoints and callbacks.

It trains on the rows of a file, with prompts as in `grpo train --data`, or on a task's problems and gold answers. The
loss is the mean −logp of the answer's tokens, end token included. Of a conversation the assistant's turns are the
answer; what stands between them is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from grpo.config import SftConfig
from grpo.config.rules import unused_in_lora
from grpo.config.schema import validate
from grpo.distributed.world import ALONE, World, joined
from grpo.episodes.template import ConversationTemplate
from grpo.errors import GrpoError
from grpo.model.device import pick_device, prepare_machine
from grpo.model.oom_retry import within_memory
from grpo.model.optimizer import lr_warnings, take_step
from grpo.model.packing import longest_row, pack
from grpo.model.policy import Policy
from grpo.model.policy import logprobs as policy_logprobs
from grpo.model.positions import limit_in_words
from grpo.model.prompt import is_chat, template_warnings
from grpo.model.schedule import learning_rate
from grpo.record.events import Callback, Silent
from grpo.record.loggers import with_loggers
from grpo.record.store import Run
from grpo.rewards.pool.workers import refuse_while_scoring
from grpo.tasks import Task, load_task
from grpo.tasks.builder import ANSWER_COLUMNS, require_golds
from grpo.tasks.conversation import Messages
from grpo.tasks.handed_over import Rows
from grpo.tasks.protocol import HasProblems, assumptions_of, draw_problems
from grpo.tasks.rows import Problems, Source, written_answers
from grpo.training.conversation import written_episode
from grpo.training.fingerprint import sft_fingerprints
from grpo.training.gradient import share, unscale
from grpo.training.inputs import take_data
from grpo.training.memory_check import sft_shard
from grpo.training.networks import load_for_sft
from grpo.training.open_run import create_run, reopen_run
from grpo.training.resume import Kept, check_same_inputs
from grpo.training.training_run import TrainingRun
from grpo.types import Completion, Group, Problem

Batches = Callable[[int], list[Group]]
"""The batch of a step: a function of the step, so that a resumed run trains on the same batches."""


def sft(config: SftConfig, *, data: Any = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Fine-tune `config.model` on written answers; the run's last checkpoint holds the model.

    `data`: rows in place of `config.data`: a list of dicts, a `datasets.Dataset`, a pandas data frame, or a mapping
    from splits to any of them.
    """
    config, rows = take_data(config, data)
    with joined(config.scale, config.system.device) as world:
        session = SftSession.start(config, callbacks, rows, world)
        with session.recorded():
            loop(session)
    return session.run


def loop(session: SftSession) -> None:
    config, policy = session.config, session.policy
    warmup_steps = warmup_of(config)
    for step in range(session.first_step, config.steps):
        start = time.perf_counter()
        lr = learning_rate(config.lr, step, steps=config.steps, warmup_steps=warmup_steps, schedule=config.schedule)
        loss, tokens = accumulate_gradients(policy, session.batches(step), config.system.token_budget, session.world)
        norm = take_step(policy, session.optimizer, lr=lr, grad_clip=config.grad_clip)
        skipped = float(not math.isfinite(norm))
        metrics = {"sft_loss": loss, "tokens": float(tokens), "lr": lr, "grad_norm": norm, "skipped_updates": skipped}
        session.record(step, [], metrics, {"update": time.perf_counter() - start})
        if session.stopping:
            return session.checkpoint(step + 1, last=True)
        if config.checkpoint_every and (step + 1) % config.checkpoint_every == 0:
            session.checkpoint(step + 1)
    session.checkpoint(config.steps, last=True)


@dataclass(eq=False, kw_only=True)
class SftSession(TrainingRun):
    config: SftConfig
    batches: Batches

    @classmethod
    def start(
        cls,
        config: SftConfig,
        callbacks: Sequence[Callback] = (),
        handed_over: Rows | None = None,
        world: World = ALONE,
    ) -> Self:
        """Start the run, or resume it from its last complete checkpoint. A failure releases what was taken."""
        refuse_while_scoring()
        validate(config)
        listening = with_loggers(callbacks, config.system.log) if world.first else with_loggers([Silent()], "")
        model, rows_of = config.model, (config.data, config.dataset, handed_over)
        task = load_task(config.task, *rows_of, model=model) if config.task else None
        if isinstance(task, HasProblems):
            require_golds(task.problems(), config.dataset, ANSWER_COLUMNS)
        written = Problems(()) if task else written_answers(Source(*rows_of, model=model))
        rows = written.train
        unused = ["epochs has no effect: steps is set"] if config.steps and config.epochs != SftConfig.epochs else []
        config = replace(config, steps=config.steps or steps_of(config.epochs, len(rows), config.batch_size))
        prints = sft_fingerprints(config, task, rows)
        with ExitStack() as undo:
            check_same_inputs(world, config, prints)
            opened = reopen_run(config, "sft", prints, listening, undo) if world.first else None
            run, checkpoint = (opened.run, opened.checkpoint) if opened else (None, None)
            sample = draw_problems(task, 0, config.batch_size, config.seed) if task else rows
            shard = sft_shard(config, sample, torch.device(pick_device(config.system)), world)
            networks = load_for_sft(config, checkpoint, world, shard)
            policy = networks.policy
            kept = world.from_first(lambda: Kept.of(run, config, world.size))
            policy.token_budget = kept.token_budgets[world.rank]
            threads = prepare_machine(config.system, policy, world.cores, kept.threads)
            batches = make_batches(config, task, written, policy)
            ranks = {"token_budgets": world.meet(policy.token_budget), "world": world.layout(shard)}
            if opened is None and world.first:
                opened = create_run(config, "sft", "sft", {"fingerprints": prints, "threads": threads, **ranks}, undo)
            elif opened is not None:
                for name, value in ranks.items():
                    opened.run.set_meta(name, value)
            session = cls(
                config=config,
                opened=opened,
                policy=policy,
                optimizer=networks.optimizer,
                callbacks=listening,
                world=world,
                assumptions=[
                    *unused_in_lora(config.lora),
                    *unused,
                    *_capped_warmup(config),
                    *lr_warnings(policy, config.lr),
                    *written.notes,
                    *(assumptions_of(task) if task else ()),
                    *template_warnings(policy.tokenizer, policy.chat_template_kwargs, policy.name),
                ],
                batches=batches,
            )
            undo.pop_all()
        return session


def warmup_of(config: SftConfig) -> int:
    """Steps of the warm-up: a short run must not be all warm-up."""
    return min(config.warmup_steps, config.steps // 10)


def _capped_warmup(config: SftConfig) -> list[str]:
    if config.warmup_steps in (SftConfig.warmup_steps, warmup_of(config)):
        return []
    return [
        f"warmup_steps is {config.warmup_steps}, and the warm-up takes {warmup_of(config)}: at most a tenth of the "
        f"{config.steps} steps"
    ]


def make_batches(config: SftConfig, task: Task | None, written: Problems, policy: Policy) -> Batches:
    """Batches of the task's training problems with their gold answers, or of the rows."""
    if task is not None:
        return lambda step: with_answers(draw_problems(task, step, config.batch_size, config.seed), policy)
    groups = with_answers(written.train, policy, written.conversations)
    return lambda step: shuffled_batch(groups, step, config.batch_size, config.seed)


def shuffled_batch(rows: Sequence[Group], step: int, batch_size: int, seed: int) -> list[Group]:
    """The batch of this step. Every epoch has each row once, in an order of its own; its last batch may be smaller."""
    epoch, batch = divmod(step, steps_of(1, len(rows), batch_size))
    places = epoch_order(len(rows), seed, epoch)[batch * batch_size : (batch + 1) * batch_size]
    return [rows[place] for place in places]


def steps_of(epochs: float, rows: int, batch_size: int) -> int:
    """
    >>> steps_of(1, 65, 64), steps_of(1, 20, 64), steps_of(2.5, 65, 64), steps_of(1.1, 100, 10)
    (2, 1, 5, 11)
    """
    # 1.1 times 10 is a little more than 11 in binary.
    return math.ceil(round(epochs * math.ceil(rows / batch_size), 9))


@lru_cache(maxsize=2)
def epoch_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(rows)


def with_answers(
    problems: Sequence[Problem], policy: Policy, conversations: Mapping[str, Messages] | None = None
) -> list[Group]:
    """Each problem, with the prompt that GRPO gives it, as a group of one completion: the written answer, or the turns
    of the assistant in its conversation, by place."""
    answers = policy.tokenizer([problem.answer for problem in problems], add_special_tokens=False)["input_ids"]
    template = ConversationTemplate(policy)
    if any(is_chat(problem, policy.tokenizer) and problem.place in (conversations or {}) for problem in problems):
        template.check()
    groups = []
    for problem, answer in zip(problems, answers, strict=True):
        if messages := (conversations or {}).get(problem.place):
            completion = written_episode(problem, messages, template)
        else:
            tokens = np.array([*answer, template.end_token(problem)], dtype=np.int64)
            completion = Completion(problem.answer, tokens, np.zeros(len(tokens), dtype=np.float32), "stop")
        groups.append(answered(problem, completion, policy))
    return groups


def answered(problem: Problem, completion: Completion, policy: Policy) -> Group:
    prompt = np.array(policy.prompt_tokens(problem), dtype=np.int64)
    if policy.has_unknown([*prompt, *completion.tokens]):
        raise GrpoError(
            f"{problem.label}: {policy.name} has no token for a part of the row; use another model, or correct the row"
        )
    limit = policy.positions
    count = len(prompt) + completion.sequence_length
    if limit and count > limit:
        row = "shorten the row"
        if len(prompt) > completion.sequence_length:
            row += ", or leave long prompts out (--dataset.max-prompt-tokens)"
        raise GrpoError(
            f"{problem.label}: {count} tokens exceed {limit_in_words(policy.model.config, policy.name)}; "
            f"{row if problem.place else 'use a model with more positions, or another task'}"
        )
    return Group(problem, prompt, (completion,), policy_version=0)


def accumulate_gradients(
    policy: Policy, groups: Sequence[Group], token_budget: int, world: World = ALONE
) -> tuple[float, int]:
    """Leave this rank's share of the gradient of the mean −logp in the weights; return that mean and the number of
    answer tokens, of all ranks."""
    tokens = sum(len(completion) for group in groups for completion in group.completions)
    loss_scale = policy.loss_scale(tokens)
    mine = share(groups, world)

    def accumulated(tokens_at_once: int) -> float:
        total = torch.zeros((), device=policy.device)
        for batch in pack(mine, tokens_at_once, policy.device, padded=policy.padded):
            logp_NL, _ = policy_logprobs(policy, batch, temperature=1.0, train_entropy=False)
            loss = -logp_NL.sum() / tokens
            (loss_scale * loss).backward()
            total += loss.detach()
        return float(total)

    def discard_gradients() -> None:
        policy.model.zero_grad(set_to_none=True)

    loss = within_memory(policy, token_budget, accumulated, discard_gradients, longest=longest_row(mine))
    unscale(policy.model.parameters(), loss_scale)
    return sum(world.meet(loss)), tokens
