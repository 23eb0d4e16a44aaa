"""Log-probabilities and entropies of a group's tokens, under the nearest checkpoint and the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.filesize import decimal as readable

from grpo.config import Config
from grpo.config.schema import from_dict
from grpo.core import denominator
from grpo.episodes.template import end_token
from grpo.errors import GrpoError
from grpo.lab.groups import one_group
from grpo.model.device import free_memory, placement
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.lora import switched_off
from grpo.model.packing import pack
from grpo.model.policy import Policy, logprobs
from grpo.record.checkpoints import Checkpoint, Checkpoints
from grpo.record.columns import decoded
from grpo.record.store import Run
from grpo.training.networks import load_trainable, restore_reference
from grpo.types import Completion, Group, Problem

Report = Callable[[int, int], None]
"""Called with the number of forward passes done, and of all."""


def recompute(run: Run, step: int, index: int, report: Report = lambda done, total: None) -> dict[str, Any]:
    """Rows as `Run.token_arrays` has them, as lists, and what they were computed with."""
    group = _group(run, step, index)
    config = from_dict(Config, run.config)
    # One thread and the CPU: a trainer may need the rest of the machine.
    config = replace(config, system=replace(config.system, device="cpu", dtype="float32", threads=1))
    torch.set_num_threads(1)
    checkpoint = Checkpoints(run.path).before(step)
    _check_memory(config, checkpoint)
    policy = load_trainable(config, checkpoint)
    made, exact = _encoded(run, group, policy)
    total = len(made.completions) * (2 if checkpoint else 1)
    report(0, total)
    own = [_values(made, place, policy, config.temperature, report, total) for place in range(len(made.completions))]
    reference = [None] * len(own) if checkpoint is None else _reference(made, policy, config, checkpoint, report, total)
    shared, shared_advantage = _denominator(run, step, config), _has_one_advantage(config)
    rows = [
        {
            "group_index": index,
            "sample_index": done["sample_index"],
            "tokens": completion.tokens.tolist(),
            "logprobs": logp,
            "trainer_logprobs": None if _left_out(done, config) else logp,
            "old_logprobs": None,
            "ref_logprobs": ref and ref[0],
            "entropies": entropy,
            "advantages": [done["advantage"] or 0.0] * len(completion.tokens) if shared_advantage else None,
            "denominator": shared,
        }
        for done, completion, (logp, entropy), ref in zip(
            group["completions"], made.completions, own, reference, strict=True
        )
    ]
    return {"rows": rows, "exact": exact, "push": shared_advantage, **source(run, step)}


def source(run: Run, step: int) -> dict[str, Any]:
    """The weights that the group's tokens are recomputed with: name, and steps the run had taken."""
    checkpoint = Checkpoints(run.path).before(step)
    if checkpoint is None:
        return {"source": str(run.config.get("model", "")), "after": 0, "checkpoint": False}
    return {"source": checkpoint.path.name, "after": checkpoint.step, "checkpoint": True}


def _group(run: Run, step: int, index: int) -> dict[str, Any]:
    group, _ = one_group(run, step, index)
    if any(done["turns"] for done in group["completions"]):
        raise GrpoError("tokens of episodes cannot be recomputed: the record has texts that they read, not tokens")
    return group


def _check_memory(config: Config, checkpoint: Checkpoint | None) -> None:
    """Files in 16 bits take twice their size in float32, and the reference is a second model."""
    folder = Path(locate_model(config.model) if config.lora.rank or checkpoint is None else checkpoint.model)
    needed = 4 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if needed > (free := free_memory(torch.device("cpu"))):
        raise GrpoError(
            f"recomputing these tokens needs up to {readable(needed)} of memory; {readable(free)} are free. Train with "
            "--system.token_groups N to record them"
        )


def _encoded(run: Run, group: Mapping[str, Any], policy: Policy) -> tuple[Group, bool]:
    """The group with tokens encoded from its texts, and whether each completion has as many as were sampled."""
    found = run.select("SELECT tokens FROM prompts WHERE problem_id = ?", group["problem_id"])
    if not found:
        raise GrpoError("an older grpo made this record: it has no prompt as tokens, so nothing can be recomputed")
    prompt = decoded("tokens", found[0]["tokens"]).astype(np.int64)
    completions = []
    for done in group["completions"]:
        tokens = policy.tokenizer.encode(done["text"], add_special_tokens=False)
        # A completion that stopped by itself ends with the end token, or with a stop string, which is in its text.
        if (done["finish"] == "stop" and len(tokens) < done["length"]) or not tokens:
            tokens.append(end_token(policy))
        ids = np.array(tokens, np.int64)
        completions.append(Completion(done["text"], ids, np.zeros(len(ids), np.float32), done["finish"]))
    exact = [len(one.tokens) == done["length"] for one, done in zip(completions, group["completions"], strict=True)]
    problem = Problem(group["problem_id"], group["prompt"], group["answer"])
    return Group(problem, prompt, tuple(completions), 0), all(exact)


@torch.no_grad()
def _values(
    group: Group, place: int, policy: Policy, temperature: float, report: Report, total: int, before: int = 0
) -> tuple[list[float], list[float]]:
    """(log-probability, entropy) of each token of one completion."""
    [batch] = pack(
        [replace(group, completions=(group.completions[place],))], 10**9, policy.device, padded=policy.padded
    )
    logp_1L, entropy_1L = logprobs(policy, batch, temperature)
    report(before + place + 1, total)
    return logp_1L[0].tolist(), entropy_1L[0].tolist()


def _reference(
    group: Group, policy: Policy, config: Config, checkpoint: Checkpoint, report: Report, total: int
) -> list[tuple[list[float], list[float]]]:
    """The same under the reference: the model the run began with, or its last refresh."""
    reference = policy if config.lora.rank else load_policy(config.model, **placement(config.system))
    if reference is not policy:
        restore_reference(reference, checkpoint)
    count = len(group.completions)
    with switched_off(policy.model) if reference is policy else nullcontext():
        return [
            _values(group, place, reference, config.temperature, report, total, before=count) for place in range(count)
        ]


def _has_one_advantage(config: Config) -> bool:
    """Whether all tokens of a completion have the same advantage; of others the record has only the mean."""
    return config.loss.baseline != "value" and config.loss.credit == "outcome"


def _left_out(done: Mapping[str, Any], config: Config) -> bool:
    """Whether the update left the completion out: it is unscored, or masked."""
    return done["reward"] is None or (config.loss.mask_truncated and done["finish"] != "stop")


def _denominator(run: Run, step: int, config: Config) -> float:
    """That of one update on all the step's completions."""
    rows = run.select("SELECT length FROM completions WHERE step = ? AND reward IS NOT NULL", step)
    lengths_N = torch.tensor([row["length"] for row in rows])
    return denominator(lengths_N, config.loss.aggregate, config.max_new_tokens)
