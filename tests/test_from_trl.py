"""Data and reward functions written for TRL: they train here unchanged, and TRL's own code gives the same rewards."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grpo.config import Dataset
from grpo.episodes.environment_replies import EnvironmentReplies
from grpo.model.files import save_model
from grpo.model.load import load_policy
from grpo.rewards import Scorer
from grpo.rewards.functions import parse
from grpo.rewards.handed_over import take_rewards
from grpo.rewards.pool.invoke import History, Request, invoke
from grpo.tasks import load_task
from grpo.tasks.handed_over import take_rows
from grpo.types import Completion, Group, Problem
from helpers import environments
from helpers.docs import DOCS
from helpers.examples import EXAMPLES, output_of

PAGE = (DOCS / "from-trl.md").read_text()
SCRIPTS = {
    "token_count": ["longer"],
    "ground_truth": ["worked", "correct"],
    "two_tasks": ["right_sum", "right_product"],
}
TEXTS = ("(1;2)31", "31", "", "(30;2)49", "32", "=841")
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def test_prompts_only_and_a_reward_of_token_counts(tmp_path: Path) -> None:
    before, after = numbers(output_of("from_trl/token_count.py", tmp_path))
    assert 1 <= before < after <= 32


def test_conversations_train_a_model_with_a_chat_template(tmp_path: Path) -> None:
    """Nano with a template, whose characters are digits and signs: only the messages' contents."""
    policy = load_policy("nano")
    policy.tokenizer.chat_template = CHAT_TEMPLATE
    save_model(policy, tmp_path / "chatty")
    script = (EXAMPLES / "from_trl/ground_truth.py").read_text()
    (tmp_path / "script.py").write_text(script.replace('model="nano"', 'model="chatty"'))
    before, after = numbers(output_of(str(tmp_path / "script.py"), tmp_path))
    assert 0 <= before < after <= 1.2


def test_two_tasks_and_an_async_reward(tmp_path: Path) -> None:
    before, after = numbers(output_of("from_trl/two_tasks.py", tmp_path))
    assert 0 <= before < after <= 1


def test_the_page_shows_the_script_beside_trls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks: what both share, TRL's trainer, and ours. TRL's block only names arguments that TRL has."""
    shared, theirs, ours = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:3]
    script = (EXAMPLES / "from_trl/ground_truth.py").read_text().partition('"""\n\n')[2]
    assert lines(script) == lines(shared) + lines(ours.removeprefix("import grpo\n"))
    trl = pytest.importorskip("trl")
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(trl, "GRPOConfig", lambda **settings: calls.append(settings))
    monkeypatch.setattr(trl, "GRPOTrainer", lambda **arguments: calls.append(arguments) or SimpleNamespace(train=bool))
    exec(f"{shared}\n{theirs}", {})
    monkeypatch.undo()
    settings, arguments = calls
    assert settings.keys() <= trl.GRPOConfig.__dataclass_fields__.keys()
    assert arguments.keys() <= inspect.signature(trl.GRPOTrainer).parameters.keys()


def lines(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.strip() and line != "import grpo"]


def numbers(printed: str) -> list[float]:
    """The values before and after training."""
    return [float(number) for number in re.findall(r"(\d+\.\d+) (?:before|after)", printed)]


