"""Every recipe parses and runs: as it is where the model is embedded, else with random weights of a small shape."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import grpo
from grpo.cli.main import main
from grpo.config.schema import parse_train
from grpo.model.plan import USABLE, find_shape, gpu_memory
from grpo.training.memory_check import predicted_memory

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from recipes import measure, read_header

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))
FOR_A_GPU = [recipe for recipe in RECIPES if read_header(recipe)]


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each not in FOR_A_GPU], ids=lambda path: path.stem)
def test_recipe_runs(recipe: Path, tmp_path: Path) -> None:
    small = "--prompts-per-step 2 --group-size 2 --steps 2 --evaluation.problems 4 --evaluation.probes 1"
    config = parse_train([str(recipe), *small.split(), "--system.runs", str(tmp_path)])
    with grpo.train(config) as run:
        assert run.summary()["completions"] == 2 * 2 * 2


def test_there_is_one_for_each_size() -> None:
    assert [recipe.stem for recipe in FOR_A_GPU] == ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b-lora", "smollm2-135m"]


@pytest.mark.parametrize("recipe", FOR_A_GPU, ids=lambda path: path.stem)
def test_a_recipe_takes_what_it_says_and_fits_its_gpu(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu, shape, prompt_tokens, gib = read_header(recipe)
    config = parse_train([str(recipe)])
    assert find_shape(config.model) == find_shape(shape)
    predicted = predicted_memory(config, find_shape(shape), prompt_tokens, torch.device("cuda")).peak
    assert predicted / 2**30 == pytest.approx(gib, abs=0.5)
    assert predicted < USABLE * gpu_memory(f"{gpu} GB")
    asked = ["plan", str(recipe), "--prompt-tokens", str(prompt_tokens), "--gpu", f"{gpu} GB", "--json"]
    assert main(asked) == 0
    [row] = json.loads(capsys.readouterr().out)["algorithms"]
    assert (row["algorithm"], row["peak"], row["fits"]) == (config.algorithm, predicted, True)


@pytest.mark.parametrize("recipe", FOR_A_GPU, ids=lambda path: path.stem)
def test_its_settings_train_a_small_model(recipe: Path) -> None:
    """Predicted memory holds there too; with adapters, they alone are trained."""
    small = "--prompts-per-step 2 --group-size 4 --max-new-tokens 16"
    row = measure(recipe, steps=2, shape="smallest", changes=small.split())
    assert row["predicted"] == pytest.approx(row["measured"], rel=0.03)
    assert max(row["sampler_gap"]) < 1e-5
    assert [set(seconds) for seconds in row["seconds"]] == [{"rollout", "reward", "update", "record"}] * 2
    # 2 layers of q 64→64, k and v 64→32, o 64→64, gate and up 64→128, down 128→64, rank 32 for each.
    adapters = 2 * 32 * (128 + 96 + 96 + 128 + 3 * 192)
    whole = 512 * 64 + 64 + 2 * (2 * 64 + 128 + 64 * (64 + 32 + 32 + 64 + 3 * 128))
    assert row["trainable"] == (adapters if row["lora"] else whole)
