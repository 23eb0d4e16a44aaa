"""Any sequence classifier as a reward, against the same model asked one text at a time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from grpo.cli.main import main
from grpo.errors import GrpoError
from grpo.model.hub import locate_model
from grpo.record.store import Run
from grpo.rewards import Scorer
from grpo.rewards import model as reward_model
from grpo.rewards.model import ModelReward
from grpo.rewards.pool.invoke import Request
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Completion, Group, Problem, chat

TEXTS = ("42", "(1,2;3)41", "", "7" * 30)


def make(folder: Path, labels: list[str]) -> Path:
    """A small random classifier with nano's tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(locate_model("nano"))
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        pad_token_id=None,
    )
    model = transformers.LlamaForSequenceClassification(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "critic", ["score"])


def alone(folder: Path, text: str) -> torch.Tensor:
    """Logits of one text without padding, read off the last position of the body by hand."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        return model.score(model.model(input_ids=tokens).last_hidden_state[0, -1])


def group() -> Group:
    nothing = np.zeros(0)
    problem = Problem("p", "6*7=", "42")
    return Group(problem, nothing, tuple(Completion(text, nothing, nothing, "stop") for text in TEXTS), 0)


@pytest.mark.parametrize("at_once", [16384, 10])
def test_one_logit_is_the_reward(folder: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batches: padding and order change nothing."""
    monkeypatch.setattr(reward_model, "TOKENS_PER_BATCH", at_once)
    with Scorer(Arithmetic(), f"model:{folder}*0.5, task") as scorer:
        [done] = scorer.score([group()])
    expected = [float(alone(folder, "6*7=" + text)[0]) for text in TEXTS]
    assert len({round(value, 3) for value in expected}) == 4
    assert [c.parts["critic"] for c in done.completions] == pytest.approx(expected, abs=1e-5)
    right = [1.0, 0.0, 0.0, 0.0]
    assert [c.reward for c in done.completions] == pytest.approx(
        [0.5 * value + check for value, check in zip(expected, right, strict=True)], abs=1e-5
    )


def test_of_several_labels_one_is_named(tmp_path: Path) -> None:
    several = make(tmp_path / "moods", ["bad", "fair", "good"])
    with pytest.raises(GrpoError, match=r"has the labels bad, fair, good; name the one to reward: model:.*moods#bad"):
        ModelReward(str(several))
    reward = ModelReward(f"{several}#good")
    texts = ["6*7=" + text for text in TEXTS]
    expected = [float(alone(several, text).softmax(-1)[2]) for text in texts]
    assert reward.rewards(texts) == pytest.approx(expected, abs=1e-6)


def test_a_long_text_keeps_its_end(folder: Path) -> None:
    reward = ModelReward(str(folder))
    long = "12+34=" * 30
    tokens = reward.tokenizer(long, add_special_tokens=False)["input_ids"]
    assert len(tokens) > 64
    kept = reward.tokenizer.decode(tokens[-64:])
    assert reward.rewards([long]) == pytest.approx([float(alone(folder, kept)[0])], abs=1e-5)


def test_what_cannot_be_loaded_is_told(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(GrpoError, match="field reward: cannot load the reward model"):
        ModelReward(str(tmp_path))
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"short")
    with pytest.raises(GrpoError, match="field reward: cannot load the reward model"):
        ModelReward(str(broken))
    # A language model has no classifier's head: random numbers would be the reward.
    with pytest.raises(GrpoError, match=r"is not a reward model: 1 weights are missing: score.weight"):
        ModelReward(str(Path(locate_model("nano"))))


def test_it_trains(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = "--model nano --steps 1 --prompts-per-step 2 --group-size 4 --evaluation.problems 4 --run job --quiet"
    assert main(["train", *settings.split(), "--system.device", "cpu", "--reward", f"model:{folder}"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        rows = [(g["prompt"], row) for g in run.groups(0) for row in g["completions"]]
        assert len(rows) == 8
        for prompt, row in rows:
            assert row["reward"] == pytest.approx(float(alone(folder, prompt + row["text"])[0]), abs=1e-5)


def test_a_prefill_and_its_completion_are_one_turn(folder: Path) -> None:
    model = ModelReward(str(folder))
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}({{ m.content }}){% endfor %}"
    problem = Problem("p", "6*7=", "42", messages=(*chat("6*7="), {"role": "assistant", "content": "6+"}))
    assert model.text(Request(problem, ("36",)), "36") == "u(6*7=)a(6+36)"
