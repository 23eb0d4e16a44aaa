"""Groups are scored in order of arrival and collected in order of their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grpo.config import Scoring
from grpo.rewards import Pending, Scorer
from grpo.tasks import load_task
from grpo.types import Completion, Group, Problem

LOGGED = """
from pathlib import Path

def logged(problem, text):
    with Path({log!r}).open("a") as log:
        log.write(problem.id + " ")
    return float(text)
"""


def group_of(number: int) -> Group:
    """Its completions are 10 x number, which is correct, and one more."""
    nothing = np.zeros(0, dtype=np.int64)
    texts = (str(10 * number), str(10 * number + 1))
    completions = tuple(Completion(text, nothing, nothing, "stop") for text in texts)
    return Group(Problem(str(number), "?", texts[0]), nothing, completions, 0)


def test_groups_arrive_in_any_order_and_are_collected_in_order(tmp_path: Path) -> None:
    """One reward of a worker and one of the trainer's own process: each score belongs to its group."""
    log = tmp_path / "log"
    (tmp_path / "mine.py").write_text(LOGGED.format(log=str(log)))
    rewards, task = f"task*100, {tmp_path}/mine.py:logged", load_task("arithmetic")
    with Scorer(task, rewards, Scoring(seconds=10, workers=1)) as scorer:
        pending = Pending(scorer)
        pending.add({3: group_of(3), 1: group_of(1)})
        first = pending.waits[0]()
        assert log.read_text().split() == ["3", "3", "1", "1"], "scored before the others have been sampled"
        pending.waits[0] = lambda: first
        pending.add({})
        pending.add({2: group_of(2)})
        pending.add({0: group_of(0)})
        assert [group.problem.id for group in pending.groups] == ["0", "1", "2", "3"]
        scored = pending.collect()
    assert log.read_text().split() == ["3", "3", "1", "1", "2", "2", "0", "0"]
    assert [group.problem.id for group in scored] == ["0", "1", "2", "3"]
    assert [[done.text for done in group.completions] for group in scored] == [
        [str(10 * number), str(10 * number + 1)] for number in range(4)
    ]
    assert [[done.reward for done in group.completions] for group in scored] == [
        [100 + 10 * number, 10 * number + 1] for number in range(4)
    ]
    assert [[done.correct for done in group.completions] for group in scored] == [[True, False]] * 4
