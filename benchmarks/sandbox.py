"""What confining costs: seconds per program in the sandbox beside the same program without it, and per completion in
the workers. `python benchmarks/sandbox.py`"""

from __future__ import annotations

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
GIVEN = "1 2 3\n"
TIMES = 100
REWARD = "import os\ndef f(problem, text):\n    if text == 'exit':\n        os._exit(1)\n    return float(len(text))\n"


def seconds(work: Callable[[], object], times: int = TIMES) -> list[float]:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def told(name: str, taken: list[float]) -> None:
    print(f"{name:44} fastest {1e3 * min(taken):6.1f} ms   median {1e3 * statistics.median(taken):6.1f} ms")


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {TIMES} times each")
    *_, python = _bubble()
    plain = [python, "-I", "-S", "-B", "-c", PROGRAM]
    assert run_program(PROGRAM, GIVEN).output == "6\n"
    alone = seconds(lambda: subprocess.run(plain, input=GIVEN.encode(), capture_output=True, check=True))
    confined = seconds(lambda: run_program(PROGRAM, GIVEN))
    told("program without a sandbox", alone)
    told("program in the sandbox", confined)
    more = [1e3 * (of(confined) - of(alone)) for of in (min, statistics.median)]
    print(f"{'sandbox, on top':44} fastest {more[0]:6.1f} ms   median {more[1]:6.1f} ms")
    with TemporaryDirectory() as folder:
        file = Path(folder, "mine.py")
        file.write_text(REWARD)
        start = time.perf_counter()
        workers = Workers([FunctionReward(Spec(str(file), "f", 1.0))], Limits())
        workers.ready()
        print(f"{'workers, until ready (in the background)':44} {1e3 * (time.perf_counter() - start):7.1f} ms")
        groups = [Request(Problem("p", "?", ""), ("a",) * 8)] * 16
        workers.start(groups)()
        told("128 completions by the workers", seconds(lambda: workers.start(groups)()))
        crash = [Request(Problem("p", "?", ""), ("exit",))]
        told("one completion that ends its worker", seconds(lambda: workers.start(crash)()))
        workers.close()


if __name__ == "__main__":
    main()
