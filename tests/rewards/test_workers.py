"""A reward that hangs, ends, forks, eats memory or shouts costs one completion, and nothing is left of it."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.rewards import Scorer
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool import worker
from grpo.rewards.pool.confine import Limits
from grpo.rewards.pool.descendants import descendants
from grpo.rewards.pool.invoke import Outcome, Request, as_number
from grpo.rewards.pool.workers import Workers
from grpo.types import Completion, Group, Problem

UNRULY = str(Path(__file__).parents[1] / "helpers/unruly.py")
PROBLEM = Problem("p", "say something", "")
SECONDS = 2.0


def reward(name: str) -> FunctionReward:
    return FunctionReward(Spec(UNRULY, name, 1.0))


@pytest.fixture(scope="module", params=["unruly", "batch"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Of a reward that is called for each completion, and of one that is called for the whole group."""
    limits = Limits(seconds=SECONDS, memory=1 << 28, processes=32, workers=2)
    pool = Workers([reward(request.param)], limits)
    yield pool
    pool.close()


def outcomes(workers: Workers, *texts: str) -> list[Outcome]:
    [[rows]] = workers.start([Request(PROBLEM, texts)])()
    return rows


def value(outcome: Outcome) -> float | None:
    [number] = outcome.parts.values()
    return number


@pytest.mark.parametrize(
    ("text", "fault", "why"),
    [
        ("raise", "failure", "ValueError: no such luck"),
        ("interrupt", "failure", 'KeyboardInterrupt: by itself (File "'),
        ("unprintable", "failure", "Unprintable: <exception str() failed> (File "),
        ("sleep", "timeout", "no result after 2 s"),
        ("exit", "crash", "its process exited with 3"),
        ("quit", "crash", "SystemExit: 4"),
        ("allocate", "crash", "MemoryError"),
        ("print", "timeout", "no result after 2 s"),
        ("segfault", "crash", "its process was killed by SIGSEGV"),
        ("scribble", "crash", "its process was killed by SIGKILL"),
        ("forge", "crash", "its process was killed by SIGKILL"),
    ],
)
def test_what_goes_wrong_costs_one_completion(workers: Workers, text: str, fault: str, why: str) -> None:
    before, bad, after = outcomes(workers, "a", text, "abc")
    assert (value(before), value(after)) == (1.0, 3.0)
    assert (before.fault, after.fault) == ("", "")
    assert (bad.fault, dict(bad.parts)) == (fault, {})
    assert why in bad.why
    assert len(bad.why) < 10_000


def test_an_alarm_that_a_call_left_ends_no_other() -> None:
    """As a checker does that limits its time by `signal.alarm`, and raises before it clears it."""
    pool = Workers([reward("unruly")], Limits(seconds=5.0, workers=1))
    try:
        assert [(row.fault, value(row)) for row in outcomes(pool, "alarm", "wait")] == [("", 5.0), ("", 4.0)]
    finally:
        pool.close()


def test_a_fork_bomb_costs_one_completion(workers: Workers) -> None:
    before, bad, after = outcomes(workers, "a", "fork", "abc")
    assert (value(before), value(after)) == (1.0, 3.0)
    # Where the trainer is not root the limit is higher, and a slow machine may not come to it in time.
    assert (bad.fault, "BlockingIOError" in bad.why) == ("crash", True) or (os.geteuid() and bad.fault == "timeout")


def test_every_completion_gets_its_own_outcome(workers: Workers) -> None:
    """Whatever mixture of faults the groups hold, and however often workers are replaced meanwhile."""
    expected = {"a": (1.0, ""), "bb": (2.0, ""), "none": (None, ""), "raise": ("failure",), "exit": ("crash",)}
    rng = random.Random(7)
    groups = [Request(PROBLEM, tuple(rng.choices(list(expected), k=rng.randrange(6)))) for _ in range(60)]
    [found] = workers.start(groups)()
    for answers, rows in zip(groups, found, strict=True):
        reported = [(row.fault,) if row.fault else (value(row), "") for row in rows]
        assert reported == [expected[text] for text in answers.texts]


