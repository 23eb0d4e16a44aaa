"""Three steps of each recipe for a GPU, with random weights of its model's shape: predicted and measured memory, and
seconds by phase.

python benchmarks/recipes.py [--recipes FILE ...] [--steps 3] [--shape NAME] [--json] [--field value ...]

Nothing is downloaded: a recipe's second line names its shape and the length of its prompts; rewards are noise, and no
completion ends before it is as long as it may be. Fields of `grpo train` may be changed, as in --token-budget 8192.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one, wherever it is imported from

import torch
from plan import peak_on_cpu
from shapes import SHAPES, NoTokenizer, random_policy

import grpo.training.networks
import grpo.training.preflight
from grpo.config import Config
from grpo.config.schema import parse_train
from grpo.model.device import pick_device
from grpo.model.plan import GIB, shape_of
from grpo.model.policy import Policy
from grpo.tasks import TASKS
from grpo.training.loop import loop
from grpo.training.preflight import predicted_memory
from grpo.training.session import Session
from grpo.types import Problem

RECIPES = Path(__file__).parents[1] / "recipes"
TOLD = re.compile(
    r"# One GPU of (\d+) GB\. Shape ([\w.-]+), prompts of (\d+) tokens: at most (\d+) GiB, by grpo plan\."
)


class Numbers(NoTokenizer):
    pad_token_id = 0

    def __len__(self) -> int:
        return 3

    def batch_decode(self, rows: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]


class Noise:
    """Prompts of one length, and rewards that depend on nothing but the text: every group has something to compare."""

    name = "noise"
    trusted = True
    prompt_tokens = 256

    def draw(self, step: int, count: int, seed: int) -> list[Problem]:
        return [Problem(f"{seed}/{step}/{i}", " ".join(["1", "2"] * self.prompt_tokens), "1") for i in range(count)]

    def heldout(self) -> list[Problem]:
        return self.draw(-1, 2, 0)

    def score(self, problem: Problem, text: str) -> Mapping[str, float | None]:
        return {"correct": 1.0 if text == problem.answer else float(zlib.crc32(text.encode()) % 2)}


def told(recipe: Path) -> tuple[int, str, int, int] | None:
    """GB of the GPU, shape, tokens of a prompt and predicted GiB, as a recipe says them; None where it says nothing."""
    found = TOLD.search(recipe.read_text())
    return (int(found[1]), found[2], int(found[3]), int(found[4])) if found else None


@contextmanager
def random_weights(shape: str, prompt_tokens: int) -> Iterator[str]:
    """The name of a model that is made at random wherever it is loaded; only its config is a file."""

    def load(name: str, *, device: str, dtype: torch.dtype, compute: torch.dtype | None = None) -> Policy:
        precision = "mixed" if compute is not None else str(dtype).removeprefix("torch.")
        return replace(random_policy(shape, device, precision), tokenizer=Numbers(), name=name)

    loaded, disk = grpo.training.networks.load_policy, grpo.training.preflight.check_disk
    task = type("Noise", (Noise,), {"prompt_tokens": prompt_tokens // 2})
    TASKS["noise"] = lambda variant="": task()
    grpo.training.networks.load_policy, grpo.training.preflight.check_disk = (
        load,
        lambda *_: None,
    )  # no checkpoint is written
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(SHAPES[shape].to_json_string())
            yield folder
    finally:
        grpo.training.networks.load_policy, grpo.training.preflight.check_disk = loaded, disk
        del TASKS["noise"]


def configured(recipe: Path, model: str, steps: int, runs: str, changes: list[str]) -> Config:
    fixed = f"--model {model} --task noise --steps {steps} --checkpoint-every 0 --run measured --system.runs {runs}"
    small = "--evaluation.every 0 --evaluation.problems 2 --evaluation.probes 0"
    return parse_train([str(recipe), *fixed.split(), *small.split(), *changes])


def measure(recipe: Path, steps: int = 3, shape: str = "", changes: list[str] | None = None) -> dict[str, Any]:
    said = told(recipe)
    assert said, f"{recipe} names no shape"
    _, named, prompt_tokens, _ = said
    shape = shape or named
    with random_weights(shape, prompt_tokens) as model, tempfile.TemporaryDirectory() as runs:
        config = configured(recipe, model, steps, runs, changes or [])
        session = Session.start(config)
        session.checkpoint = lambda *_, **__: None  # type: ignore[method-assign]  # nothing to keep
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
        "trained": sum(weight.numel() for _, weight in session.policy.trainable()),
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
        f"{row['recipe']}: {row['work']}, token budget {row['token_budget']}, {row['trained']:,} weights trained\n"
        f"  memory: predicted {row['predicted'] / GIB:.2f} GiB, measured {row['measured'] / GIB:.2f} GiB, "
        f"ratio {row['ratio']}"
    )
    for step, seconds in enumerate(row["seconds"]):
        phases = ", ".join(f"{phase} {value:.2f}" for phase, value in seconds.items())
        print(f"  step {step}: {sum(seconds.values()):.2f} s ({phases}), sampler gap {row['sampler_gap'][step]:.2g}")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="*", type=Path, help="default: all that name a shape")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--shape", default="", help=f"another shape than the recipe's: {', '.join(SHAPES)}")
    parser.add_argument("--json", action="store_true")
    parsed, flags = parser.parse_known_args()
    rows = []
    for each in parsed.recipes or sorted(path for path in RECIPES.glob("*.toml") if told(path)):
        rows.append(measure(each, parsed.steps, parsed.shape, flags))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not parsed.json:
            show(rows[-1])
    if parsed.json:
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        print(json.dumps({"machine": machine, "rows": rows}))