@pytest.fixture
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """TRL's trainer runs async rewards in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_trl_calculates_the_same_rewards(script: str, event_loop: asyncio.AbstractEventLoop) -> None:
    pytest.importorskip("trl")
    names: dict[str, Any] = {}
    exec((EXAMPLES / f"from_trl/{script}.py").read_text().partition("run = grpo.train(")[0], names)
    functions = [names[name] for name in SCRIPTS[script]]
    rows = names["dataset"].select([0, 1, len(names["dataset"]) - 1])
    theirs = by_trl([row for row in rows for _ in TEXTS], functions, event_loop)
    ours = by_us(rows, functions)
    assert theirs.shape == (3 * len(TEXTS), len(functions))
    assert len(np.unique(theirs[~np.isnan(theirs)])) > 1
    np.testing.assert_array_equal(ours, theirs)


def test_functions_that_read_environments_give_trls_values(event_loop: asyncio.AbstractEventLoop) -> None:
    """Ours are called where an environment lives, at the end of its episode; TRL's with those of a whole batch."""
    functions = [environments.reward_func, environments.patient]
    rows = [{"prompt": f"{i}+1=", "level": i} for i in range(len(TEXTS))]
    played = [environments.EchoEnv() for _ in rows]
    for made, text in zip(played, TEXTS, strict=True):
        made.reset()
        made.echo(2 * text)
    theirs = by_trl(rows, functions, event_loop, played)
    replies = EnvironmentReplies(environments.EchoEnv)
    specs = zip(parse("python:reward_func, python:patient"), functions, strict=True)
    assert len(replies.take(dict(specs), evaluation=False)) == 2
    replies.load()
    ours = []
    for row, text in zip(rows, TEXTS, strict=True):
        asked = Problem(row["prompt"], row["prompt"], "", columns={"level": row["level"]})
        turn, heard = json.dumps([{"name": "echo", "arguments": {"message": 2 * text}}]), []
        for turns in ((), (turn,), (turn,)):  # reset, a call, the end
            request = Request(asked, (text,), histories=(History("e", turns, tuple(heard)),))
            [outcome] = invoke(replies, request)
            heard.append(outcome.extra["text"] or "")
        ours.append([outcome.parts["reward_func"], outcome.parts["patient"]])
    assert ours == [[2 * len(text) / 100, i * len(text)] for i, text in enumerate(TEXTS)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-7)


def by_trl(
    rows: list[Any],
    functions: list[Callable[..., Any]],
    loop: asyncio.AbstractEventLoop,
    environments: list[Any] | None = None,
) -> np.ndarray:
    """GRPOTrainer._calculate_rewards, which needs little of a trainer: [completions, functions], NaN for None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.grpo_trainer import GRPOTrainer
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device=torch.device("cpu"), is_main_process=False),
        args=SimpleNamespace(report_to=[]),
        reward_funcs=functions,
        reward_processing_classes=[None] * len(functions),
        reward_func_names=[function.__name__ for function in functions],
        state=SimpleNamespace(global_step=0),
        environments=environments,
        async_loop=loop,
        _log_completion_extra=lambda column, values: None,
        _log_metric=lambda name, value: None,
    )
    prompts = [row["prompt"] for row in rows]
    texts = [TEXTS[i % len(TEXTS)] for i in range(len(rows))]
    is_text = isinstance(prompts[0], str)
    completions = texts if is_text else [[{"role": "assistant", "content": text}] for text in texts]
    return GRPOTrainer._calculate_rewards(trainer, rows, prompts, completions, [tokens(text) for text in texts]).numpy()


def by_us(rows: Any, functions: list[Callable[..., Any]]) -> np.ndarray:
    """The same rows and texts, scored in worker processes."""
    reward, by_name = take_rewards(functions)
    splits = take_rows({"train": list(rows), "test": list(rows)})
    task = load_task("data", "python:rows", Dataset(heldout="test"), splits)
    groups = [
        Group(
            problem,
            np.zeros(0, np.int64),
            tuple(Completion(text, np.array(tokens(text), np.int64), np.zeros(len(text)), "stop") for text in TEXTS),
            0,
        )
        for problem in task.heldout()
    ]
    with Scorer(task, reward, functions=by_name) as scorer:
        scored = [completion for group in scorer.score(groups) for completion in group.completions]
    values = [[completion.parts[function.__name__] for function in functions] for completion in scored]
    return np.array([[math.nan if value is None else value for value in row] for row in values], np.float32)


def tokens(text: str) -> list[int]:
    return [ord(character) for character in text]
