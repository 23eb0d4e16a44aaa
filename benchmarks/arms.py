"""Runs one trainer ("arm") on the same work in its own process: grpo, TRL with HF `generate`, or TRL with vLLM.

All arms get the same problems in the same order, the same rewards, batch, learning rate and loss: TRL's defaults (mean
over tokens, advantages divided by the group's standard deviation, clipping at 0.2, AdamW with betas 0.9 and 0.999, no
weight decay), a constant learning rate without warm-up, and float32 weights with bfloat16 matmuls on a GPU. Other
settings keep their defaults; TRL's include gradient checkpointing. --trl changes them.

step.py and learn.py start this script. It writes one line of JSON per step to a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flags import exit_with, natural, positive

NEEDS = {"grpo": ("grpo",), "trl": ("trl", "datasets"), "trl-vllm": ("trl", "datasets", "vllm")}
"""Packages that each arm imports."""
MAX_TURNS = 4
"""Most turns of a completion that calls tools."""
REFUSED = 3
"""Exit code of an arm that has printed in one line why it cannot run."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of every arm."""

    model: str
    task: str
    device: str
    prompts: int
    group: int
    new: int
    steps: int
    seconds: float = 0.0
    """Time limit of training, checked after each step from the fourth on; 0: no limit."""
    lr: float = 1e-5
    beta: float = 0.0
    seed: int = 1
    threads: int = 0
    token_budget: int = 0
    """grpo only; 0: its default."""
    gradient_checkpointing: bool = False
    """grpo only. TRL's default is on."""
    prompt_tokens: int = 0
    """Length of the task "noise"'s prompts, which are random; 0: another task."""
    micro_batch: int = 0
    """TRL only: completions per micro-batch; 0: all of a step."""
    trl: tuple[str, ...] = ()
    """Settings of TRL's GRPOConfig as name=value, the value in JSON."""
    tools: str = ""
    """Function that completions may call: file.py:function; empty: completions are single turns."""
    heldout: int = 0
    """Held-out problems of an evaluation; 0: no evaluations."""
    every: int = 0
    """Steps between evaluations, whose time is not counted; 0: one before the first step."""

    def is_finished(self, steps: int, seconds: float) -> bool:
        return steps >= self.steps or (0 < self.seconds <= seconds and steps >= 4)


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Adds the options that step.py and learn.py share."""
    parser.add_argument("--model", help="name, folder or Hugging Face id, as in grpo train")
    parser.add_argument("--task", default="", help="default: the model's task, or addition")
    parser.add_argument("--prompts", type=positive, help="prompts per step")
    parser.add_argument("--group", type=positive, help="completions per prompt")
    parser.add_argument("--new", type=positive, help="most new tokens of a completion")
    parser.add_argument("--steps", type=positive, help="training steps")
    parser.add_argument("--lr", type=float, default=1e-5, help="learning rate")
    parser.add_argument("--beta", type=float, default=0.0, help="weight of the KL divergence")
    parser.add_argument("--device", default="", help="cpu or cuda; default: cuda if available")
    parser.add_argument(
        "--threads", type=natural, default=0, help="CPU threads; default: grpo's choice, TRL one per core"
    )
    parser.add_argument("--token-budget", type=natural, default=0, help="grpo: tokens per micro-batch; default: grpo's")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="grpo: turn it on, as TRL's default")
    parser.add_argument("--recompute", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--micro-batch", type=natural, default=0, help="TRL: completions per micro-batch; default: all")
    parser.add_argument("--trl", action="append", default=[], metavar="NAME=VALUE",
                        help="setting of TRL's GRPOConfig, the value in JSON; repeatable")  # fmt: skip
    parser.add_argument("--peer", default="none", help="trl, trl-vllm, both separated by a comma, or none")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    parser.set_defaults(**defaults)


def parse_work(arguments: argparse.Namespace, **more: Any) -> tuple[list[str], Work]:
    """The arms and their work. Exits with one line if a peer is unknown or not installed."""
    if arguments.recompute:
        exit_with("--recompute: is now --gradient-checkpointing")
    arms = ["grpo", *(peer for peer in arguments.peer.split(",") if peer and peer != "none")]
    for arm in arms:
        if arm not in NEEDS:
            exit_with(f"--peer {arm}: unknown; use trl, trl-vllm, both separated by a comma, or none")
        for package in NEEDS[arm]:
            if importlib.util.find_spec(package) is None:
                exit_with(f"--peer {arm}: {package} cannot be imported; install it, or put its folder on PYTHONPATH")
    from grpo.config.models import DEFAULT_TASK

    names = [
        "model",
        "prompts",
        "group",
        "new",
        "steps",
        "lr",
        "beta",
        "threads",
        "token_budget",
        "gradient_checkpointing",
        "micro_batch",
    ]
    settings = {name: getattr(arguments, name) for name in names} | {"trl": tuple(arguments.trl)} | more
    task = arguments.task or DEFAULT_TASK.get(arguments.model, "addition")
    return arms, Work(task=task, device=arguments.device or default_device(), **settings)


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def run_in_process(arm: str, work: Work, file: Path) -> list[dict[str, Any]]:
    """The steps of an arm, which are also written to `file`. Trainers in one process would share memory, threads and
    settings."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unfinished = Path(folder, "steps")
        command = [sys.executable, "-W", "ignore", __file__, arm, json.dumps(asdict(work)), str(unfinished)]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode == REFUSED:
            sys.exit(2)
        if done.returncode:
            exit_with(f"{arm} failed; its error is above")
        file.write_text(unfinished.read_text())  # only now: an incomplete file would count as a finished arm
    return read_steps(file)


