"""The benchmarks' arithmetic, their own trainer, and their messages. The figures are in results.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from grpo.distributed.world import World
from grpo.episodes.template import ConversationTemplate
from grpo.episodes.tools import CallReader, load_tools
from grpo.model.load import load_policy
from grpo.model.plan.compute import PackedSize, model_flops
from grpo.model.plan.shape import SHAPES, Shape
from grpo.rollout.schedule import Room, Schedule
from grpo.tasks import load_task
from helpers import ranks as helpers
from helpers.chats import chat_tokenizer

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import arms  # noqa: E402
import decode  # noqa: E402
import engines  # noqa: E402
import floor  # noqa: E402
import learn  # noqa: E402
import lengths  # noqa: E402
import noise  # noqa: E402
import one_of_many  # noqa: E402
import ranks as ranks_script  # noqa: E402
import scaling  # noqa: E402
import step as step_script  # noqa: E402
import tools as tools_script  # noqa: E402
import trl_arm  # noqa: E402
import update as update_script  # noqa: E402

import rollout as rollout_script  # noqa: E402


def row(step: int, seconds: float, reward: float = 0.0) -> dict[str, object]:
    phases = {"rollout": seconds / 4, "update": 3 * seconds / 4}
    flops = {"rollout": 1e12, "update": 3e12}
    return {"step": step, "seconds": seconds, "phases": phases, "flops": flops, "reward": reward, "length": 10.0,
            "updated": 0.5, "peak": step * 2.0**30, "start_seconds": 7.0, "load": 1.0}  # fmt: skip


def test_flops_by_hand() -> None:
    shape = Shape(vocabulary=10, hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_width=2)
    weights = 2 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8)
    pairs = 6 + 2 * (3 * 2 + 3)  # a prompt of 3 and two completions of 2
    shared = 2 * weights * 7 + 2 * 40 * 4 + 4 * 2 * 4 * pairs
    assert arms.forward_flops(shape, [(3, [2, 2])]) == shared
    repeated = arms.forward_flops(shape, [(3, [2]), (3, [2])])
    assert repeated - shared == 2 * weights * 3 + 4 * 2 * 4 * 6, "the prompt once more"


def update_work(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"prompts": 2, "group": 3, "prompt_len": 4, "new": 6, "uneven": "", **changes})


def test_updated_groups_have_no_padding() -> None:
    """Completions of 6 behind prompts of 4, in micro-batches of at most 16 tokens: two and one a group, each with its
    prompt, and a second group's first piece does not fit beside the last."""
    groups = update_script.random_groups(update_work(), 50)
    assert update_script.packed_size(groups) == PackedSize(44, 36, 2 * (10 + 3 * (24 + 21)))
    found = update_script.padding(groups, 16)
    assert found == {"micro_batches": 4, "padding": 0.0, "repeated": round(8 / 52, 4)}
    uneven = update_script.random_groups(update_work(uneven="geometric", new=600, group=30), 50)
    drawn = [len(done) for group in uneven for done in group.completions]
    assert drawn == lengths.draw_lengths("geometric", 60, 600).tolist()
    found = update_script.padding(uneven, 700)
    assert found["padding"] == 0.0
    assert found["micro_batches"] >= sum(drawn) // 700


def test_flops_of_an_update_by_hand() -> None:
    """Three forward passes; with LoRA two of frozen weights and three of adapters, and three of attention always."""
    shape = Shape(vocabulary=10, hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_width=2)
    size = PackedSize.of([(3, [2, 2])])
    linear, attention = 2 * shape.linear_parameters * 7 + 2 * 40 * 4, 4 * 2 * 4 * 24
    adapters = 2 * 7 * 2 * 5 * (8 + 6 + 6 + 8 + 12 + 12 + 12)
    assert model_flops(shape, size) == 3 * (linear + attention)
    assert model_flops(shape, size, lora=5) == 2 * linear + 3 * (attention + adapters)


def test_first_steps_do_not_count() -> None:
    rows = [row(1, 100.0), row(2, 100.0), *(row(step, 2.0) for step in range(3, 7))]
    found = arms.summarize(rows, tflops=100.0)
    assert found["step_seconds"] == 2.0
    assert found["phases"] == {"rollout": 0.5, "update": 1.5}
    assert found["mfu"] == pytest.approx(4 / 2 / 100)
    assert found["mfu_update"] == pytest.approx(3 / 1.5 / 100)
    assert found["peak_gb"] == 6.0
    assert arms.summarize(rows, tflops=0.0)["mfu"] is None
    assert [arms.summarize(rows[1:last], tflops=0.0)["step_seconds"] for last in (2, 3)] == [100.0, 2.0]


