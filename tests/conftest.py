"""Small random models of every architecture the engine runs, a tokenizer of characters for them; recipes; a browser."""

from __future__ import annotations

import copy
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach out
# Bit-for-bit tests compare runs of this process with one another; one thread also keeps small models fast.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run as plain Python where there is no GPU

from grpo.attention import NAME
from grpo.policy import Policy

SHAPE = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}

ARCHITECTURES: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=8),
    "mistral": transformers.MistralConfig(**SHAPE, head_dim=8),
    "mistral-window": transformers.MistralConfig(**SHAPE, head_dim=8, sliding_window=6),
    "gemma": transformers.GemmaConfig(**SHAPE, head_dim=8),
    "phi3": transformers.Phi3Config(**SHAPE),
    "phi": transformers.PhiConfig(**SHAPE),
}


class CharacterTokenizer:
    eos_token_id = 1

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(character) % 46 for character in text]}

    def batch_decode(self, rows: Any) -> list[str]:
        return ["".join(chr(65 + int(token)) for token in row) for row in rows]


def random_policy(
    architecture: str, dtype: torch.dtype = torch.float32, attention: str = NAME, seed: int = 0
) -> Policy:
    """The same weights for the same seed, whatever the attention; spread wider than the usual initialisation, so that
    distributions are far from uniform and a wrong mask shows."""
    torch.manual_seed(seed)
    config = copy.deepcopy(ARCHITECTURES[architecture])  # a model writes its attention into its config
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn(weight.shape, dtype=torch.float64).to(dtype))
    return Policy(model.eval(), CharacterTokenizer(), architecture, frozenset([1]))


@pytest.fixture(params=list(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser that opens pages. They share what was fetched once; all state of the lab is in a page's address."""
    from visit import AXE, CHROMIUM

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install the package chromium, or name one in GRPO_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context()
        context.set_default_timeout(60_000)
        context.add_init_script(path=AXE)
        yield context
        browser.close()


@pytest.fixture(scope="session")
def classroom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A lab without runs of its own."""
    from visit import serving

    yield from serving(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a recipe and returns its name as the user types it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "recipe.toml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write
