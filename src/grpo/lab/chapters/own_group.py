"""A group of the reader's own answers, trained on for real: the embedded model, the task's checker, the trainer's loss."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from grpo.algorithms import PRESETS, Loss
from grpo.config import Config, Optimizer
from grpo.core import token_loss, token_terms
from grpo.credit import credit, has_signal
from grpo.errors import GrpoError
from grpo.gradient import accumulate_gradients
from grpo.lab.chapters.given import Query, choice, number, whole
from grpo.lab.tokens import Traced, work_out
from grpo.models import EMBEDDED
from grpo.optimizer import make_optimizer, take_step
from grpo.policy import Policy, annotate, load_policy, logprobs
from grpo.tasks import load_task
from grpo.trace import Traces
from grpo.types import Completion, Group

PROMPT = "12+34+56="
TEXTS = "102\n(12;10)102\n92\n101"
MOST_TEXTS, MOST_CHARACTERS = 8, 48
GRPO = PRESETS["grpo"].settings


@dataclass(frozen=True)
class Asked:
    """All that the answer depends on."""

    model: str
    prompt: str
    texts: tuple[str, ...]
    updates: int
    lr: float
    loss: Loss


def asked(query: Query) -> Asked:
    texts = tuple(text.strip() for text in query.get("texts", TEXTS).splitlines() if text.strip())
    if not 2 <= len(texts) <= MOST_TEXTS:
        raise GrpoError(f"texts: a group needs 2 to {MOST_TEXTS} completions, one per line; got {len(texts)}")
    if longest := next((text for text in texts if len(text) > MOST_CHARACTERS), ""):
        raise GrpoError(f"texts: {longest[:20]}… is longer than {MOST_CHARACTERS} characters")
    low = number(query, "low", 0.2, 0.0, 0.99)
    loss = replace(
        GRPO,
        clip_low=low,
        clip_high=number(query, "high", low, 0.0, 2.0),
        beta=number(query, "beta", 0.04, 0.0, 2.0),
        kl=choice(query, "kl", "k3", ("k1", "k2", "k3", "k3_ratio")),
        aggregate=choice(query, "aggregate", "sequence", ("sequence", "token", "constant")),
    )
    return Asked(
        model=choice(query, "model", "nano", list(EMBEDDED)),
        prompt=query.get("prompt", PROMPT).strip()[:MOST_CHARACTERS],
        texts=texts,
        updates=whole(query, "updates", 4, 1, 8),
        lr=number(query, "lr", 3e-4, 0.0, 3e-3),
        loss=loss,
    )


@lru_cache(maxsize=2)
def embedded_policy(model: str) -> Policy:
    return load_policy(model)


def tokens_of(policy: Policy, name: str, text: str) -> list[int]:
    """An embedded model reads the characters of its task and no others."""
    alphabet = [token for token in policy.tokenizer.get_vocab() if len(token) == 1]
    if unknown := sorted(set(text) - set(alphabet)):
        known = "".join(sorted(alphabet))
        raise GrpoError(f"{name}: {policy.name} does not know {''.join(unknown)[:20]!r}; it reads {known}")
    return list(policy.tokenizer(text)["input_ids"])


@dataclass(frozen=True, eq=False)
class Trained:
    """What the last update saw, and what each update was."""

    rows: tuple[Mapping[str, Any], ...]
    updates: tuple[Mapping[str, float], ...]
    rewards: tuple[float, ...]
    loss: float
    """The trainer's, of the last update."""


@lru_cache(maxsize=64)
def trained(wanted: Asked) -> Trained:
    """Scored by the task, credited, and updated so many times, by the functions that `grpo train` calls."""
    policy = replace_model(embedded_policy(wanted.model))
    task = load_task(EMBEDDED[wanted.model])
    problem = task.recognise(wanted.prompt)
    if problem is None:
        raise GrpoError(f"prompt: {wanted.prompt!r} is no sum or product, such as {PROMPT}")
    config = Config(
        model=wanted.model,
        task=task.name,
        prompts_per_step=1,
        group_size=len(wanted.texts),
        loss=wanted.loss,
        optimizer=Optimizer(epochs=wanted.updates),
    )
    [end] = policy.end_tokens
    completions = []
    for text in wanted.texts:
        tokens = np.array([*tokens_of(policy, "texts", text), end])
        parts = task.score(problem, text)
        reward = sum(value for value in parts.values() if value is not None)
        completions.append(Completion(text, tokens, np.zeros(len(tokens)), "stop", parts, reward))
    prompt_tokens = np.array(tokens_of(policy, "prompt", wanted.prompt))
    groups = [Group(problem, prompt_tokens, tuple(completions), 0)]
    # The reader's answers stand for samples of the model as it ships, which is also the reference.
    groups = annotate(
        groups,
        lambda batch: logprobs(policy, batch, config.temperature)[0],
        lambda done, logp: replace(
            done,
            logprobs=logp,
            ref_logprobs=logp if wanted.loss.beta else None,
            old_logprobs=logp if wanted.updates > 1 else None,
        ),
        token_budget=config.system.token_budget,
        device=policy.device,
    )
    groups, _ = credit(groups, config)
    optimizer = make_optimizer(policy, beta1=0.9, beta2=0.99, weight_decay=0.0)
    updates: list[dict[str, float]] = []
    traces = Traces(groups, 1)
    for _ in range(wanted.updates if has_signal(groups[0]) else 0):
        gradient = accumulate_gradients(policy, groups, config, traces=traces)
        norm = take_step(policy, optimizer, lr=wanted.lr, grad_clip=config.optimizer.grad_clip)
        updates.append({**gradient.statistics.metrics(), "grad_norm": norm})
    [group] = traces.onto(groups)
    return Trained(
        rows=tuple(_row(i, done) for i, done in enumerate(group.completions)),
        updates=tuple(updates),
        rewards=tuple(float(done.reward or 0.0) for done in group.completions),
        loss=updates[-1]["loss"] if updates else 0.0,
    )