def test_arms_are_compared_on_the_steps_that_all_of_them_made_in_every_round() -> None:
    """Steps get shorter as answers do: 8 of ours beside 4 of a peer's would look faster than they are."""
    ours, peer = ([row(step, 9.0 - step) for step in range(1, last + 1)] for last in (8, 4))
    found = step_script.compare([{"grpo": ours, "trl": peer}, {"grpo": ours[:6], "trl": ours}], 0.0)
    assert {arm: (result["step_seconds"], result["steps"], result["ratio"]) for arm, result in found.items()} == {
        "grpo": (6.0, 3, 1.0),
        "trl": (6.0, 3, 1.0),
    }


def test_an_arm_ends_with_its_steps_or_its_time() -> None:
    work = arms.Work(model="nano", task="", device="cpu", prompts=1, group=2, new=1, steps=10, seconds=60.0)
    assert [work.is_finished(*done) for done in ((10, 1.0), (9, 1.0), (3, 99.0), (4, 60.0))] == [
        True,
        False,
        False,
        True,
    ]


def test_grpo_stops_after_the_last_step(tmp_path: Path) -> None:
    work = arms.Work(model="nano", task="arithmetic:easy", device="cpu", prompts=1, group=2, new=4, steps=2, threads=1)
    log = arms.StepLog("grpo", work, tmp_path / "steps")
    with log.file:
        arms.run_grpo(work, log)
    first, last = arms.read_steps(tmp_path / "steps")
    assert (first["step"], last["step"]) == (1, 2)
    assert set(last["phases"]) == {"rollout", "reward", "update", "record"}
    assert 0 < last["length"] <= 4


def test_random_weights_are_trained_on_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Qwen2 model: transformers loads its tokenizer by its own rules."""
    monkeypatch.setitem(noise.TASKS, "noise", "")  # replaced below; undone at the end
    noise.add_noise_task(7)
    noise.save_random_model("smallest", "cpu", str(tmp_path / "model"))
    work = arms.Work(
        **{"model": str(tmp_path / "model"), "task": "noise", "device": "cpu", "threads": 1, "prompt_tokens": 7},
        **{"prompts": 2, "group": 4, "new": 6, "steps": 2},
    )
    log = arms.StepLog("grpo", work, tmp_path / "steps")
    with log.file:
        arms.run_grpo(work, log)
    steps = arms.read_steps(tmp_path / "steps")
    shape = Shape(vocabulary=512, hidden=64, intermediate=128, layers=2, heads=4, kv_heads=2, head_width=16)
    full = arms.forward_flops(shape, [(7, [6] * 4)] * 2)
    assert [step["flops"]["rollout"] for step in steps] == [full, full], "prompts and completions have these lengths"
    assert sum(step["updated"] for step in steps) > 0, "rewards differ within a group"


def save_chat_model(folder: Path) -> None:
    """Random weights and a tokenizer of bytes with SmolLM2's chat template."""
    tokenizer = chat_tokenizer("smollm2")
    config = transformers.LlamaConfig(
        **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"vocab_size": 320, "eos_token_id": tokenizer.eos_token_id},
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_calls_in_brackets_in_the_prompts_of_the_plain_model(tmp_path: Path) -> None:
    """The model's folder for tools: prompts are the same as without it, and calls are read as the task reads them."""
    save_chat_model(tmp_path / "plain")
    folder = str(tools_script.with_calls(str(tmp_path / "plain"), tmp_path / "model"))
    policy, [tool] = load_policy(folder), load_tools(f"{tools_script.CALCULATOR}:calculate")
    problem = load_task(f"{tools_script.CALCULATOR}:Questions").heldout()[0]
    plain = load_policy(str(tmp_path / "plain")).prompt_tokens(problem)
    policy.tools = [tool.schema]
    assert list(policy.prompt_tokens(problem)) == list(plain)
    template = ConversationTemplate(policy)
    template.check()
    read, rest = CallReader(policy.tools, policy.tokenizer, template.turn_prefix()).read("[964*494]")
    assert ([(call.name, call.arguments) for call in read], rest) == ([("calculate", {"expression": "964*494"})], "")

    work = arms.Work(
        **{"model": folder, "task": f"{tools_script.CALCULATOR}:Questions", "device": "cpu", "threads": 1},
        **{"prompts": 1, "group": 2, "new": 4, "steps": 2, "heldout": 2, "every": 1},
        tools=f"{tools_script.CALCULATOR}:calculate",
    )
    with (log := arms.StepLog("grpo", work, tmp_path / "steps")).file:
        arms.run_grpo(work, log)
    found = tools_script.summary(arms.read_steps(tmp_path / "steps"))
    assert [(calls, heldout) for _, calls, heldout in found["evaluations"]] == [(0, 0), (0, 0)]
    assert found["decoding"] == "StepDecoding"