def test_quick_calls_share_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are made again where the worker ends before it is sent; who ended it is known all the same."""
    reported: list[list[int]] = []

    class Line:
        jobs: ClassVar[list[bytes]] = [pickle.dumps((0, Request(PROBLEM, ("a", "raise", "bb", "ccc", "d")), False))]

        def recv_bytes(self) -> bytes:
            if not self.jobs:
                raise EOFError
            return self.jobs.pop()

        def send_bytes(self, message: bytes) -> None:
            reported.append([row for row, _ in json.loads(message)["outcomes"]])

    unruly = reward("unruly")
    unruly.load()
    place = bytearray(4)
    for name in ("setsid", "dup2", "_exit"):
        monkeypatch.setattr(worker.os, name, lambda *_: None)
    monkeypatch.setattr(worker, "confine", lambda limits: None)
    monkeypatch.setattr(worker.Leftovers, "remain", lambda self: False)  # this process has the pools of other tests
    monkeypatch.setattr(worker, "SECONDS_BETWEEN_MESSAGES", 3600.0)
    worker.work(Line(), 0, [unruly], Limits(), place)  # type: ignore[arg-type]
    assert reported == [[0, 1], [2, 3, 4]], "after a fault, and at the end"
    assert int.from_bytes(place, "little") == 4


def test_a_traceback_leads_to_the_line(workers: Workers) -> None:
    [bad] = outcomes(workers, "raise")
    line = Path(UNRULY).read_text().splitlines().index('        raise ValueError("no such luck")') + 1
    assert f'unruly.py", line {line}, in unruly' in bad.why


def test_none_means_that_it_does_not_apply(workers: Workers) -> None:
    [bad] = outcomes(workers, "none")
    assert (value(bad), bad.fault) == (None, "")


def test_nothing_is_left_of_a_bomb_or_an_orphan(workers: Workers, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    bomb, orphan = outcomes(workers, "fork", f"orphan{note}")
    assert bomb.fault in ("crash", "timeout")
    assert orphan.fault == "timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert len(descendants(workers.process.pid)) <= workers.limits.workers


def test_the_dead_do_not_count_as_processes(workers: Workers) -> None:
    """Each of the two workers may have 32 at once, and runs more programs than that, one after another."""
    for _ in range(100):
        [done] = outcomes(workers, "leave")
        assert (done.fault, value(done)) == ("", 5.0)


@pytest.mark.parametrize("kind", ["child", "daemon", "zombie"])
def test_processes_that_a_call_left_do_not_count_against_the_next(workers: Workers, tmp_path: Path, kind: str) -> None:
    """Each of the two workers may have 32 at once; a call leaves one, and a group of 8 calls is one job."""
    notes = [[f"{kind}{tmp_path}/{group}-{row}" for row in range(8)] for group in range(12)]
    [found] = workers.start([Request(PROBLEM, tuple(texts)) for texts in notes])()
    for texts, rows in zip(notes, found, strict=True):
        assert [(row.fault, value(row)) for row in rows] == [("", float(len(text))) for text in texts]
    left = [int(note.read_text()) for note in tmp_path.iterdir()]
    assert len(left) == 96
    wait_until(lambda: not any(alive(pid) for pid in left))


def test_a_process_that_the_file_started_stays(tmp_path: Path) -> None:
    """Every worker can use it, and none ends it, however often workers are replaced."""
    (tmp_path / "helped.py").write_text(
        "import os, subprocess, sys\n"
        "HELPER = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "def helper(problem, text):\n"
        "    if text == 'exit':\n"
        "        os._exit(1)\n"
        "    os.kill(HELPER.pid, 0)\n"
        "    return float(HELPER.pid)\n"
    )
    pool = Workers([FunctionReward(Spec(str(tmp_path / "helped.py"), "helper", 1.0))], Limits(workers=1))
    try:
        pids = {value(outcomes(pool, "exit", "")[1]) for _ in range(3)}
        [pid] = pids
        assert alive(int(pid or 0))
    finally:
        pool.close()
    wait_until(lambda: not alive(int(pid or 0)))


def test_the_others_go_on_while_one_hangs() -> None:
    pool = Workers([reward("unruly")], Limits(seconds=3600, workers=2))
    try:
        pool.start([Request(PROBLEM, ("sleep",))])
        others = pool.start([Request(PROBLEM, ("a", "bb"))] * 50)
        assert [[value(row) for row in rows] for rows in others()[0]] == [[1.0, 2.0]] * 50
    finally:
        pool.close()


def test_batches_overlap_and_come_back_in_any_order(workers: Workers) -> None:
    first = workers.start([Request(PROBLEM, ("a",))])
    second = workers.start([Request(PROBLEM, ("ab", "abc")), Request(PROBLEM, ())])
    assert [[value(row) for row in rows] for rows in second()[0]] == [[2.0, 3.0], []]
    assert value(first()[0][0][0]) == 1.0


def test_a_large_batch_does_not_block(workers: Workers) -> None:
    """More than any socket holds, in both directions."""
    long = "x" * 100_000
    finish = workers.start([Request(PROBLEM, (long, "raise"))] * 40)
    another = workers.start([Request(PROBLEM, (long,))] * 40)
    assert [value(rows[0]) for rows in finish()[0]] == [100_000.0] * 40
    assert [value(rows[0]) for rows in another()[0]] == [100_000.0] * 40


def test_a_killed_supervisor_is_replaced() -> None:
    pool = Workers([reward("unruly")], Limits(seconds=5.0, workers=1))
    try:
        pool.ready()
        finish = pool.start([Request(PROBLEM, ("abc",))])
        os.kill(pool.process.pid, signal.SIGKILL)
        assert value(finish()[0][0][0]) == 3.0
    finally:
        pool.close()


def test_a_reward_that_kills_the_supervisor_stops_the_run() -> None:
    pool = Workers([reward("patricide")], Limits(seconds=5.0, workers=1))
    try:
        with pytest.raises(GrpoError, match="the process that scores patricide was killed twice"):
            outcomes(pool, "abc")
    finally:
        pool.close()


def test_nothing_outlives_a_killed_trainer(tmp_path: Path) -> None:
    program = f"""
