"""Cost of isolation: a program in the sandbox and outside it, and completions scored by the reward workers.

python benchmarks/sandbox.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.invoke import Request
from grpo.rewards.pool.workers import Workers
from grpo.tasks.checkers.sandbox import _bubble, run_program
from grpo.types import Problem

PROGRAM = "print(sum(map(int, input().split())))"
STDIN = "1 2 3\n"
TIMES = 100
REWARD = "import os\ndef f(problem, text):\n    if text == 'exit':\n        os._exit(1)\n    return float(len(text))\n"


def measure(work: Callable[[], object], times: int = TIMES) -> list[float]:
    """Seconds of each call."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def show(name: str, seconds: list[float]) -> None:
    print(f"{name:44} fastest {1e3 * min(seconds):6.1f} ms   median {1e3 * statistics.median(seconds):6.1f} ms")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {TIMES} times each")
    *_, python = _bubble()
    plain = [python, "-I", "-S", "-B", "-c", PROGRAM]
    assert run_program(PROGRAM, STDIN).output == "6\n"
    plain_seconds = measure(lambda: subprocess.run(plain, input=STDIN.encode(), capture_output=True, check=True))
    sandbox_seconds = measure(lambda: run_program(PROGRAM, STDIN))
    show("program without a sandbox", plain_seconds)
    show("program in the sandbox", sandbox_seconds)
    extra = [1e3 * (of(sandbox_seconds) - of(plain_seconds)) for of in (min, statistics.median)]
    print(f"{'extra time of the sandbox':44} fastest {extra[0]:6.1f} ms   median {extra[1]:6.1f} ms")
    with TemporaryDirectory() as folder:
        file = Path(folder, "mine.py")
        file.write_text(REWARD)
        start = time.perf_counter()
        workers = Workers([FunctionReward(Spec(str(file), "f", 1.0))], Limits())
        workers.ready()
        print(f"{'start of the workers':44} {1e3 * (time.perf_counter() - start):7.1f} ms")
        groups = [Request(Problem("p", "?", ""), ("a",) * 8)] * 16
        workers.start(groups)()
        show("128 completions scored by the workers", measure(lambda: workers.start(groups)()))
        crash = [Request(Problem("p", "?", ""), ("exit",))]
        show("one completion that kills its worker", measure(lambda: workers.start(crash)()))
        workers.close()


if __name__ == "__main__":
    main()
