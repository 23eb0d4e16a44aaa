"""Short runs of `tiny` on several ranks, and what they recorded, to compare with those of one rank."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from grpo.config import Config, Evaluation, Optimizer, System
from grpo.distributed.checksum import checksum
from grpo.distributed.world import World
from grpo.record.checkpoints import Checkpoints
from grpo.record.metrics import is_timed
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.inputs import Inputs
from grpo.training.loop import loop
from grpo.training.session import Session
from grpo.types import Problem


class Direct(Arithmetic):
    """Rewards answers without work, which `tiny` gives two times in three."""

    def __init__(self) -> None:
        super().__init__("easy")

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"direct": float("(" not in text)}

    def heldout(self) -> list[Problem]:
        return _heldout()


class AsksAgain(Direct):
    """Asks again once; twice after a first answer of an odd number of characters."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return None if len(turns) > 1 + len(turns[0]) % 2 else problem.prompt[:3]


@cache
def _heldout() -> list[Problem]:
    return Arithmetic("easy").heldout()[:3]


def short(folder: Path, run: str, **changes: Any) -> Config:
    """Six steps of `tiny`; the tokens of all groups are recorded."""
    settings = {
        "model": "tiny",
        "run": run,
        "steps": 6,
        "prompts_per_step": 5,
        "group_size": 4,
        "max_new_tokens": 8,
        "lr": 1e-5,
        "checkpoint_every": 0,
        "evaluation": Evaluation(every=0, problems=2, probes=0),
        "optimizer": Optimizer(warmup_steps=0),
        "system": System(runs=str(folder), threads=1, token_groups=5, device="cpu"),
    }
    return Config(**(settings | changes))


def trained(world: World, config: Config, task: type[Direct] | None = Direct) -> list[int]:
    """Train, and return the checksums of this rank's weights. `task=None`: the config names it."""
    session = Session.start(config, (), Inputs(task=task), world)
    with session.recorded():
        loop(session)
    return checksum(weight for _, weight in session.trainable())


def exact_rows(run: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What may not depend on the number of ranks at all: problems, tokens, texts, rewards, and the names of metrics."""
    scored = "step, group_index, sample_index, text, length, finish, reward, correct, parts, traits, extra, why"
    queries = {
        "prompts": "SELECT * FROM prompts",
        "groups": "SELECT * FROM groups",
        "completions": f"SELECT {scored} FROM completions",
        "turns": "SELECT * FROM turns",
        "tokens": "SELECT step, group_index, sample_index, tokens, observed, denominator FROM token_arrays",
        "metrics": "SELECT step, name FROM metrics WHERE NOT name LIKE 'idle/%'",
        "spans": "SELECT step, name FROM spans",
        "eval_groups": "SELECT * FROM eval_groups",
        "eval_completions": f"SELECT {scored} FROM eval_completions",
        "eval_turns": "SELECT * FROM eval_turns",
        "eval_metrics": "SELECT * FROM eval_metrics",
        "probes": "SELECT * FROM probes",
    }
    return {name: sorted(rows) for name, rows in _query(run, queries).items()}


def metrics_of(run: Path) -> dict[tuple[int, str], float | None]:
    rows = _query(run, {"metrics": "SELECT step, name, value FROM metrics"})["metrics"]
    return {(step, name): value for step, name, value in rows if not is_timed(name)}


def token_values(run: Path) -> dict[str, np.ndarray]:
    """Every number of every token, and of every completion, that the weights decide."""
    blobs = ("logprobs", "ref_logprobs", "old_logprobs", "advantages", "trainer_logprobs", "entropies")
    order = "ORDER BY step, group_index, sample_index"
    found = _query(run, {name: f"SELECT {name} FROM token_arrays {order}" for name in blobs})
    numbers = _query(run, {name: f"SELECT {name} FROM completions {order}" for name in ("advantage", "logprob")})
    return {
        **{name: np.frombuffer(b"".join(blob or b"" for (blob,) in rows), "<f4") for name, rows in found.items()},
        **{name: np.array([number for (number,) in rows]) for name, rows in numbers.items()},
    }


def weights_of(run: Path) -> dict[str, np.ndarray]:
    """All tensors of the last checkpoint."""
    checkpoint = Checkpoints(run).newest()
    assert checkpoint is not None
    files = sorted(checkpoint.path.rglob("*.safetensors"))
    return {f"{file.name}: {name}": array for file in files for name, array in load_file(file).items()}


def _query(run: Path, queries: Mapping[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    db = sqlite3.connect(f"{(run / 'run.db').as_uri()}?mode=ro", uri=True)
    try:
        return {name: db.execute(query).fetchall() for name, query in queries.items()}
    finally:
        db.close()


def assert_same_run(found: Path, expected: Path) -> None:
    """Tokens and rewards are the same; gradient norms, metrics and weights agree to rounding."""
    ours = exact_rows(found)
    for table, rows in exact_rows(expected).items():
        assert ours[table] == rows, table
    theirs = metrics_of(expected)
    for (step, name), value in metrics_of(found).items():
        allowed = (
            5e-6 * (theirs[step, name] or 0) if name == "grad_norm" else 1e-4 * abs(theirs[step, name] or 0) + 1e-6
        )
        assert (value is None) == (theirs[step, name] is None), name
        assert abs((value or 0) - (theirs[step, name] or 0)) <= allowed, (step, name)
    theirs = token_values(expected)
    for name, values in token_values(found).items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    weights = weights_of(found)
    for name, array in weights_of(expected).items():
        distance = np.linalg.norm(weights[name].astype(float) - array)
        assert distance <= 1e-5 * np.linalg.norm(array.astype(float)), name
