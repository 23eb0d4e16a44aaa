"""One trainer on one piece of work, in a process of its own: ours, TRL with Hugging Face's `generate`, TRL with vLLM.

All arms get the same problems in the same order, the same rewards, batch, learning rate and loss: TRL's defaults (mean
over tokens, advantages by the group's deviation, clipping at 0.2, AdamW with betas 0.9 and 0.999, no decay), a constant
learning rate without warm-up, and float32 weights that compute in bfloat16 on a GPU. What a user would leave alone is
left alone: TRL recomputes activations (gradient_checkpointing) unless told otherwise with --trl.

step.py and learn.py start it; every step becomes a line of JSON in a file.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NEEDS = {"grpo": ("grpo",), "trl": ("trl", "datasets"), "trl-vllm": ("trl", "datasets", "vllm")}
"""What each arm imports."""
CANNOT_IMPORT = 3
"""Exit code of an arm that lacks a package."""


@dataclass(frozen=True, kw_only=True)
class Work:
    model: str
    task: str
    device: str
    prompts: int
    group: int
    new: int
    steps: int
    seconds: float = 0.0
    """Training ends after the step in which this much time has passed, but not before the fourth; 0: no limit."""
    lr: float = 1e-5
    beta: float = 0.0
    seed: int = 1
    threads: int = 0
    token_budget: int = 0
    """Ours; 0: the default."""
    recompute: bool = False
    """Ours: activations are computed again in the backward pass, as TRL does unless told otherwise."""
    trl: tuple[str, ...] = ()
    """Settings of GRPOConfig as name=value, the value in JSON."""

    def is_enough(self, steps: int, seconds: float) -> bool:
        return steps >= self.steps or (0 < self.seconds <= seconds and steps >= 4)


def add_work(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """The options that step.py and learn.py share."""
    parser.add_argument("--model", help="as in grpo train: a name, folder or Hugging Face id")
    parser.add_argument("--task", default="", help="default: the model's own, or else addition")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--new", type=int, help="most tokens of a completion")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--beta", type=float, default=0.0, help="weight of the KL divergence")
    parser.add_argument("--device", default="", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--threads", type=int, default=0, help="default: one per core, for our small models one")
    parser.add_argument("--token-budget", type=int, default=0, help="ours: tokens per micro-batch; default: grpo's own")
    parser.add_argument("--recompute", action="store_true", help="ours: recompute activations, as TRL does by default")
    parser.add_argument("--trl", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting of TRL's GRPOConfig, the value in JSON; may be repeated")  # fmt: skip
    parser.add_argument("--peer", default="none", help="trl, trl-vllm, both with a comma, or none")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    parser.set_defaults(**defaults)


def chosen(arguments: argparse.Namespace, **more: Any) -> tuple[list[str], Work]:
    """The arms and their work; ends with one line where a peer cannot be run here."""
    arms = ["grpo", *(peer for peer in arguments.peer.split(",") if peer and peer != "none")]
    for arm in arms:
        if arm not in NEEDS:
            stop(f"--peer {arm}: no such peer; use trl, trl-vllm, both with a comma, or none")
        for package in NEEDS[arm]:
            if importlib.util.find_spec(package) is None:
                stop(f"--peer {arm}: {package} cannot be imported; install it, or put its folder on PYTHONPATH")
    from grpo.config.models import DEFAULT_TASK

    names = ("model", "prompts", "group", "new", "steps", "lr", "beta", "threads", "token_budget", "recompute")
    settings = {name: getattr(arguments, name) for name in names} | {"trl": tuple(arguments.trl)} | more
    task = arguments.task or DEFAULT_TASK.get(arguments.model, "addition")
    return arms, Work(task=task, device=arguments.device or default_device(), **settings)


def stop(line: str) -> None:
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
    sys.exit(2)


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def run_apart(arm: str, work: Work, rows: Path) -> list[dict[str, Any]]:
    """The arm's rows. A process of its own: trainers fight over memory, threads and settings."""
    rows.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unfinished = Path(folder, "rows")
        command = [sys.executable, "-W", "ignore", __file__, arm, json.dumps(asdict(work)), str(unfinished)]
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode == CANNOT_IMPORT:
            sys.exit(2)  # it has said why
        if done.returncode:
            stop(f"{arm} failed; its own words are above")
        rows.write_text(unfinished.read_text())  # a half-made file would pass for a finished arm
    return read(rows)


def read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.read_text().splitlines()]


