"""Starting ranks: how they end, restart, stop and print; what is refused. Ranks run a small script without torch."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.config import Config, Scale
from grpo.distributed import worker
from grpo.distributed.launch import launched, python_arguments
from grpo.distributed.slurm import adopt_slurm
from grpo.distributed.world import World, join
from grpo.errors import GrpoError
from helpers.launches import Launch, eventually, start
from helpers.ranks import free_port, listening_at

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from grpo.distributed import worker
from grpo.errors import GrpoError, LostRankError

rank, what, stops = int(os.environ["RANK"]), sys.argv[1], []
worker.end_with_launcher()
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
print(f"rank {rank} of {os.environ['WORLD_SIZE']} prints", flush=True)
print(f"rank {rank} complains", file=sys.stderr, flush=True)
first = not Path(f"seen-{rank}").exists()
Path(f"seen-{rank}").write_text(str(os.getpid()))

if what == "terminal":
    print("a terminal" if sys.stdout.isatty() and sys.stderr.isatty() else "no terminal")
    sys.exit(worker.leave(0))
if what == "code":
    sys.exit(worker.leave(int(sys.argv[2])))
if what == "killed":
    if first and rank == 1:
        worker.remember_run("addition-grpo-001")
        os.kill(os.getpid(), signal.SIGKILL)
    if first:
        time.sleep(60)
    Path("resumed").write_text(worker.run_to_resume())
    sys.exit(worker.leave(0))
if what == "crash" and rank == 1:
    raise ZeroDivisionError("of rank 1")
if what == "lost":
    sys.exit(worker.fail(LostRankError("field scale.timeout: rank 5 on gpu-2 did not answer within 9 s")))
if what == "refused" and rank == 1:
    error = GrpoError("field data: no such file")
    assert worker.prints(error)
    print(f"grpo: {error}", file=sys.stderr)
    sys.exit(worker.fail(error))
if what in ("stop", "stubborn"):
    while len(stops) < (1 if what == "stop" else 2):
        time.sleep(0.02)
        Path(f"told-{rank}-{len(stops)}").touch()
    Path(f"stopped-{rank}").write_text(str(len(stops)))
    sys.exit(worker.leave(130))
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "ranks.py").write_text(SCRIPT)
    return tmp_path / "ranks.py"


def seen(folder: Path, *ranks: int) -> bool:
    return all((folder / f"seen-{rank}").exists() and (folder / f"seen-{rank}").read_text() for rank in ranks)


def is_running(folder: Path, rank: int) -> bool:
    pid = (folder / f"seen-{rank}").read_text()
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def lines_of(launch: Launch) -> list[str]:
    """What the launcher printed to stderr, without the name of this host and what rank 0 printed there."""
    lines = launch.stderr.replace(socket.gethostname(), "HOST").splitlines()
    return [line for line in lines if line != "rank 0 complains"]


def test_ranks_that_end_together_give_their_exit_code_and_only_rank_0_prints(tmp_path: Path, script: Path) -> None:
    launches = {code: start(tmp_path, script, "code", str(code), name=str(code), gpus=3) for code in (0, 2, 130)}
    for code, launch in launches.items():
        assert launch.code() == code
        assert launch.stdout == "rank 0 of 3 prints\n"
        assert launch.stderr == "rank 0 complains\n"


def test_rank_0_has_the_terminal(tmp_path: Path, script: Path) -> None:
    ours, theirs = os.openpty()
    launch = start(tmp_path, script, "terminal", gpus=2, tty=os.ttyname(theirs))
    launch.process.join()
    assert launch.process.exitcode == 0
    os.close(theirs)
    assert os.read(ours, 1000).decode().split("\r\n") == ["rank 0 of 2 prints", "rank 0 complains", "a terminal", ""]
    os.close(ours)


def test_a_killed_rank_restarts_all_and_the_run_goes_on(tmp_path: Path, script: Path) -> None:
    launch = start(tmp_path, script, "killed", gpus=2, restarts=2)
    assert launch.code() == 0
    assert lines_of(launch) == [
        "rank 1 complains",
        "grpo: rank 1 on HOST was killed by SIGKILL; restart 1 of 2 from the last checkpoint",
    ]
    assert (tmp_path / "resumed").read_text() == "addition-grpo-001"


def test_a_crash_is_shown_and_ends_the_run_when_restarts_are_used_up(tmp_path: Path, script: Path) -> None:
    launch = start(tmp_path, script, "crash", gpus=2, restarts=1)
    assert launch.code() == 1
    lines = [line for line in lines_of(launch) if not line.startswith(("  ", "Traceback"))]
    again = ["rank 1 complains", "ZeroDivisionError: of rank 1"]
    assert lines == [
        *again,
        "grpo: rank 1 on HOST ended with exit code 1; restart 1 of 1",
        *again,
        "grpo: rank 1 on HOST ended with exit code 1; restarts used up: 1 of 1",
    ]


def test_a_lost_rank_is_reported_once(tmp_path: Path, script: Path) -> None:
    launch = start(tmp_path, script, "lost", gpus=2, restarts=0)
    assert launch.code() == 1
    line = "grpo: field scale.timeout: rank 5 on gpu-2 did not answer within 9 s; restarts used up: 0 of 0"
    assert lines_of(launch) == [line]


def test_a_rank_that_refuses_its_input_alone_is_shown_and_not_restarted(tmp_path: Path, script: Path) -> None:
    launch = start(tmp_path, script, "refused", gpus=2)
    assert launch.code() == 2
    assert lines_of(launch) == ["rank 1 complains", "grpo: field data: no such file"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_rank_once_and_the_launcher_waits(
    tmp_path: Path, script: Path, number: signal.Signals
) -> None:
    launch = start(tmp_path, script, "stop", gpus=2)
    eventually(lambda: seen(tmp_path, 0, 1))
    launch.signal(number)
    assert launch.code() == 130
    assert [(tmp_path / f"stopped-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    assert lines_of(launch) == []


def test_a_second_signal_stops_at_once(tmp_path: Path, script: Path) -> None:
    launch = start(tmp_path, script, "stubborn", gpus=2)
    eventually(lambda: seen(tmp_path, 0, 1))
    launch.signal(signal.SIGINT)
    eventually(lambda: all((tmp_path / f"told-{rank}-1").exists() for rank in (0, 1)))
    launch.signal(signal.SIGTERM)
    assert launch.code() == 130
    assert [(tmp_path / f"stopped-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    assert not any(is_running(tmp_path, rank) for rank in (0, 1))


def test_two_hosts_meet_and_rank_0_is_on_the_first(tmp_path: Path, script: Path) -> None:
    scale = {"nodes": 2, "join": f"127.0.0.1:{free_port()}", "join_timeout": 30}
    first = start(tmp_path, script, "code", "130", name="first", gpus=2, **scale)
    eventually(lambda: is_listening(scale["join"]))
    second = start(tmp_path, script, "code", "130", name="second", gpus=1, **scale)
    assert (first.code(), second.code()) == (130, 130)
    assert (first.stdout, second.stdout) == ("rank 0 of 3 prints\n", "")
    waiting = f"grpo: waiting for 2 hosts at {scale['join']}"
    assert lines_of(first) == [waiting]
    assert lines_of(second) == [
        waiting,
        "grpo: this host has rank 2 of 3; the terminal of the first host shows the run",
    ]


def test_a_host_that_is_killed_and_returns_goes_on_with_the_others(tmp_path: Path, script: Path) -> None:
    scale = {"nodes": 2, "join": f"127.0.0.1:{free_port()}", "join_timeout": 30}
    first = start(tmp_path, script, "stop", name="first", **scale)
    eventually(lambda: is_listening(scale["join"]))
    second = start(tmp_path, script, "stop", name="second", **scale)
    eventually(lambda: seen(tmp_path, 0, 1))
    for lost in (second, first):
        before = [(tmp_path / f"seen-{rank}").read_text() for rank in (0, 1)]
        lost.signal(signal.SIGKILL)
        back = start(tmp_path, script, "stop", name=f"{lost.name}-again", **scale)
        for rank, pid in enumerate(before):
            eventually(lambda rank=rank, pid=pid: (tmp_path / f"seen-{rank}").read_text() not in (pid, ""))
        first, second = (first, back) if lost is second else (back, second)
    second.signal(signal.SIGTERM)
    first.signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (130, 130)


def test_hosts_tell_each_other_what_happened_to_a_rank(tmp_path: Path, script: Path) -> None:
    """The first host's terminal has the line, although the rank was on the second."""
    cases = {
        "crash": (1, "rank 1 on HOST ended with exit code 1"),
        "refused": (2, "rank 1 on HOST: field data: no such file"),
    }
    for what, (code, line) in cases.items():
        scale = {"nodes": 2, "join": f"127.0.0.1:{free_port()}", "join_timeout": 30, "restarts": 0}
        first = start(tmp_path, script, what, name=f"first-{what}", **scale)
        eventually(lambda place=scale["join"]: is_listening(place))
        second = start(tmp_path, script, what, name=f"second-{what}", **scale)
        assert (first.code(), second.code()) == (code, code)
        assert lines_of(first)[1:] == [f"grpo: {line}"]


