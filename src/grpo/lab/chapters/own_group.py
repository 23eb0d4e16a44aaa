"""Training on a group of the reader's answers: `nano`, its task's checker, the trainer's loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from grpo.config import Config, Optimizer
from grpo.config.leaf import shown
from grpo.config.presets import PRESETS
from grpo.config.sections import Loss
from grpo.core import token_loss, token_terms
from grpo.errors import GrpoError
from grpo.lab.chapters.nano import Nano, fresh_nano, nano, sum_of_three
from grpo.lab.chapters.query import Query, number, text, whole, word
from grpo.lab.tokens import Traced, work_out
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.policy import Policy, logprobs
from grpo.record.trace import Traces
from grpo.training.annotations import annotate
from grpo.training.credit import credit, has_signal
from grpo.training.gradient import accumulate_gradients
from grpo.types import Completion, Group

PROMPT = "12+34+56="
TEXTS = "102\n(12;10)102\n92\n101"
MOST_TEXTS, LONGEST_TEXT = 8, 48


@dataclass(frozen=True)
class Inputs:
    """All inputs of the computation."""

    prompt: str
    texts: tuple[str, ...]
    updates: int
    lr: float
    loss: Loss


def parse_inputs(query: Query) -> Inputs:
    lines = tuple(line.strip() for line in text(query, "texts", TEXTS).splitlines() if line.strip())
    if not 2 <= len(lines) <= MOST_TEXTS or max(map(len, lines)) > LONGEST_TEXT:
        raise GrpoError(
            f"texts: expected 2 to {MOST_TEXTS} lines of at most {LONGEST_TEXT} characters; got {len(lines)} lines"
        )
    low = number(query, "low", 0.2, 0.0, 0.99)
    changes: dict[str, Any] = {
        "clip_low": low,
        "clip_high": number(query, "high", low, 0.0, 2.0),
        "beta": number(query, "beta", 0.04, 0.0, 2.0),
        "kl": word(query, "kl", "k3", ("k1", "k2", "k3", "k3_ratio")),
        "aggregate": word(query, "aggregate", "sequence", ("sequence", "token", "constant")),
    }
    loss = replace(PRESETS["grpo"].settings, **changes)
    prompt = text(query, "prompt", PROMPT, LONGEST_TEXT).strip()
    return Inputs(prompt, lines, whole(query, "updates", 4, 1, 8), number(query, "lr", 3e-4, 0.0, 3e-3), loss)


def tokens_of(policy: Policy, line: str) -> list[int]:
    """Checks that all characters are in `nano`'s vocabulary."""
    alphabet = {token for token in policy.tokenizer.get_vocab() if len(token) == 1}
    if unknown := sorted(set(line) - alphabet):
        raise GrpoError(
            f"texts: nano's vocabulary does not have {shown(''.join(unknown))}; use {''.join(sorted(alphabet))}"
        )
    return list(policy.tokenizer(line)["input_ids"])


@dataclass(frozen=True, eq=False)
class Trained:
    """Inputs of the last update, and statistics of every update."""

    rows: tuple[Mapping[str, Any], ...]
    updates: tuple[Mapping[str, float], ...]
    rewards: tuple[float, ...]
    loss: float
    """The trainer's loss at the last update."""


@lru_cache(maxsize=64)
def train_on_group(inputs: Inputs) -> Trained:
    """Scores, credits and trains on the answers with the functions that `grpo train` calls."""
    with fresh_nano() as own:
        config = Config(
            model="nano",
            task=own.task.name,
            prompts_per_step=1,
            group_size=len(inputs.texts),
            loss=inputs.loss,
            optimizer=Optimizer(epochs=inputs.updates),
        )
        groups, _ = credit([_group(own, inputs, config)], config)
        optimizer = make_optimizer(own.policy, config.optimizer)
        updates: list[dict[str, float]] = []
        traces = Traces(groups, 1)
        for _ in range(inputs.updates if has_signal(groups[0]) else 0):
            gradient = accumulate_gradients(own.policy, groups, config, traces=traces)
            norm = take_step(own.policy, optimizer, lr=inputs.lr, grad_clip=config.optimizer.grad_clip)
            updates.append({**gradient.statistics.metrics(), "grad_norm": norm})
    [group] = traces.add_to(groups)
    return Trained(
        rows=tuple(_row(i, done) for i, done in enumerate(group.completions)),
        updates=tuple(updates),
        rewards=tuple(float(done.reward or 0.0) for done in group.completions),
        loss=updates[-1]["loss"] if updates else 0.0,
    )