def summary(rows: Sequence[Mapping[str, Any]], tflops: float) -> dict[str, Any]:
    """Medians over the steps after the first few, which warm up. MFU: of the whole step and of the update alone."""
    settled = rows[min(5, len(rows) // 3) :]
    phases = {name: statistics.median(row["phases"][name] for row in settled) for name in settled[0]["phases"]}
    seconds = statistics.median(row["seconds"] for row in settled)
    made = {name: statistics.fmean(row["operations"][name] for row in settled) for name in settled[0]["operations"]}
    return {
        "step_seconds": round(seconds, 4),
        "phases": {name: round(value, 4) for name, value in phases.items()},
        "mean_length": round(statistics.fmean(row["length"] for row in settled), 2),
        "reward": round(statistics.fmean(row["reward"] for row in settled), 4),
        "updated": round(statistics.fmean(row["updated"] for row in settled), 3),
        "peak_gb": round(max(row["peak"] for row in rows) / 2**30, 2),
        "mfu": round(sum(made.values()) / seconds / tflops / 1e12, 4) if tflops else None,
        "mfu_update": round(made["update"] / phases["update"] / tflops / 1e12, 4) if tflops else None,
        "start_seconds": rows[0]["start_seconds"],
        "steps": len(settled),
        "load": rows[-1]["load"],
    }


def operations(shape: Any, groups: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Of one forward pass over (prompt tokens, lengths of the completions after it), two per weight and token.

    Padding is not counted; a prompt that the trainer computes once is counted once.
    """
    total = 0.0
    for prompt, lengths in groups:
        new = sum(lengths)
        pairs = prompt * (prompt + 1) / 2 + sum(length * prompt + length * (length + 1) / 2 for length in lengths)
        total += 2.0 * shape.linear_parameters * (prompt + new) + 2.0 * shape.embedding * new
        total += 4.0 * shape.layers * shape.query_width * pairs
    return total


class Rows:
    """Writes one line for each step, and tells of it on stderr."""

    def __init__(self, arm: str, work: Work, path: Path):
        self.arm, self.work, self.file = arm, work, path.open("w")
        self.born, self.count, self.spent = time.perf_counter(), 0, 0.0

    def begin(self) -> None:
        """Everything is loaded; from here time counts as training."""
        self.start_seconds = round(time.perf_counter() - self.born, 2)
        self.last = time.perf_counter()

    def add(
        self, reward: float, length: float, phases: Mapping[str, float], made: Mapping[str, float], share: float = 1.0
    ) -> bool:
        """Whether this was the last step. `share`: of the completions, those that the update computed with."""
        from grpo.model.device import peak_memory

        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.count, self.spent = self.count + 1, self.spent + seconds
        row = {
            "step": self.count,
            "seconds": seconds,
            "phases": dict(phases),
            "reward": reward,
            "length": length,
            "operations": dict(made),
            "updated": share,
            "peak": peak_memory(_device(self.work)),
            "start_seconds": self.start_seconds,
            "load": os.getloadavg()[0],
        }
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        told = "  ".join(f"{name} {value:.3f}" for name, value in phases.items())
        print(f"{self.arm:8} step {self.count:>3}  reward {reward:.3f}  length {length:.1f}  {seconds:.3f} s  {told}",
              file=sys.stderr, flush=True)  # fmt: skip
        return self.work.is_enough(self.count, self.spent)


def _device(work: Work) -> Any:
    import torch

    return torch.device(work.device)


class EnoughError(Exception):
    """Ends our training where the work ends, without the held-out evaluation and checkpoint that would follow."""


def ours(work: Work, rows: Rows) -> None:
    import grpo
    from grpo.config import Config, Evaluation, Optimizer, System
    from grpo.config.presets import Loss
    from grpo.model.plan.shape import find_shape
    from grpo.record.events import Callback
    from grpo.training.gradient import contributing

    budget = {"token_budget": work.token_budget} if work.token_budget else {}
    divergence = {"beta": work.beta, "kl": "k3_ratio"} if work.beta else {"beta": 0.0}  # as TRL estimates it

    class Watch(Callback):
        def on_start(self, run: Any, config: Any, first_step: int) -> None:
            self.run, self.config = run, config

        def on_evaluation(self, step: int, row: Any) -> None:
            rows.begin()

        def on_step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Any]) -> None:
            sampled, taken = (
                [(len(group.prompt_tokens), [len(done) for done in group.completions]) for group in some]
                for some in (groups, contributing(groups, self.config))
            )
            passes = 3 + (1 if work.beta else 0)
            made = {"rollout": operations(shape, sampled), "update": passes * operations(shape, taken)}
            share = sum(len(lengths) for _, lengths in taken) / (work.prompts * work.group)
            spans = [span for span in self.run.spans() if span["step"] == step]
            phases = {span["name"]: span["seconds"] for span in spans}
            if rows.add(metrics["reward_mean"], metrics["length_mean"], phases, made, share):
                raise EnoughError

    shape = find_shape(work.model)
    with tempfile.TemporaryDirectory() as runs:
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
            loss=Loss(aggregate="token", **divergence),
            optimizer=Optimizer(warmup_steps=0, adam_beta2=0.999),
            evaluation=Evaluation(every=0, problems=1, probes=0),
            system=System(
                runs=runs, device=work.device, threads=work.threads, gradient_checkpointing=work.recompute, **budget
            ),
        )
        with suppress(EnoughError):
            grpo.train(config, callbacks=[Watch()])


def trl(work: Work, rows: Rows, vllm: bool = False) -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING", TRL_EXPERIMENTAL_SILENCE="1", WANDB_MODE="disabled",
    )  # fmt: skip
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from transformers.utils.logging import disable_progress_bar
    from trl import GRPOConfig, GRPOTrainer

    from grpo.model.hub import locate_model
    from grpo.model.plan.shape import find_shape
    from grpo.tasks import load_task

    disable_progress_bars()
    disable_progress_bar()
    torch.set_num_threads(work.threads or os.cpu_count() or 1)
    folder, task, shape = locate_model(work.model), load_task(work.task), find_shape(work.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = [problem for step in range(work.steps) for problem in task.draw(step, work.prompts, work.seed)]

    def asked(problem: Any) -> Any:
        talks = problem.messages and tokenizer.chat_template
        return [dict(message) for message in problem.messages] if talks else problem.prompt

    dataset = Dataset.from_list([{"prompt": asked(problem), "row": i} for i, problem in enumerate(problems)])
    phases: dict[str, float] = {}
    seen: dict[str, Any] = {}

    def reward(completions: Sequence[Any], completion_ids: Sequence[Any], row: Sequence[int], **_: Any) -> list[float]:
        texts = [done if isinstance(done, str) else done[0]["content"] for done in completions]
        parts = [task.score(problems[i], text) for i, text in zip(row, texts, strict=True)]
        seen["rewards"] = [sum(part for part in of.values() if part is not None) for of in parts]
        seen["lengths"] = [len(ids) for ids in completion_ids]
        return seen["rewards"]

    def timed(phase: str, function: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = function(*arguments, **options)
            phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - begin
            return result

        return run

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            rows.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if work.device == "cuda":
                torch.cuda.synchronize()
            prompts = seen.setdefault("prompt", prompt_tokens(tokenizer, asked(problems[0])))
            layout = [(prompts, [length]) for length in seen["lengths"]]
            once = operations(shape, layout)
            # vLLM's log-probabilities are checked against the trainer's: one forward pass more.
            passes = 3 + (1 if work.beta else 0) + (1 if vllm and args.vllm_importance_sampling_correction else 0)
            shared = [(prompts, seen["lengths"][i : i + work.group]) for i in range(0, len(layout), work.group)]
            made = {"rollout": operations(shape, shared) if vllm else once, "update": passes * once}
            spent = {name: phases.pop(name) for name in ("rollout", "reward")}
            spent["update"] = time.perf_counter() - rows.last - sum(spent.values())
            means = [statistics.fmean(seen[name]) for name in ("rewards", "lengths")]
            control.should_training_stop = rows.add(*means, spent, made)

    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            args=GRPOConfig(**(trl_settings(work, vllm) | {"output_dir": output})),
            train_dataset=dataset,
            processing_class=tokenizer,
            callbacks=[Watch()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer._generate = timed("rollout", trainer._generate)
        trainer._calculate_rewards = timed("reward", trainer._calculate_rewards)
        trainer.train()


def trl_settings(work: Work, vllm: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": work.prompts * work.group,
        "num_generations": work.group,
        "max_completion_length": work.new,
        "max_steps": work.steps,
        "learning_rate": work.lr,
        "lr_scheduler_type": "constant",
        "beta": work.beta,
        "temperature": 1.0,
        "seed": work.seed,
        "shuffle_dataset": False,
        "bf16": work.device == "cuda",
        "use_cpu": work.device == "cpu",
        "model_init_kwargs": {"dtype": "float32"},
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if vllm:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    for setting in work.trl:
        name, _, value = setting.partition("=")
        settings[name] = json.loads(value)
    # Fewer at a time are as many in all.
    settings["gradient_accumulation_steps"] = work.prompts * work.group // settings["per_device_train_batch_size"]
    return settings


def prompt_tokens(tokenizer: Any, prompt: Any) -> int:
    """Of one prompt; those of a task differ by little."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    return len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])


def main() -> None:
    arm, settings, path = sys.argv[1:]
    given = json.loads(settings)
    work = Work(**(given | {"trl": tuple(given["trl"])}))
    rows = Rows(arm, work, Path(path))
    try:
        {"grpo": ours, "trl": trl, "trl-vllm": lambda *both: trl(*both, vllm=True)}[arm](work, rows)
    except ImportError as error:  # the border to packages that others made, and to those they need in turn
        print(f"--peer {arm}: cannot be imported here: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(CANNOT_IMPORT)


if __name__ == "__main__":
    main()