def read_steps(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def summarize(steps: Sequence[Mapping[str, Any]], tflops: float) -> dict[str, Any]:
    """Medians over the steps after the first few, which warm up. MFU of the whole step, and of the update only."""
    settled = steps[min(5, max(len(steps) // 3, min(1, len(steps) - 1))) :]
    phases = {name: statistics.median(step["phases"][name] for step in settled) for name in settled[0]["phases"]}
    seconds = statistics.median(step["seconds"] for step in settled)
    flops = {name: statistics.fmean(step["flops"][name] for step in settled) for name in settled[0]["flops"]}
    return {
        "step_seconds": round(seconds, 4),
        "phases": {name: round(value, 4) for name, value in phases.items()},
        "mean_length": round(statistics.fmean(step["length"] for step in settled), 2),
        "reward": round(statistics.fmean(step["reward"] for step in settled), 4),
        "updated": round(statistics.fmean(step["updated"] for step in settled), 3),
        "peak_gb": round(max(step["peak"] for step in steps) / 2**30, 2),
        "mfu": round(sum(flops.values()) / seconds / tflops / 1e12, 4) if tflops else None,
        "mfu_update": round(flops["update"] / phases["update"] / tflops / 1e12, 4) if tflops else None,
        "start_seconds": steps[0]["start_seconds"],
        "steps": len(settled),
        "load": steps[-1]["load"],
    }


def forward_flops(shape: Any, groups: Sequence[tuple[int, Sequence[int]]]) -> float:
    """FLOPs of one forward pass: two per weight and token. A group is (prompt tokens, lengths of its completions).

    Padding is not counted. A prompt that the trainer computes once is counted once.
    """
    from grpo.model.plan import compute

    return compute.forward_flops(shape, compute.PackedSize.of(groups))


class StepLog:
    """Writes one line of JSON per step to a file, and prints a line to stderr."""

    def __init__(self, arm: str, work: Work, path: Path):
        self.arm, self.work, self.file = arm, work, path.open("w")
        self.created, self.count, self.spent = time.perf_counter(), 0, 0.0
        self.start_seconds, self.decoding = 0.0, ""
        self.heldout: float | None = None

    def begin(self, heldout: float | None = None) -> None:
        """Training begins, or goes on: the time since the last step is not counted. `heldout`: accuracy that was
        measured in that time."""
        self.last = time.perf_counter()
        self.start_seconds = self.start_seconds or round(self.last - self.created, 2)
        self.heldout = self.heldout if heldout is None else heldout

    def add(
        self,
        reward: float,
        length: float,
        phases: Mapping[str, float],
        flops: Mapping[str, float],
        updated: float = 1.0,
        calls: float = 0.0,
    ) -> bool:
        """Adds a step; returns whether it was the last. `updated`: share of the completions in the update. `calls`:
        tool calls per completion."""
        from grpo.model.device import peak_memory

        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.count, self.spent = self.count + 1, self.spent + seconds
        step = {
            "step": self.count,
            "seconds": seconds,
            "phases": dict(phases),
            "reward": reward,
            "length": length,
            "flops": dict(flops),
            "updated": updated,
            "calls": calls,
            "heldout": self.heldout,
            "decoding": self.decoding,
            "peak": peak_memory(_device(self.work)),
            "start_seconds": self.start_seconds,
            "load": os.getloadavg()[0],
        }
        self.file.write(json.dumps(step) + "\n")
        self.file.flush()
        times = "  ".join(f"{name} {value:.3f}" for name, value in phases.items())
        times += f"  calls {calls:.2f}" if self.work.tools else ""
        times += f"  held out {self.heldout:.3f}" if self.heldout is not None else ""
        self.heldout = None
        print(f"{self.arm:8} step {self.count:>3}  reward {reward:.3f}  length {length:.1f}  {seconds:.3f} s  {times}",
              file=sys.stderr, flush=True)  # fmt: skip
        return self.work.is_finished(self.count, self.spent)


def _device(work: Work) -> Any:
    import torch

    return torch.device(work.device)


def run_grpo(work: Work, log: StepLog) -> None:
    import grpo
    from grpo.config import Config, Episodes, Evaluation, Optimizer, System
    from grpo.config.sections import Loss
    from grpo.errors import GrpoError
    from grpo.model.plan.shape import find_shape
    from grpo.record.events import Callback
    from grpo.training.gradient import contributing

    budget = {"token_budget": work.token_budget} if work.token_budget else {}
    kl = {"beta": work.beta, "kl": "k3_ratio"} if work.beta else {"beta": 0.0}  # TRL's estimator

    class FinishedError(GrpoError):
        """Ends training without the evaluation and checkpoint at the end, which are not part of the work."""

    class Watch(Callback):
        def on_start(self, run: Any, config: Any, first_step: int) -> None:
            self.run, self.config = run, config

        def on_evaluation(self, step: int, row: Any) -> None:
            log.begin(row["accuracy"] if work.heldout else None)

        def on_checkpoint(self, step: int, path: Path) -> None:
            log.begin()

        def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Any]) -> None:
            sampled, updated = (
                [(len(group.prompt_tokens), [done.sequence_length for done in group.completions]) for group in some]
                for some in (groups, contributing(groups, self.config))
            )
            passes = 3 + (1 if work.beta else 0)
            flops = {"rollout": forward_flops(shape, sampled), "update": passes * forward_flops(shape, updated)}
            share = sum(len(lengths) for _, lengths in updated) / (work.prompts * work.group)
            spans = [span for span in self.run.spans() if span["step"] == step]
            phases = {span["name"]: span["seconds"] for span in spans}
            means = metrics["reward_mean"], metrics["length_mean"]
            if log.add(*means, phases, flops, share, metrics.get("calls", 0.0)):
                raise FinishedError("the last step is done")

    shape = find_shape(work.model)
    unchecked_disk = patch("grpo.training.session.check_disk")  # no checkpoint is written
    with unchecked_disk, tempfile.TemporaryDirectory() as runs:
        config = Config(
            model=work.model,
            task=work.task,
            steps=work.steps,
            prompts_per_step=work.prompts,
            group_size=work.group,
            max_new_tokens=work.new,
            lr=work.lr,
            seed=work.seed,
            checkpoint_every=0,
            loss=Loss(aggregate="token", **kl),
            optimizer=Optimizer(warmup_steps=0, adam_beta2=0.999),
            evaluation=Evaluation(every=work.every, problems=work.heldout or 1, probes=0),
            episodes=Episodes(tools=work.tools, max_turns=MAX_TURNS) if work.tools else Episodes(),
            system=System(
                runs=runs,
                device=work.device,
                threads=work.threads,
                gradient_checkpointing=work.gradient_checkpointing,
                **budget,
            ),
        )
        with suppress(FinishedError), noted_decoding(log):
            grpo.train(config, callbacks=[Watch()])


@contextmanager
def noted_decoding(log: StepLog) -> Iterator[None]:
    """Logs how completions are decoded: GraphDecoding is the one with CUDA graphs."""
    from grpo.rollout.builtin import Engine

    decoding_of = Engine._decoding

    def noted(*arguments: Any) -> Any:
        decoding = decoding_of(*arguments)
        log.decoding = type(decoding).__name__
        return decoding

    with patch.object(Engine, "_decoding", noted):
        yield


def main() -> None:
    from grpo.errors import GrpoError

    arm, settings, path = sys.argv[1:]
    given = json.loads(settings)
    work = Work(**(given | {"trl": tuple(given["trl"])}))
    log = StepLog(arm, work, Path(path))
    if work.prompt_tokens:
        from noise import add_noise_task

        add_noise_task(work.prompt_tokens)
    try:
        with log.file:
            if arm == "grpo":
                run_grpo(work, log)
            else:
                from trl_arm import run_trl

                run_trl(work, log, vllm=arm == "trl-vllm")
    except ImportError as error:  # border: packages of others, and the packages they need
        print(f"--peer {arm}: import failed: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(REFUSED)
    except GrpoError as error:  # border: the command line, in a process of its own
        print(f"{arm}: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