def replace_model(policy: Policy) -> Policy:
    """The same, with weights of its own to move."""
    return replace(policy, model=copy.deepcopy(policy.model))


def _row(index: int, done: Completion) -> dict[str, Any]:
    """As the record of a run keeps it."""
    trace = done.trace
    return {
        "sample_index": index,
        "tokens": done.tokens,
        "logprobs": done.logprobs,
        "trainer_logprobs": None if trace is None else trace.logprobs,
        "old_logprobs": done.old_logprobs,
        "ref_logprobs": done.ref_logprobs,
        "entropies": None if trace is None else trace.entropies,
        "advantages": done.advantages,
        "denominator": None if trace is None else trace.denominator,
    }


def own_group(query: Query) -> dict[str, Any]:
    """Every token of the reader's group with what the last update saw of it, and the losses of all updates."""
    wanted = asked(query)
    found, policy = trained(wanted), embedded_policy(wanted.model)
    rows, total = [], 0.0
    for text, reward, row in zip(wanted.texts, found.rewards, found.rows, strict=True):
        traced = Traced(row, asdict(wanted.loss))
        terms = token_terms(**traced.inputs)
        shares = [token_loss(i, **traced.inputs) for i in range(len(row["tokens"]))] if traced.trained else []
        total += sum(shares)
        rows.append(
            {
                "sample": row["sample_index"],
                "text": text,
                "reward": reward,
                "advantage": float(row["advantages"][0]),
                "pieces": policy.tokenizer.convert_ids_to_tokens(row["tokens"].tolist()),
                "trained": traced.trained,
                "values": {
                    "probability": traced.sampler_L.exp().tolist(),
                    "ratio": terms.ratio.tolist(),
                    "clip": terms.clip.tolist(),
                    "kl": None if terms.kl is None else terms.kl.tolist(),
                    "push": terms.push.tolist() if traced.trained else [0.0] * len(row["tokens"]),
                    "share": shares or [0.0] * len(row["tokens"]),
                },
            }
        )
    return {
        "prompt": wanted.prompt,
        "rows": rows,
        "updates": list(found.updates),
        "trainer_loss": found.loss,
        "sum_of_shares": total,
        "signal": bool(found.updates),
    }


def own_token(query: Query) -> dict[str, Any]:
    """One token of the reader's group, worked out."""
    wanted = asked(query)
    found, policy = trained(wanted), embedded_policy(wanted.model)
    row = found.rows[whole(query, "sample", 0, 0, len(found.rows) - 1)]
    texts = policy.tokenizer.convert_ids_to_tokens(row["tokens"].tolist())
    traced = Traced(row, asdict(wanted.loss))
    return work_out(traced, whole(query, "token", 0, 0, len(texts) - 1), texts, asdict(wanted.loss))


def group_tensors(wanted: Asked) -> dict[str, torch.Tensor]:
    """The last update's inputs as grids [G, L]: for a loss written by hand."""
    found = trained(wanted)
    longest = max(len(row["tokens"]) for row in found.rows)

    def grid(name: str) -> torch.Tensor:
        padded = [np.pad(np.asarray(row[name], np.float64), (0, longest - len(row["tokens"]))) for row in found.rows]
        return torch.from_numpy(np.stack(padded))

    logp = grid("trainer_logprobs")
    return {
        "logp": logp,
        "old_logp": logp if found.rows[0]["old_logprobs"] is None else grid("old_logprobs"),
        "ref_logp": logp if found.rows[0]["ref_logprobs"] is None else grid("ref_logprobs"),
        "rewards": torch.tensor(found.rewards, dtype=torch.float64),
        "mask": torch.tensor([[float(i < len(row["tokens"])) for i in range(longest)] for row in found.rows]).double(),
    }