def test_micro_batches_of_trl() -> None:
    work = arms.Work(
        **{"model": "", "task": "noise", "device": "cuda", "prompts": 64, "group": 8, "new": 640, "steps": 3},
        **{"prompt_tokens": 256, "micro_batch": 32, "trl": ("beta=0.5",)},
    )
    found = trl_arm.trl_settings(work, vllm=True)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"], found["beta"]) == (32, 16, 0.5)
    assert found["vllm_max_model_length"] == 256 + 640 + 64


def test_when_a_reward_is_reached() -> None:
    fast = learn.curve([row(step, 2.0, reward) for step, reward in enumerate([0.0, 0.5, 1.0, 1.0, 1.0, 1.0])], 8)
    assert fast["reward"] == pytest.approx([0.0, 0.25, 0.5, 0.625, 0.7, 0.9])
    assert learn.first_reaching(fast, 0.7) == {"step": 5, "seconds": 10.0, "samples": 40}
    slow = {**fast, "seconds": [3 * second for second in fast["seconds"]]}
    assert learn.compare({"grpo": {"1": fast}, "trl": {"1": slow}}, 0.7)["ratio"] == 3.0
    assert learn.compare({"grpo": {"1": fast}, "trl": {"1": slow}}, 0.95)["ratio"] is None, "nobody got there"


def test_a_former_flag_names_the_new_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["step.py", "--recompute"])
    with pytest.raises(SystemExit, match="2"):
        step_script.main()
    assert capsys.readouterr().err == "step.py: --recompute: is now --gradient-checkpointing\n"


