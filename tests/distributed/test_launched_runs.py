"""Runs of two ranks, started by the command line: killed, stopped, refused; and the same run under torchrun."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grpo.record.store import Run
from helpers.faults import ALL
from helpers.launches import eventually

SETTINGS = [
    *("--model", "nano", "--steps", "4", "--prompts-per-step", "2", "--group-size", "4", "--max-new-tokens", "24"),
    *("--evaluation.problems", "4", "--evaluation.every", "0", "--checkpoint-every", "1", "--system.threads", "1"),
]


def started(folder: Path, *command: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=environment, text=True, **pipes)


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    return {int(each.environ()["RANK"]): each for each in psutil.Process(launcher.pid).children()}


def weights(run: Path) -> str:
    return hashlib.sha256((run / "checkpoints/step-000004/model/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.skipif(not ALL, reason="part of make faults")
def test_a_run_whose_rank_is_killed_goes_on_and_ends_as_under_torchrun(tmp_path: Path) -> None:
    launcher = started(tmp_path, "grpo", "train", *SETTINGS, "--gpus", "2")
    eventually(lambda: bool(list(tmp_path.glob("runs/*/checkpoints/step-000001"))))
    ranks_of(launcher)[1].kill()
    printed, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert errors.splitlines()[-1].endswith("was killed by SIGKILL; restart 1 of 3 from the last checkpoint")
    assert "failed" not in printed
    # "--": torchrun would take --run for one of its own options.
    torchrun = ("torch.distributed.run", "--nproc-per-node", "2", "-m", "--", "grpo", "train", *SETTINGS)
    other = started(tmp_path, *torchrun, "--run", "other")
    _, errors = other.communicate(timeout=120)
    assert other.returncode == 0, errors
    [run] = [path for path in (tmp_path / "runs").iterdir() if path.name != "other"]
    assert weights(run) == weights(tmp_path / "runs" / "other")


def test_a_stopped_run_ends_with_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    launcher = started(tmp_path, "grpo", "train", *SETTINGS, "--steps", "500", "--gpus", "2", "--run", "mine")
    eventually(lambda: (tmp_path / "runs/mine/checkpoints/step-000001").exists())
    ranks = ranks_of(launcher)
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 130, errors
    assert errors.count("stopping after this step") == 1
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks.values())
    with Run.open(tmp_path / "runs", "mine", readonly=True) as run:
        assert run.status == "stopped"
        last = run.last_step()
    assert last is not None
    assert (tmp_path / f"runs/mine/checkpoints/step-{last + 1:06d}").exists()


def test_an_error_of_all_ranks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launcher = started(tmp_path, "grpo", "train", *SETTINGS, "--gpus", "2", "--device", "cuda")
    printed, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 2
    assert printed == ""
    assert errors == "grpo: field system.device: cuda: no GPU was found; use cpu or auto\n"


@pytest.mark.parametrize("command", ["eval nano", "sft nano rows.jsonl", "compare --algorithms grpo,dapo"])
def test_other_commands_have_the_same_flags(tmp_path: Path, command: str) -> None:
    for flags, line in (
        ("--gpus 0", "field scale.gpus (command line): must be at least 1; got 0"),
        ("--nodes 2 --join host", "field scale.join (command line): has no port; write HOST:PORT"),
    ):
        refused = started(tmp_path, "grpo", *command.split(), *flags.split())
        _, errors = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert errors.startswith(f"grpo: {line}")