def _group(own: Nano, inputs: Inputs, config: Config) -> Group:
    """The reader's answers as samples of the shipped `nano`, which is also the old policy and the reference."""
    problem = sum_of_three(inputs.prompt)
    [end] = own.policy.end_tokens
    completions = tuple(
        Completion(line, np.array(tokens), np.zeros(len(tokens)), "stop")
        for line in inputs.texts
        for tokens in [[*tokens_of(own.policy, line), end]]
    )
    group = Group(problem, np.array(own.policy.prompt_tokens(problem)), completions, 0)
    fields = ["logprobs", *["ref_logprobs"] * bool(inputs.loss.beta), *["old_logprobs"] * (inputs.updates > 1)]
    [scored] = own.scorer.score([group])
    [annotated] = annotate(
        [scored],
        lambda batch: logprobs(own.policy, batch, config.temperature)[0],
        *fields,
        token_budget=config.system.token_budget,
        policy=own.policy,
    )
    return annotated


def _row(index: int, done: Completion) -> dict[str, Any]:
    """The row that a run's record would have."""
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


def pieces(row: Mapping[str, Any]) -> list[str]:
    with nano() as loaded:
        return list(loaded.policy.tokenizer.convert_ids_to_tokens(row["tokens"].tolist()))


def own_group(query: Query) -> dict[str, Any]:
    """Every token of the reader's group with its values at the last update, and the losses of all updates."""
    inputs = parse_inputs(query)
    found = train_on_group(inputs)
    rows, total = [], 0.0
    for line, reward, row in zip(inputs.texts, found.rewards, found.rows, strict=True):
        traced = Traced(row, asdict(inputs.loss))
        terms = token_terms(**traced.inputs)
        shares = [token_loss(i, **traced.inputs) for i in range(len(row["tokens"]))] if traced.updated else []
        total += sum(shares)
        rows.append(
            {
                "sample": row["sample_index"],
                "text": line,
                "reward": reward,
                "advantage": float(row["advantages"][0]),
                "pieces": pieces(row),
                "updated": traced.updated,
                "values": {
                    "probability": traced.sampler_L.exp().tolist(),
                    "ratio": terms.ratio.tolist(),
                    "clip": terms.clip.tolist(),
                    "kl": None if terms.kl is None else terms.kl.tolist(),
                    "push": terms.push.tolist() if traced.updated else [0.0] * len(row["tokens"]),
                    "share": shares or [0.0] * len(row["tokens"]),
                },
            }
        )
    return {
        "prompt": inputs.prompt,
        "rows": rows,
        "updates": list(found.updates),
        "trainer_loss": found.loss,
        "sum_of_shares": total,
        "signal": bool(found.updates),
    }


def own_token(query: Query) -> dict[str, Any]:
    """The loss of one token of the reader's group, step by step."""
    inputs = parse_inputs(query)
    found = train_on_group(inputs)
    row = found.rows[whole(query, "sample", 0, 0, len(found.rows) - 1)]
    texts = pieces(row)
    traced = Traced(row, asdict(inputs.loss))
    return work_out(traced, whole(query, "token", 0, 0, len(texts) - 1), texts, asdict(inputs.loss))


def group_tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The last update's inputs as grids [G, L]: for a loss written by hand."""
    found = train_on_group(inputs)
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