def is_listening(place: str) -> bool:
    host, _, port = place.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_launcher_of_one_host_is_closed_to_others_and_its_ranks_do_not_outlive_it(
    tmp_path: Path, script: Path
) -> None:
    launch = start(tmp_path, script, "wait", gpus=2)
    eventually(lambda: seen(tmp_path, 0, 1))
    assert listening_at(launch.process.pid) == {"127.0.0.1"}
    variables = psutil.Process(int((tmp_path / "seen-1").read_text())).environ()
    folder = Path(variables[worker.LAUNCHER].partition(" ")[2])
    assert folder.stat().st_mode & 0o777 == 0o700
    launch.signal(signal.SIGKILL)
    eventually(lambda: not any(is_running(tmp_path, rank) for rank in (0, 1)))
    assert not folder.exists()


def test_a_command_that_a_rank_starts_is_not_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in worker.RANK_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv(worker.LAUNCHER, f"{os.getpid()} {tmp_path}")  # it runs, and is not this process's parent
    worker.end_with_launcher()
    assert worker.launcher() is None
    assert not {*worker.RANK_VARIABLES} & {*os.environ}
    assert tmp_path.exists()


def test_places_where_hosts_cannot_meet(tmp_path: Path, script: Path) -> None:
    with socket.socket() as other_program:
        other_program.bind(("127.0.0.1", 0))
        other_program.listen()
        taken = f"127.0.0.1:{other_program.getsockname()[1]}"
        cases = {
            # No host has this address; it is reserved for documentation.
            "192.0.2.1:9": r"nobody listens at 192\.0\.2\.1:9 after 1 s \(.+\); start the same command on that",
            "no-such-host.invalid:9": "host no-such-host.invalid is not known here: .+; check the name",
            f"127.0.0.1:{free_port()}": None,
            taken: f"no launcher of grpo answers at {taken}; another program has that port; choose another one",
        }
        launches = {
            place: start(tmp_path, script, "code", "0", name=f"h{i}", nodes=2, join=place, join_timeout=1.0)
            for i, place in enumerate(cases)
        }
        for place, why in cases.items():
            alone = "field scale.nodes: not all 2 hosts came to .+ within 1 s; start the same command on each host"
            assert launches[place].code() == 2
            waiting, line = lines_of(launches[place])
            assert waiting == f"grpo: waiting for 2 hosts at {place}"
            assert re.match(f"grpo: {f'field scale.join: {why}' if why else alone}", line)


