"""Trains the embedded models `tiny` and `nano` from random weights: pretraining and fine-tuning on generated problems.

    python scripts/make_tiny.py            # both, into src/grpo/model/hub; deterministic on one machine
    python scripts/make_tiny.py --only nano --into /tmp/models

Pretraining uses mostly worked answers, so the network learns to calculate. Fine-tuning then uses more direct answers
than worked ones, so the model can calculate but usually guesses. Finally the accuracy of each style is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import grpo
from grpo.config import SftConfig, System
from grpo.model.files import save_model
from grpo.model.load import load_policy
from grpo.record.checkpoints import Checkpoints
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.tasks import load_task
from grpo.tasks.arithmetic import work
from grpo.types import Problem

CHARACTERS = "0123456789+*=(),;"


@dataclass(frozen=True)
class Shape:
    task: str
    width: int
    layers: int
    heads: int
    feed_forward: int


@dataclass(frozen=True)
class Recipe(Shape):
    pretrain_rows: int
    pretrain_worked_share: float
    pretrain_lr: float
    finetune_rows: int
    finetune_worked_share: float
    finetune_lr: float


RECIPES = {
    "tiny": Recipe("arithmetic", 160, 3, 5, 432, 200_000, 0.98, 3e-3, 6_000, 0.33, 1e-4),
    "nano": Recipe("arithmetic:easy", 64, 2, 2, 176, 200_000, 0.95, 5e-3, 8_000, 0.33, 2e-4),
}


def make(name: str, recipe: Recipe, into: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        initial_model(recipe).save_pretrained(folder / "initial")
        tokenizer().save_pretrained(folder / "initial")
        write_rows(folder / "pretrain.jsonl", recipe, recipe.pretrain_rows, recipe.pretrain_worked_share, step=0)
        write_rows(folder / "finetune.jsonl", recipe, recipe.finetune_rows, recipe.finetune_worked_share, step=1)
        model = fine_tune(folder / "initial", folder / "pretrain.jsonl", recipe.pretrain_lr)
        model = fine_tune(model, folder / "finetune.jsonl", recipe.finetune_lr)
        policy = load_policy(str(model))
        save_model(policy, into / name)
    parameters = sum(weight.numel() for weight in policy.model.parameters())
    print(f"{name}: {parameters:,} parameters", measure(policy, recipe))


def tokenizer(words: Sequence[str] = CHARACTERS, pattern: str = ".") -> PreTrainedTokenizerFast:
    """One token per match of the pattern: per character."""
    vocabulary = {word: i for i, word in enumerate([*words, "<pad>", "<end>"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>", unk_token="<pad>")


def initial_model(recipe: Shape, words: int = len(CHARACTERS)) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=words + 2,
            hidden_size=recipe.width,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            intermediate_size=recipe.feed_forward,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            pad_token_id=words,
            eos_token_id=words + 1,
            bos_token_id=None,
        )
    )


def write_rows(path: Path, recipe: Recipe, count: int, worked_share: float, step: int) -> None:
    """Write rows of training problems; held-out problems never appear."""
    problems = load_task(recipe.task).draw(step, count, seed=0)
    style = random.Random(f"style/{step}")
    with path.open("w") as rows:
        for problem in problems:
            scratch = work(problem.prompt) if style.random() < worked_share else ""
            rows.write(json.dumps({"prompt": problem.prompt, "answer": scratch + problem.answer}) + "\n")


def fine_tune(model: Path, rows: Path, lr: float) -> Path:
    config = SftConfig(model=str(model), data=str(rows), lr=lr, run=rows.stem, system=System(runs=str(model.parent)))
    with grpo.sft(config) as run:
        checkpoint = Checkpoints(run.path).newest()
    assert checkpoint is not None
    return checkpoint.model


def measure(policy, recipe: Recipe) -> dict[str, float]:
    """Held-out accuracy of each style at temperature 1, and the share of worked answers."""
    task, engine = load_task(recipe.task), Engine(policy)
    problems = task.heldout()
    sampling = Sampling(seed=0, temperature=1.0, max_new_tokens=48)

    def answers(prefix: str) -> list[tuple[Problem, str]]:
        asked = [Problem(problem.id, problem.prompt + prefix, problem.answer) for problem in problems]
        groups = engine.sample(asked, 4, sampling)
        return [(g.problem, prefix + c.text) for g in groups for c in g.completions]

    def accuracy(pairs: list[tuple[Problem, str]]) -> float:
        return sum(task.score(problem, text)["correct"] for problem, text in pairs) / max(1, len(pairs))

    free = answers("")
    direct = [(problem, text) for problem, text in free if "(" not in text]
    return {
        "worked_accuracy": round(accuracy(answers("(")), 4),
        "direct_accuracy": round(accuracy(direct), 4),
        "worked_share": round(1 - len(direct) / len(free), 4),
        "accuracy": round(accuracy(free), 4),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(RECIPES))
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "src/grpo/model/hub")
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else RECIPES:
        make(name, RECIPES[name], arguments.into)
