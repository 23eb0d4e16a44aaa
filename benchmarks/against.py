"""Seconds of a step in several checkouts of the code, in turn on the same machine.

git worktree add ../old COMMIT
python benchmarks/against.py ../old . --recipe recipes/smollm2-135m.toml [--rounds 5] [--steps 5] [--field value ...]

Each checkout trains in a process of its own, with its own benchmarks/recipes.py: random weights, rewards that are
noise, every completion at full length. In every round one after the other makes --steps steps while the others wait;
a GPU must hold all of them. The median of the rounds' medians counts. A checkout that is named twice shows how much the
same code differs. Flags of `grpo train` change fields of the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WARM_UP = 3
"""Steps before the first round: they compile kernels and capture graphs."""


def train(arguments: argparse.Namespace, changes: list[str]) -> None:
    """Trains in this process. After the first steps, and after each round, it reports and waits for a line."""
    sys.path.insert(0, str(arguments.checkouts[0] / "benchmarks"))
    import recipes
    import torch

    from grpo.training.loop import loop
    from grpo.training.session import Session

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(0.97 / arguments.together)
    header = recipes.read_header(arguments.recipe)
    assert header, f"{arguments.recipe}: its second line does not name a shape"
    total = WARM_UP + arguments.rounds * arguments.steps
    with (
        recipes.random_weights(arguments.shape or header[1], header[2]) as model,
        tempfile.TemporaryDirectory() as runs,
    ):
        session = Session.start(recipes.make_config(arguments.recipe, model, total, runs, changes))
        session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # no checkpoints
        record, steps, done = session.record, [], 0
        begin = time.perf_counter()

        def timed(step: int, groups: Any, metrics: Any, phases: Any) -> None:
            nonlocal begin, done
            record(step, groups, metrics, phases)
            if on_gpu:
                torch.cuda.synchronize()
            steps.append({"step": time.perf_counter() - begin, **phases})
            done += 1
            if done >= WARM_UP and (done - WARM_UP) % arguments.steps == 0:
                session.recorder.wait()
                peak = torch.cuda.max_memory_allocated() if on_gpu else 0
                print(json.dumps({"steps": steps, "peak": peak, "micro": session.policy.token_budget}), flush=True)
                steps.clear()
                sys.stdin.readline()
            begin = time.perf_counter()

        session.record = timed  # type: ignore[method-assign]
        with session.recorded():
            loop(session)


class Checkout:
    """A process that trains with the code of one checkout."""

    def __init__(self, folder: Path, together: int):
        places = [str(folder / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        own = ["--train", str(folder), "--together", str(together)]
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], *own]
        self.folder = folder
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.rounds: list[dict[str, Any]] = []

    def report(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"against.py: {self.folder}: training failed; its error is above")
        return json.loads(line)

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def summary(self) -> dict[str, Any]:
        phases = self.rounds[0]["steps"][0]
        rounds = {
            name: [statistics.median(one[name] for one in each["steps"]) for each in self.rounds] for name in phases
        }
        return {
            "checkout": str(self.folder),
            "rounds": [round(seconds, 5) for seconds in rounds["step"]],
            "medians": {name: round(statistics.median(each), 5) for name, each in rounds.items()},
            "peak": self.rounds[-1]["peak"],
            "micro": self.rounds[-1]["micro"],
        }


def compare(folders: Sequence[Path], rounds: int) -> list[dict[str, Any]]:
    """Summaries, each with its ratio to the first."""
    checkouts = [Checkout(folder, len(folders)) for folder in folders]
    for checkout in checkouts:
        checkout.report()  # of the first steps, which do not count
    for number in range(rounds):
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            checkout.go_on()
            checkout.rounds.append(checkout.report())
    for checkout in checkouts:
        checkout.go_on()
    for checkout in checkouts:
        checkout.process.wait()
    found = [checkout.summary() for checkout in checkouts]
    first = found[0]["medians"]["step"]
    return [{**each, "ratio": round(each["medians"]["step"] / first, 4)} for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, help="folders of the repository, two or more")
    parser.add_argument("--recipe", type=Path, required=True, help="its second line names a shape")
    parser.add_argument("--shape", default="", help="replaces the recipe's shape")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each checkout")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--together", type=int, help=argparse.SUPPRESS)
    arguments, changes = parser.parse_known_args()
    if arguments.train:
        arguments.checkouts = [arguments.train]
        train(arguments, changes)
        return
    if len(arguments.checkouts) < 2:
        parser.error("name two checkouts, such as ../old and .")
    found = compare(arguments.checkouts, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{arguments.recipe.stem}, {arguments.rounds} rounds of {arguments.steps} steps each, medians")
    for row in found:
        medians = ", ".join(f"{name} {seconds:.4f}" for name, seconds in row["medians"].items())
        rounds = " ".join(f"{seconds:.4f}" for seconds in row["rounds"])
        peak = f", {row['peak'] / 2**30:.1f} GiB" if row["peak"] else ""
        print(f"  {row['checkout']}: {medians} s, ratio {row['ratio']} (rounds {rounds}){peak}, micro {row['micro']}")


if __name__ == "__main__":
    main()
