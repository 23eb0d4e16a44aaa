"""Three steps of each recipe for a GPU: predicted and measured peak memory, and seconds by phase.

python benchmarks/recipes.py [--recipes FILE ...] [--steps 3] [--shape NAME] [--json] [--field value ...]

Weights are random, so nothing is downloaded. The second line of a recipe names its shape and the length of its prompts.
Rewards are noise, and every completion has full length. Flags of `grpo train` change fields, as in --token-budget 8192.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tests import this module from another folder

import torch
from noise import add_noise_task, letter_tokenizer
from plan import peak_on_cpu
from shapes import SHAPES, random_policy

import grpo.training.networks
import grpo.training.session
from grpo.config import Config
from grpo.config.schema import parse_train
from grpo.model.device import pick_device
from grpo.model.plan import GIB, shape_of
from grpo.model.policy import Policy
from grpo.tasks import TASKS
from grpo.training.loop import loop
from grpo.training.memory_check import predicted_memory
from grpo.training.session import Session

RECIPES = Path(__file__).parents[1] / "recipes"
HEADER = re.compile(
    r"# One GPU of (\d+) GB\. Shape ([\w.-]+), prompts of (\d+) tokens: at most (\d+) GiB, by grpo plan\."
)


def read_header(recipe: Path) -> tuple[int, str, int, int] | None:
    """GB of the GPU, shape, prompt tokens and predicted GiB, from the second line of a recipe; None without one."""
    found = HEADER.search(recipe.read_text())
    return (int(found[1]), found[2], int(found[3]), int(found[4])) if found else None


@contextmanager
def random_weights(shape: str, prompt_tokens: int) -> Iterator[str]:
    """Yields the folder of a model whose weights are random. Loading is patched; the folder holds only config.json."""

    def load(name: str, *, device: str, dtype: torch.dtype, compute: torch.dtype | None = None) -> Policy:
        precision = "mixed" if compute is not None else str(dtype).removeprefix("torch.")
        return replace(
            random_policy(shape, device, precision), tokenizer=letter_tokenizer(SHAPES[shape].vocab_size), name=name
        )

    original = grpo.training.networks.load_policy, grpo.training.session.check_disk
    add_noise_task(prompt_tokens)
    grpo.training.networks.load_policy = load
    grpo.training.session.check_disk = lambda *_: None  # checkpoints are off
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(SHAPES[shape].to_json_string())
            yield folder
    finally:
        grpo.training.networks.load_policy, grpo.training.session.check_disk = original
        del TASKS["noise"]


def make_config(recipe: Path, model: str, steps: int, runs: str, changes: list[str]) -> Config:
    """The recipe with another model and task, without evaluations and checkpoints; `changes` are flags."""
    fixed = f"--model {model} --task noise --steps {steps} --checkpoint-every 0 --run measured --system.runs {runs}"
    small = "--evaluation.every 0 --evaluation.problems 2 --evaluation.probes 0"
    return parse_train([str(recipe), *fixed.split(), *small.split(), *changes])


def measure(recipe: Path, steps: int = 3, shape: str = "", changes: list[str] | None = None) -> dict[str, Any]:
    """Trains, and returns predicted and measured peak memory in bytes, and seconds by phase."""
    header = read_header(recipe)
    assert header, f"{recipe}: its second line does not name a shape"
    _, own_shape, prompt_tokens, _ = header
    shape = shape or own_shape
    with random_weights(shape, prompt_tokens) as model, tempfile.TemporaryDirectory() as runs:
        config = make_config(recipe, model, steps, runs, changes or [])
        session = Session.start(config)
        session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # no checkpoints
        on_gpu = session.policy.device.type == "cuda"
        loaded = sum(weight.nbytes for weight in session.policy.model.parameters())

        def train() -> None:
            with session.recorded():
                loop(session)

        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            train()
            measured = torch.cuda.max_memory_allocated()
        else:
            measured = loaded + peak_on_cpu(train)
        device = torch.device(pick_device(config.system))
        budget = session.policy.token_budget
        predicted = predicted_memory(config, shape_of(SHAPES[shape].to_dict(), shape), prompt_tokens, device, budget)
        spans = session.run.spans()
        losses = [value for _, value in session.run.series("loss")]
        gaps = [value for _, value in session.run.series("sampler_gap")]
        session.run.close()
    return {
        "recipe": recipe.stem,
        "shape": shape,
        "lora": config.lora.rank,
        "work": f"{config.prompts_per_step} x {config.group_size}, {prompt_tokens} + {config.max_new_tokens} tokens",
        "token_budget": budget,
        "trainable": sum(weight.numel() for _, weight in session.policy.trainable()),
        "predicted": predicted.peak,
        "measured": measured,
        "ratio": round(predicted.peak / measured, 3),
        "seconds": [
            {span["name"]: round(span["seconds"], 3) for span in spans if span["step"] == step} for step in range(steps)
        ],
        "loss": losses,
        "sampler_gap": gaps,
    }


def show(row: Mapping[str, Any]) -> None:
    print(
        f"{row['recipe']}: {row['work']}, token budget {row['token_budget']}, "
        f"{row['trainable']:,} trainable parameters\n"
        f"  memory: predicted {row['predicted'] / GIB:.2f} GiB, measured {row['measured'] / GIB:.2f} GiB, "
        f"ratio {row['ratio']}"
    )
    for step, seconds in enumerate(row["seconds"]):
        phases = ", ".join(f"{phase} {value:.2f}" for phase, value in seconds.items())
        print(f"  step {step}: {sum(seconds.values()):.2f} s ({phases}), sampler gap {row['sampler_gap'][step]:.2g}")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="*", type=Path, help="default: all recipes for a GPU")
    parser.add_argument("--steps", type=int, default=3, help="training steps")
    parser.add_argument("--shape", default="", help=f"replaces the recipe's shape: {', '.join(SHAPES)}")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parsed, flags = parser.parse_known_args()
    rows = []
    for each in parsed.recipes or sorted(path for path in RECIPES.glob("*.toml") if read_header(path)):
        rows.append(measure(each, parsed.steps, parsed.shape, flags))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not parsed.json:
            show(rows[-1])
    if parsed.json:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(json.dumps({"machine": machine, "rows": rows}))