def test_ranks_are_started_only_where_this_process_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(Scale(), "cpu", ["train"]) is None
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launched(Scale(gpus=2), "cpu", ["train"]) is None


def test_ranks_import_from_where_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `grpo` does not search the current folder, in which a file grpo.py would be found first."""
    (tmp_path / "grpo.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    for first, flags in ((sys.exec_prefix, ["-P"]), ("", []), (str(tmp_path), [])):
        monkeypatch.setattr("sys.path", [first, *sys.path])
        assert python_arguments(["--version"]) == [*flags, "-m", "grpo", "--version"]
    for flags, code in ((["-P"], 0), ([], 1)):
        command = [sys.executable, *flags, "-m", "grpo", "--version"]
        assert subprocess.run(command, capture_output=True).returncode == code


def test_what_cannot_be_started_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrpoError, match=r"^field scale\.join: missing; write --join HOST:PORT, the same on each host"):
        launched(Scale(nodes=2), "cpu", ["train"])
    with pytest.raises(GrpoError, match=r"torchrun --nproc-per-node 2 script\.py, or train with grpo train --gpus 2$"):
        join(Config(scale={"gpus": 2}).scale, "cpu")
    with monkeypatch.context() as half_set:
        half_set.setenv("WORLD_SIZE", "2")
        half_set.setenv("RANK", "0")
        with pytest.raises(GrpoError, match=r"^the environment has WORLD_SIZE=2 without MASTER_ADDR, MASTER_PORT; "):
            join(Scale(), "cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    line = r"^field scale\.gpus: this host has 1 GPU, not 2; lower it, or let all ranks share one \(--device cuda:0\)$"
    with pytest.raises(GrpoError, match=line):
        launched(Scale(gpus=2), "auto", ["train"])


TASK = {
    **{"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
    **{"SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_ID": "61234"},
}


def test_under_torchrun_each_host_prints_an_error_until_ranks_have_met_and_then_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)

    def printing() -> list[tuple[int, int]]:
        found = []
        waits.clear()
        for rank, local_rank in ((0, 0), (1, 1), (2, 0), (3, 1)):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(local_rank))
            if worker.prints(GrpoError("field data: no such file")):
                found.append((rank, local_rank))
            assert worker.fail(GrpoError("field data: no such file")) == 2
            assert len(waits) == rank + 1 - len(found)  # those that print end first
        return found

    assert printing() == [(0, 0), (2, 0)]
    monkeypatch.setattr("grpo.distributed.world._joined", World(size=4))
    assert printing() == [(0, 0)]


def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that it is removed again
        monkeypatch.delenv(name)
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    adopt_slurm(Scale())  # one run for each task
    adopt_slurm(Scale(gpus=2, nodes=2, join="gpu07:29500"))  # one launcher for each task
    assert "RANK" not in os.environ
    with pytest.raises(GrpoError, match=r"8 on each of 2 nodes, and srun has started 4 tasks; start one task for each"):
        adopt_slurm(Scale(gpus=8, nodes=2))
    assert launched(Scale(gpus=2, nodes=2), "cpu", ["train"]) is None
    ours = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")}
    assert ours == {
        **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu07"},
    }
