"""The section `scale`: its flags, its limits, and the names that other launchers have for them."""

import pytest

from grpo.config import Config, Scale, SftConfig
from grpo.config.launcher_names import LAUNCHER_NAMES
from grpo.config.leaf import leaves
from grpo.config.schema import parse_sft, parse_train, validate
from grpo.errors import GrpoError
from helpers.refusals import refusal


def test_flags_leave_out_the_section():
    typed = "--gpus 8 --nodes 2 --join gpu-1:29500 --shard weights --timeout 60 --join-timeout 30 --restarts 0"
    scale = Scale(gpus=8, nodes=2, join="gpu-1:29500", shard="weights", timeout=60, join_timeout=30, restarts=0)
    assert parse_train(typed.split()).scale == scale
    assert parse_sft(["tiny", "rows.jsonl", *typed.split()]).scale == scale
    assert Config().scale == Scale() == Scale(gpus=1, nodes=1, join="", shard="auto", timeout=1800, restarts=3)


def test_the_loss_keeps_its_flag_scale():
    assert parse_train(["--scale", "none"]).loss.scale == "none"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("--gpus 0", "field scale.gpus (command line): must be at least 1; got 0"),
        ("--nodes 0", "field scale.nodes (command line): must be at least 1; got 0"),
        ("--restarts -1", "field scale.restarts (command line): must be 0 or more; got -1"),
        ("--timeout 0", "field scale.timeout (command line): must be above 0; got 0.0"),
        ("--join-timeout 0", "field scale.join_timeout (command line): must be above 0; got 0.0"),
        ("--shard moments", 'field scale.shard (command line): expected one of "auto", "none", "optimizer", "weights"'),
        ("--nodes 2 --join gpu-1", 'field scale.join (command line): has no port; write HOST:PORT, such as "gpu-1:295'),
        ("--nodes 2 --join :29500", "field scale.join (command line): has no port; write HOST:PORT, such as"),
        ("--nodes 2 --join gpu-1:99999", "field scale.join (command line): has no port; write HOST:PORT, such as"),
        ("--join gpu-1:29500", "field scale.join (command line): has no effect on one host; add --nodes N, the number"),
        ("--nproc_per_node 8", "field nproc_per_node (command line): is scale.gpus here; write --scale.gpus 8"),
        ("--nnodes=2", "field nnodes (command line): is scale.nodes here; write --scale.nodes 2"),
        ("--rdzv-endpoint a:1", "field rdzv-endpoint (command line): is scale.join here; write --scale.join a:1"),
        ("--max-restarts 2", "field max-restarts (command line): is scale.restarts here; write --scale.restarts 2"),
        ("--num_processes 8", "field num_processes (command line): set scale.gpus, the processes of one host, and sc"),
        ("--main_process_ip a", "field main_process_ip (command line): set scale.join to HOST:PORT of the first host"),
        ("--machine_rank 1", "field machine_rank (command line): hosts need no number: all but the first meet it at"),
        ("--deepspeed zero3.json", "field deepspeed (command line): not available: scale.shard divides optimizer and"),
        ("--fsdp full_shard", "field fsdp (command line): not available: scale.shard divides optimizer and weights"),
        ("--ddp_timeout 60", "field ddp_timeout (command line): is scale.timeout here; write --scale.timeout 60"),
        ("--zero-stage 3", "field zero-stage (command line): set scale.shard: none, optimizer (moments, as ZeRO-1) or"),
    ],
)
def test_a_mistake_is_answered_in_one_line(typed, answer):
    assert refusal(*typed.split()).startswith(answer)


def test_supervised_fine_tuning_has_the_same_answers():
    def sft(*typed: str) -> str:
        return refusal("tiny", "rows.jsonl", *typed, parse=parse_sft)

    assert sft("--gpus", "0") == "field scale.gpus (command line): must be at least 1; got 0"
    assert "has no port" in sft("--nodes", "2", "--join", "gpu-1")
    with pytest.raises(GrpoError, match=r"^field scale\.join: has no effect on one host"):
        validate(SftConfig(model="tiny", data="rows.jsonl", scale={"join": "gpu-1:29500"}))


@pytest.mark.parametrize("name", LAUNCHER_NAMES)
def test_an_answer_names_fields_that_exist(name):
    other = LAUNCHER_NAMES[name]
    assert other.path in leaves(Config).keys() | ({""} if other.why else set())
    assert name not in {path.rpartition(".")[2] for path in leaves(Config)}