from grpo.rewards.pool.invoke import Request
from grpo.rewards.pool.confine import Limits
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.workers import Workers
from grpo.types import Problem
workers = Workers([FunctionReward(Spec({UNRULY!r}, "unruly", 1.0))], Limits(seconds=3600, workers=2))
workers.start([Request(Problem("p", "", ""), ("orphanpid",)), Request(Problem("p", "", ""), ("sleep",))])
print(workers.process.pid, flush=True)
input()
"""
    trainer = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    supervisor = int(trainer.stdout.readline())
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    everyone = [supervisor, *descendants(supervisor)]
    assert int((tmp_path / "pid").read_text()) in everyone
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: not any(alive(pid) for pid in everyone))


def test_a_supervisor_that_still_loads_ends_with_its_trainer(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "import os, subprocess, sys, threading\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'import os; os.setsid(); open(0).read()'], "
        "stdin=subprocess.PIPE)\n"
        "open('pids', 'w').write(f'{os.getpid()} {helper.pid}\\n')\n"
        "threading.Event().wait()\n"
        "def f(problem, text): return 0.0\n"
    )
    program = """
from grpo.rewards.pool.confine import Limits
from grpo.rewards.functions import FunctionReward, Spec
from grpo.rewards.pool.workers import Workers
workers = Workers([FunctionReward(Spec("endless.py", "f", 1.0))], Limits(workers=1))
input()
"""
    trainer = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    everyone = [int(pid) for pid in pids.read_text().split()]
    assert all(alive(pid) for pid in everyone)
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: not any(alive(pid) for pid in everyone))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_it_printed_is_told_with_its_end() -> None:
    pool = Workers([reward("loud")], Limits(workers=1))
    try:
        [bad] = outcomes(pool, "a")
        assert bad.why == "its process exited with 1\nprinted: …before the end\n"
    finally:
        pool.close()


def test_no_torch_and_none_of_the_trainers_threads_come_along(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(
        "import os, sys\n"
        "def torch_loaded(problem, text):\n    return float('torch' in sys.modules)\n"
        "def threads(problem, text):\n    return float(len(os.listdir('/proc/self/task')))\n"
    )
    names = ("torch_loaded", "threads")
    pool = Workers([FunctionReward(Spec(str(tmp_path / "look.py"), name, 1.0)) for name in names], Limits(workers=1))
    try:
        loaded, threads = (rows[0][0] for rows in pool.start([Request(PROBLEM, ("",))])())
        assert (value(loaded), value(threads)) == (0.0, 1.0)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def other(problem, text): pass", "has no function f; it has other"),
        ("def f(): pass", "takes (); write (problem, text) for one"),
        ("x = 1\nraise RuntimeError('not today')", "line 2: RuntimeError: not today"),
        ("def f(:", "line 1: SyntaxError"),
        ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
        ("import os; os._exit(7)", "ended its process with 7"),
    ],
)
def test_what_cannot_be_loaded_is_told(tmp_path: Path, code: str, says: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    pool = Workers([FunctionReward(Spec(str(file), "f", 1.0))], Limits(workers=1))
    try:
        with pytest.raises(GrpoError) as caught:
            pool.ready()
        assert says in str(caught.value)
    finally:
        pool.close()


def test_numbers_of_all_kinds() -> None:
    assert as_number(np.float32(0.5)) == as_number(torch.tensor(0.5)) == as_number(torch.tensor([0.5])) == 0.5
    assert as_number(np.zeros(2)) is as_number(torch.zeros(2)) is as_number(None) is as_number(float("-inf")) is None


def group_of(*texts: str) -> Group:
    nothing = np.zeros(0)
    return Group(PROBLEM, nothing, tuple(Completion(text, nothing, nothing, "stop") for text in texts), 0)


class Hanging:
    """A task of a person's own; it is not trusted, so it is scored in workers."""

    name = "hanging"

    def score(self, problem: Problem, text: str) -> dict[str, float | None]:
        if text == "sleep":
            time.sleep(3600)
        return {"length": float(len(text))}


