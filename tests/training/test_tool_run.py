"""A run with tools from end to end: prompts describe them, workers call them, and what they answer is not trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import grpo
from grpo.cli.main import main
from grpo.config import Episodes, Evaluation
from grpo.episodes.tools import Asked, CallReader
from grpo.errors import GrpoError
from helpers.chats import chat_tokenizer
from helpers.policies import SHAPE
from helpers.runs import small

MINE = '''
def multiply(a: int, b: int) -> int:
    """Multiplies.

    Args:
        a: A number.
        b: Another.
    """
    return a * b
'''
ROWS = [{"prompt": [{"role": "user", "content": f"{a}*7?"}], "answer": str(7 * a)} for a in range(30)]


def called(self: CallReader, text: str) -> tuple[list[Asked], str]:
    """A random model calls nothing: every turn stands for a call."""
    return [Asked("multiply", {"a": 6, "b": 7}, '{"a": 6, "b": 7}')], ""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Of bytes, random, with the chat template of SmolLM2."""
    tokenizer = chat_tokenizer("smollm2")
    shape = {**SHAPE, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    folder = str(tmp_path / "model")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **ends})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_tools_are_called_recorded_and_trained_around(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CallReader, "read", called)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    settings: dict[str, Any] = {
        "model": model,
        "steps": 2,
        "run": "tools",
        "resume": True,
        "checkpoint_every": 1,
        "prompts_per_step": 2,
        "stop": tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
        "max_new_tokens": 300,
        "lr": 1e-3,
        "evaluation": Evaluation(every=0, problems=2, probes=0),
        "episodes": Episodes(tools=f"{file}:multiply", max_turns=3, max_turn_tokens=40),
    }
    reward = {"reward": lambda completions, **_: [float(len(text)) for text in completions], "data": ROWS}
    with grpo.train(small(tmp_path, **settings), **reward) as run:
        for metrics in run.metrics():
            assert metrics["sampler_gap"] <= 1e-5
            assert metrics["calls"] > 1
            assert (metrics["call_errors"], metrics["call_timeouts"], metrics["call_crashes"]) == (0, 0, 0)
        rows = run.turns(0)
        assert {row["text"] for row in rows if row["who"] == "tool"} == {"42"}
        assert {done["finish"] for done in run.completions(0)} <= {"turns", "turn_length"}
        assert '<tool_call>{"name": "multiply"' in run.prompts()[0]["text"]
    argv = ["eval", "tools", "--runs", str(tmp_path), "--problems", "2", "--reward", "task", "--data"]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert main([*argv, str(tmp_path / "rows.jsonl"), "--json"]) == 0
    assert '"turns_mean"' in capsys.readouterr().out
    file.write_text(MINE.replace("a * b", "a + b"))
    with pytest.raises(GrpoError, match=r"tools began with other inputs: tool code: .*mine.py changed"):
        grpo.train(small(tmp_path, **{**settings, "steps": 3}), **reward)


def test_tools_are_handed_over_to_a_model_with_a_chat_template(model: str, tmp_path: Path) -> None:
    def shout(text: str) -> str:
        """Shouts.

        Args:
            text: What to shout.
        """
        return text.upper()

    with pytest.raises(
        GrpoError, match=r"field episodes\.tools: the model has no chat template to describe tools with"
    ):
        grpo.train(small(tmp_path), tools=shout)
    config = small(tmp_path, model=model, steps=1, max_new_tokens=8, evaluation=Evaluation(problems=2, probes=0))
    with grpo.train(config, tools=[shout], data=ROWS, reward=lambda problem, text: 1.0) as run:
        assert run.config["episodes"]["tools"] == "python:shout"
        assert "Shouts." in run.prompts()[0]["text"]
