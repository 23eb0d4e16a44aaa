"""Kills a process that only writes the record, again and again, and looks at what is left each time. Loads no torch.

    python tests/helpers/kill_the_store.py FOLDER KILLS SEED

Each writer opens the run, makes the last step again (as a resumed run does), goes on, and tells every step that
`Run.record` has returned from. After each kill: the record opens, SQLite finds nothing wrong, every step told is
there, no step is missing before the last, and every step is whole.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import numpy as np

from grpo.record.store import Run
from grpo.types import Completion, Group, Problem

GROUPS, SIZE = 3, 4


def groups(step: int) -> list[Group]:
    noise = np.random.default_rng(step)

    def completion() -> Completion:
        tokens = noise.integers(0, 1000, 20)
        logprobs = noise.normal(size=20).astype(np.float32)
        return Completion(str(tokens), tokens, logprobs, "stop", reward=float(tokens[0]), advantages=logprobs)

    problems = [Problem(f"train/{step}/{index}", "1+1=", "2") for index in range(GROUPS)]
    return [Group(p, np.arange(4), tuple(completion() for _ in range(SIZE)), step) for p in problems]


def metrics(step: int) -> dict[str, float]:
    return {"loss": step / 8, "kl": step / 3, "tokens": float(step)}


def write(folder: Path, told: int) -> None:
    run = Run.open(folder, "job") if (folder / "job").exists() else Run.create(folder, "job", kind="grpo", config={})
    step = run.last_step() or 0
    while True:
        if run.differences(step, groups(step), metrics(step)):
            os._exit(3)  # made again, and not the same
        run.record(step, groups(step), metrics(step), {"rollout": 0.1}, token_groups=2)
        os.write(told, step.to_bytes(8, "little"))
        if step % 5 == 0:
            run.record_eval(step, {"accuracy": 0.5}, groups(step)[:1])
        step += 1


def check(folder: Path, told: list[int]) -> int:
    """How many steps there are."""
    if not (folder / "job").exists():
        assert told == []
        return 0
    with Run.open(folder, "job") as run:
        assert [tuple(row) for row in run._db.execute("PRAGMA integrity_check")] == [("ok",)]
        assert run._db.execute("PRAGMA foreign_key_check").fetchall() == []
        rows = run.metrics()
        assert [row["step"] for row in rows] == list(range(len(rows))), "a step is missing"
        assert not told or max(told) < len(rows), "a step was told and is not there"
        for row in rows[-3:]:  # earlier ones were looked at after earlier kills
            step = row.pop("step")
            assert row == metrics(step)
            assert [len(group["completions"]) for group in run.groups(step)] == [SIZE] * GROUPS
            assert len(run.token_arrays(step)) == 2 * SIZE
        for row in run.evals():
            assert [len(group["completions"]) for group in run.eval_groups(row["step"])] == [SIZE]
        summary = run.summary()
        assert summary["steps"] == len(rows)
        assert summary["completions"] == len(rows) * GROUPS * SIZE
        return len(rows)


def main(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    steps = 0
    for kill in range(kills):
        creating = kill < kills // 10
        if not creating and not (folder / "job").exists():
            Run.create(folder, "job", kind="grpo", config={}).close()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            write(folder, writer)
        os.close(writer)
        if kill % 2:
            # However slow the machine, every other kill comes after at least one step.
            select.select([reader], [], [])
        time.sleep(rng.uniform(0, 0.1 if creating else 0.05))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        with os.fdopen(reader, "rb") as stream:
            numbers = stream.read()
        told = [int.from_bytes(numbers[i : i + 8], "little") for i in range(0, len(numbers), 8)]
        before, steps = steps, check(folder, told)
        assert steps >= before, "steps were lost"
    print(f"{kills} kills, {steps} steps")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
