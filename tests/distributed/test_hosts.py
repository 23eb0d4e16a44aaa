"""Two hosts train one model: the walk-through of docs/scale.md, typed as it is there, and its failures one by one.

Hosts are network namespaces, which need root.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo.cli.main import main
from grpo.config.schema import parse_train
from grpo.distributed.world import World
from grpo.errors import GrpoError
from grpo.training.resume import check_same_inputs
from helpers.docs import DOCS, table_rows
from helpers.faults import findings, last_step, status
from helpers.hosts import Host, eventually, two_hosts, why_not
from helpers.trainer import assert_same, contents

PAGE = (DOCS / "scale.md").read_text().split("### A walk-through on one machine")[1].split("\n## ")[0]
SET_UP, ENTER, COMMAND = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
[SECOND_SAYS] = re.findall(r"^```\n((?:grpo: .*\n)+)```$", PAGE, re.MULTILINE)
FIRST_SAYS = [row[2].strip("`") for row in table_rows(PAGE)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts(SET_UP, tmp_path_factory.mktemp("hosts")) as pair:
        yield pair


@pytest.fixture(scope="module")
def undisturbed(hosts: tuple[Host, Host]) -> dict[str, Any]:
    """What the walk-through records without a failure."""
    first, second = hosts
    terminals = [host.type(COMMAND) for host in (second, first)]  # in any order
    assert [terminal.code() for terminal in terminals] == [0, 0], terminals[1].text
    assert terminals[0].text == SECOND_SAYS
    assert terminals[1].reports() == ["waiting for 2 hosts at 10.77.0.1:29500"]
    assert list(second.disk.iterdir()) == [terminals[0].log]
    assert status(first.disk / "runs/two") == "finished"
    found = contents(first.disk / "runs/two")
    (first.disk / "runs").rename(first.disk / "runs-undisturbed")
    return found


def one_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the same command records without the flags of several hosts."""
    monkeypatch.chdir(folder)
    words = shlex.split(COMMAND)[1:]
    for flag in ("--nodes", "--join"):
        del words[words.index(flag) : words.index(flag) + 2]
    assert main([*words, "--quiet"]) == 0
    return contents(folder / "runs/two")


def test_two_hosts_record_what_one_rank_does(
    undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = one_rank(tmp_path, monkeypatch)
    for table in ("steps", "groups", "prompts", "evals", "eval_groups", "probes"):
        assert undisturbed[table] == alone[table], table
    for table in ("completions", "eval_completions"):
        assert [row[:-2] for row in undisturbed[table]] == [row[:-2] for row in alone[table]], table  # all but logprob
    for found, expected in zip(undisturbed["metrics"], alone["metrics"], strict=True):
        assert found[:2] == expected[:2]
        assert math.isclose(found[2], expected[2], rel_tol=1e-4, abs_tol=1e-7), found


def test_hosts_on_which_another_command_was_typed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    world = World(size=2, hosts=["gpu-1", "gpu-2"])
    monkeypatch.setattr(world, "meet", lambda inputs: told.append(inputs) or told[-1:] * 2)
    check_same_inputs(world, parse_train(shlex.split(COMMAND)[2:]), {"model": {"weights": "5f0c"}})
    monkeypatch.setattr(world, "meet", lambda inputs: [told[0], inputs])
    other = "--nodes 2 --join gpu-1:29500 --gpus 4 --model /models/nano --system.runs elsewhere --quiet"
    same = "--steps 40 --checkpoint-every 2 --evaluation.problems 20"
    check_same_inputs(world, parse_train(f"{other} {same}".split()), {"model": {"weights": "5f0c"}})
    line = r"^rank 1 on gpu-2 differs from rank 0 on gpu-1: lr is 0.1, not 3e-05; model: weights changed; use the same"
    with pytest.raises(GrpoError, match=line):
        check_same_inputs(world, parse_train(f"{other} {same} --lr 0.1".split()), {"model": {"weights": "77ab"}})


def step_of(host: Host) -> int:
    try:
        return last_step(host.disk / "runs/two") or 0
    except GrpoError:  # it is just being created
        return 0


def test_a_run_of_two_hosts_survives_a_killed_rank_a_lost_host_and_a_pulled_cable(
    hosts: tuple[Host, Host], undisturbed: dict[str, Any]
) -> None:
    first, second = hosts
    one, two = first.type(COMMAND), second.type(COMMAND)

    def at_work(more: int = 4) -> None:
        """Until some more steps have been recorded."""
        begun = step_of(first)
        eventually(lambda: step_of(first) >= begun + more, one, two)

    def reported(count: int) -> str:
        """The line of so many failures; the first line is not one."""
        eventually(lambda: len(one.reports()) > count, one, two)
        return one.reports()[count]

    at_work()
    [rank] = [process for process in second.processes() if process.ppid() == two.process.pid]
    rank.send_signal(signal.SIGKILL)
    lines = [reported(1)]

    at_work()
    second.power_off()
    assert two.code() == -signal.SIGKILL
    lines.append(reported(2))
    two = second.type(COMMAND)

    at_work()
    second.plug("down")
    lines.append(reported(3))
    second.plug("up")

    assert (one.code(), two.code()) == (0, 0), f"{one.text}\n{two.text}"
    assert one.reports()[1:] == lines
    for line, said in zip(lines, FIRST_SAYS, strict=True):
        assert line.startswith(f"{said}; ")
        assert re.search("; (restart [123] of 3|all ranks restart) from the last checkpoint", line), line
    assert_same(first.disk / "runs/two", undisturbed)
    assert status(first.disk / "runs/two") == "finished"
    assert findings(first.disk / "runs/two") == []
    assert [host.processes() for host in hosts] == [[], []]