@pytest.mark.parametrize(
    ("module", "flags", "says"),
    [
        (rollout_script, "--new 0", "argument --new: must be a whole number of at least 1; got '0'"),
        (rollout_script, "--group -1", "argument --group: must be a whole number of at least 1; got '-1'"),
        (rollout_script, "--rounds 0", "argument --rounds: must be a whole number of at least 1; got '0'"),
        (rollout_script, "--prompts 0", "argument --prompts: must be a whole number of at least 1; got '0'"),
        (rollout_script, "--threads -1", "argument --threads: must be a whole number of at least 0; got '-1'"),
        (rollout_script, "--dtype foo", "argument --dtype: invalid choice: 'foo'"),
        (rollout_script, "--shape tiny --model nano", "--shape: has no effect beside --model; leave out one of them"),
        (rollout_script, "--model nosuch --device cpu", "field model: unknown model 'nosuch'"),
        (step_script, "--steps 0", "argument --steps: must be a whole number of at least 1; got '0'"),
        (step_script, "--shape tiny --model tiny", "--model: has no effect beside --shape; leave out one of them"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line(
    module: ModuleType, flags: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", *flags.split()])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # of this process, for all tests after it
    with pytest.raises(SystemExit, match="2"):
        module.main()
    *progress, line = capsys.readouterr().err.splitlines()
    assert progress in ([], ["grpo: starting"])
    assert line.startswith(f"script.py: {says}")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group": 1}, "grpo: field group_size: must be at least 2"),
        ({"model": "nosuch"}, 'grpo: field model: no shape "nosuch"'),
        ({"task": "nosuch"}, "grpo: field task: no task 'nosuch'"),
    ],
)
def test_what_an_arm_refuses_is_reported_in_one_line(
    changes: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"model": "nano", "task": "arithmetic:easy", "device": "cpu", "prompts": 1, "group": 2, "new": 2}
    work = arms.Work(**(settings | {"steps": 1} | changes))
    monkeypatch.setattr(sys, "argv", ["arms.py", "grpo", json.dumps(asdict(work)), str(tmp_path / "steps")])
    with pytest.raises(SystemExit, match=str(arms.REFUSED)):
        arms.main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(says)


@pytest.mark.parametrize("script", ["step.py", "learn.py"])
def test_a_missing_peer_is_reported_in_one_line(script: str) -> None:
    command = [sys.executable, "-S", str(BENCHMARKS / script), "--peer", "trl"]  # -S: nothing is installed
    source = Path(arms.__file__).parents[1] / "src"
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(source)}, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{script}: --peer trl: trl cannot be imported; install it, or put its folder on PYTHONPATH\n"


def test_efficiency_by_hand() -> None:
    """Two ranks of a strong scaling take 6 seconds for what one does in 10; of a weak one 12.5 for twice as much."""
    spans = [{"step": step, "name": name, "seconds": 3.0} for step in range(3) for name in ("rollout", "update")]
    metrics = [{"step": step, "tokens": 600.0, "idle/0": 0.25, "idle/1": 0.75} for step in range(3)]
    found = scaling.measurements(spans, metrics, 2)
    assert found == {"seconds": 6.0, "tokens_per_second": 100.0, "idle": 0.5, "waited": 3.0, "steps": [6.0, 6.0]}
    strong = scaling.with_efficiency([{"ranks": 1, "tokens_per_second": 60.0}, {"ranks": 2, **found}])
    assert [row["efficiency"] for row in strong] == [1.0, pytest.approx(10 / 6 / 2)]
    weak = scaling.with_efficiency([{"ranks": 1, "tokens_per_second": 60.0}, {"ranks": 2, "tokens_per_second": 96.0}])
    assert weak[1]["efficiency"] == pytest.approx(10 / 12.5)


def as_rank(world: World, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return ranks_script.on_each_rank(arguments, folder, world)


def test_two_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    """The script for one GPU, here in float32 on CPUs, where rounding is far smaller."""
    arguments = argparse.Namespace(
        **{"shape": "smallest", "device": "cpu", "dtype": "float32", "prompts": 3, "group": 3, "prompt_tokens": 5},
        **{"new": 6, "micro": 64, "updates": 3},
    )
    alone = ranks_script.on_one_rank(arguments, tmp_path)
    assert alone["repeated"] == 0
    assert alone["half"] < 1e-6
    first, second = helpers.ranks(2, as_rank, arguments, tmp_path)
    assert first["gradient"] < 1e-6
    assert first["gradient"] == second["gradient"]
    for mode in first["modes"].values():
        assert mode["drifted"] == [[], [], []]
        assert mode["gap"] < 1e-5
        assert mode["from_replicated"] < 1e-6


def test_one_rank_of_many_holds_what_is_predicted() -> None:
    arguments = argparse.Namespace(
        **{"shape": "smallest", "gpus": 8, "algorithm": "dr_grpo", "dtype": "auto", "prompts_per_step": 16, "steps": 2},
        **{"group_size": 4, "prompt_tokens": 16, "max_new_tokens": 16, "token_budget": 128},
    )
    found = one_of_many.measure(arguments, "optimizer")
    assert len(found["norms"]) == 2, "both steps made an update"
    assert found["ratio"] == pytest.approx(1, abs=0.02)


def test_lengths_are_drawn_once_with_a_mean_of_a_third() -> None:
    assert lengths.draw_lengths("", 3, 128).tolist() == [128, 128, 128]
    for kind in lengths.DISTRIBUTIONS:
        drawn = lengths.draw_lengths(kind, 20_000, 300)
        assert drawn.mean() == pytest.approx(100, rel=0.02)
        assert (drawn.min(), drawn.max()) == (1, {"geometric": 300, "uniform": 199}[kind])
        assert (drawn == lengths.draw_lengths(kind, 20_000, 300)).all()
    geometric = lengths.draw_lengths("geometric", 20_000, 300)
    stays = [(geometric > end + 1).sum() / (geometric > end).sum() for end in (0, 100)]
    assert stays[0] == pytest.approx(stays[1], abs=0.005), "a completion ends with the same chance at every token"


def test_floor_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of two completions, of 3 tokens and 1, after a prompt of 10. Multiplying one row takes as long as
    reading the weights; the first step has two."""
    monkeypatch.setattr(floor, "MATMUL_RATE", floor.MEMORY_BANDWIDTH)
    traffic = floor.Traffic(weights=1000.0, keys=10.0)
    own = 0 + 1 + 2  # keys that the three tokens of the first completion read; the second one's only token reads none
    seconds = {
        "per_row": (3 * 1000 + 10 * (own + 4 * 10)) / floor.MEMORY_BANDWIDTH,
        "shared": (3 * 1000 + 10 * (own + 3 * 10)) / floor.MEMORY_BANDWIDTH,
        "multiplied": (4 * 1000 + 10 * (own + 3 * 10)) / floor.MEMORY_BANDWIDTH,
    }
    found = floor.floors(traffic, np.array([[3, 1]]), prompt_tokens=10)
    assert found == pytest.approx({name: 4 / each for name, each in seconds.items()})


@pytest.mark.parametrize(
    ("shape", "prompts", "group", "prompt_tokens", "new", "kind", "mean", "per_row", "shared", "multiplied"),
    [
        ("smollm2-135m", 64, 16, 64, 128, "", 128.0, 1.34e6, 2.37e6, 1.42e6),
        ("qwen2.5-1.5b", 32, 16, 256, 4096, "geometric", 1411.0, 73_200, 81_700, 74_400),
        ("qwen2.5-7b", 32, 8, 256, 2048, "geometric", 681.2, 20_000, 21_000, 20_650),
    ],
)
def test_floors_of_the_measured_work(
    shape: str,
    prompts: int,
    group: int,
    prompt_tokens: int,
    new: int,
    kind: str,
    mean: float,
    per_row: float,
    shared: float,
    multiplied: float,
) -> None:
    drawn = lengths.draw_lengths(kind, prompts * group, new)
    assert drawn.mean() == pytest.approx(mean, abs=0.05)
    found = floor.floors(floor.Traffic.of(SHAPES[shape]), drawn.reshape(prompts, group), prompt_tokens)
    assert found == pytest.approx({"per_row": per_row, "shared": shared, "multiplied": multiplied}, rel=0.005)


def test_grpo_gives_every_completion_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Triton's interpreter, with rows that leave and others that take their place."""
    pytest.importorskip("triton")
    from grpo.rollout import builtin, schedule
    from grpo.rollout.cuda import sampler
    from helpers.interpreted import InterpretedDecoding

    monkeypatch.setattr(sampler.TokenSampler, "start", sampler.TokenSampler.start)  # patched below; undone at the end
    monkeypatch.setattr(schedule.Schedule, "look", schedule.Schedule.look)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr(builtin.Engine, "_can_use_graphs", lambda *_: True)
    monkeypatch.setattr(builtin, "Engine", partial(builtin.Engine, max_concurrent=3))
    work = argparse.Namespace(
        **{"shape": "smallest", "model": "", "device": "cpu", "dtype": "float32", "uneven": "geometric"},
        **{"prompts": 2, "group": 3, "prompt_tokens": 5, "new": 9},
    )
    engine = engines.grpo_engine(work)
    drawn = engines.lengths_of(work)
    assert len(set(drawn.tolist())) > 2
    assert engine.sample() == drawn.sum()
    assert engine.dropped() == 0
    assert set(engine.phases()) == {"prefill", "decode", "host"}


def test_rows_of_the_decoding_benchmark_have_all_their_blocks() -> None:
    """7 rows on 4 prompts of 70 tokens, two blocks each; 130 own keys and the replays are three blocks."""
    pytest.importorskip("triton")
    from shapes import random_policy

    from helpers.interpreted import InterpretedDecoding

    policy = random_policy("smallest", "cpu", "float32")
    bench = decode.Bench(policy, prompts=4, prompt_tokens=70, rows=[7, 2], keys=[130], kind=InterpretedDecoding)
    assert [bench.groups(rows) for rows in (7, 2, 9)] == [(4, 2), (2, 1), (3, 3)]
    traffic = floor.Traffic(weights=1000.0, keys=10.0)
    seconds = (1000 + 10 * (7 * 130 + 4 * 70)) / floor.MEMORY_BANDWIDTH
    assert bench.floor(traffic, 7, 130) == pytest.approx(seconds)
    with torch.no_grad():
        bench.start(7)
    decoding = bench.decoding
    blocks = decoding.cache.tables.own_NT[decoding.batch.owner_B[:7].long()]
    assert blocks.shape == (7, 3)
    assert (blocks > 0).all()
    assert (decoding.cache.tables.prompt_PT > 0).all()


def test_dropped_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows have two blocks each, the prompt one, and one is free: the youngest row makes room for the others."""
    monkeypatch.setattr(Schedule, "look", Schedule.look)  # patched below; undone at the end
    drops = engines.count_drops()
    schedule = Schedule([10], 3, 64 * 3, Room(blocks=1 + 3 * 2 + 1, rows=3))
    looks = [schedule.look([])]
    for _ in range(5):
        schedule.advance(32)
        looks.append(schedule.look([]))
    assert drops == [len(look.dropped) for look in looks]
    assert sum(drops) == 1


def test_generate_gives_every_completion_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of 3 rows, each until its longest completion ends."""
    work = argparse.Namespace(
        **{"shape": "smallest", "model": "", "device": "cpu", "uneven": "geometric"},
        **{"prompts": 2, "group": 4, "prompt_tokens": 5, "new": 12},
    )
    row_bytes = 2 * 2 * (2 * 16) * 4 * (5 + 12)  # keys and values, 2 layers, 2 heads of 16, float32, tokens
    monkeypatch.setattr("grpo.model.device.free_memory", lambda _: 3.5 * row_bytes / engines.SHARE_OF_FREE_MEMORY)
    engine = engines.hf_engine(work)
    assert engine.sample() == engines.lengths_of(work).sum()