def test_a_task_that_is_not_trusted_is_scored_in_workers() -> None:
    with Scorer(Hanging(), scoring=Scoring(seconds=SECONDS, workers=1)) as scorer:  # type: ignore[arg-type]
        [group] = scorer.score([group_of("abc", "sleep", "a")])
        assert [completion.reward for completion in group.completions] == [3.0, 0.0, 1.0]
        assert group.completions[1].why == "timeout in task hanging: no result after 2 s"
        pending = scorer.submit([group_of("ab")])
        assert pending.collect()[0].completions[0].reward == 2.0


def test_a_task_class_of_a_script_is_scored_in_workers() -> None:
    class Local(Hanging):
        """Cannot be imported by another process: it is sent by value."""

        def score(self, problem: Problem, text: str) -> dict[str, float | None]:
            return {"elsewhere": float(os.getpid() != trainer)}

    trainer = os.getpid()
    with Scorer(Local(), scoring=Scoring(workers=1)) as scorer:  # type: ignore[arg-type]
        [group] = scorer.score([group_of("abc")])
        assert group.completions[0].reward == 1.0
        assert scorer.assumptions == []


def test_a_task_that_cannot_be_pickled_is_scored_here_and_says_so() -> None:
    task = Hanging()
    task.lock = threading.Lock()  # type: ignore[attr-defined]
    with Scorer(task) as scorer:  # type: ignore[arg-type]
        [group] = scorer.score([group_of("abc")])
        assert group.completions[0].reward == 3.0
        [note] = scorer.assumptions
        assert note.startswith("task hanging is scored in the trainer's process")
        assert "cannot pickle '_thread.lock' object" in note
        assert scorer.workers is None
