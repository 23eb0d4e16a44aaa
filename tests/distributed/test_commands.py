"""Rewards, models and commands at two ranks, against one rank: the same texts, rewards and accuracies, and losses to
rounding. (Algorithms: test_sameness.py.)"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import grpo
from grpo.cli.main import main
from grpo.config import Evaluation, Scoring, SftConfig, System
from grpo.distributed.world import ALONE, World
from grpo.model.hub import locate_model
from grpo.record.events import Callback
from grpo.record.metrics import is_timed
from grpo.record.store import Run
from helpers.ranks import ranks
from helpers.runs import small

BLOOM = {"hidden_size": 16, "n_layer": 2, "n_head": 2}
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


class Judge(http.server.BaseHTTPRequestHandler):
    """Grades a completion by its number of characters; `requests` counts them."""

    requests = 0

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        type(self).requests += 1
        reply = json.dumps({"choices": [{"message": {"content": str(len(content) % 11)}}]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply.encode())

    def log_message(self, *_: Any) -> None: ...


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64  # connections beyond it are tried again after a second


class Heard(Callback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, run: Run, config: Any, first_step: int) -> None:
        self.events.append("start")

    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        self.events.append(f"step {step}")

    def on_evaluation(self, step: int, metrics: Any) -> None:
        self.events.append(f"evaluation {step}")

    def on_end(self, run: Run) -> None:
        self.events.append(run.status)


class Logger(SimpleNamespace):
    """Stands for trackio: what it was given to log."""

    __spec__ = SimpleNamespace(origin="here")

    def init(self, **settings: Any) -> Any:
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)

    def finish(self) -> None: ...


class StopAtOnce(Heard):
    def on_step(self, step: int, metrics: Any, groups: Any) -> None:
        super().on_step(step, metrics, groups)
        self.request_stop()


MINE = """
def digits(completions, trainer_state, log_metric, log_extra, **columns):
    found = [sum(c.isdigit() for c in text) for text in completions]
    log_metric("digits", sum(found) / len(found))
    log_extra("step", [trainer_state.global_step] * len(found))
    log_extra("first", [trainer_state.is_world_process_zero] * len(found))
    return [count / 10 for count in found]
"""


def small_model(folder: Path, model: type, config: transformers.PretrainedConfig) -> str:
    tokenizer = transformers.AutoTokenizer.from_pretrained(locate_model("nano"))
    torch.manual_seed(3)
    made = model(config)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of each run, by name."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "mine.py").write_text(MINE)
    vocabulary = len(transformers.AutoTokenizer.from_pretrained(locate_model("nano")))
    ends = {"vocab_size": vocabulary, "eos_token_id": 0, "bos_token_id": None, "pad_token_id": None}
    padded = small_model(folder / "bloom", transformers.BloomForCausalLM, transformers.BloomConfig(**BLOOM, **ends))
    grader = transformers.LlamaConfig(**LLAMA, **ends, max_position_embeddings=96, num_labels=1)
    classifier = small_model(folder / "grader", transformers.LlamaForSequenceClassification, grader)
    server = Server(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    scoring = Scoring(workers=2, judge_model="grader", judge_budget=400)
    yield {
        "functions": {
            **{"reward": f"task, {folder}/mine.py:digits*0.5", "stop": (";", "9"), "steps": 3, "scoring": scoring},
            "evaluation": Evaluation(every=1, problems=7, probes=3, reward=f"model:{classifier}"),
        },
        "judge": {"reward": f"judge:{url}", "scoring": scoring},
        "padded": {"model": padded, "task": "arithmetic:easy", "reward": f"model:{classifier}", "max_new_tokens": 8},
    }
    server.shutdown()
    server.server_close()
    thread.join()


def contents(run: Run) -> dict[str, Any]:
    rows = [{name: value for name, value in row.items() if not is_timed(name)} for row in run.metrics()]
    return {
        "completions": [dict(row) for row in run.completions()],
        "evals": [dict(row) for row in run.evals()],
        "probes": run.probes(),
        "findings": [row["text"] for row in run.findings()],
        "metrics": rows,
        "world": run.meta("world"),
    }


def trained(world: World, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """By name of a run: what it recorded, and what its callback heard. A rank without a record exits."""
    found: dict[str, Any] = {}
    for name, changes in settings.items():
        sys.modules["trackio"] = logger = Logger(steps=[])  # type: ignore[assignment]
        system = System(runs=str(folder), threads=1, log="trackio")
        config = small(folder, **{"steps": 2, "prompts_per_step": 3, "run": name, "system": system, **changes})
        heard = StopAtOnce() if name == "functions" else Heard()
        try:
            with grpo.train(config, callbacks=[heard]) as run:
                found[name] = contents(run)
        except SystemExit as done:
            found[name] = done.code
        found[f"{name} heard"] = [*heard.events, *logger.steps]
        del sys.modules["trackio"]
    return found


def commands(world: World, folder: Path) -> dict[str, Any]:
    """What each command printed, and fine-tuning's losses."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 15) for b in range(7)]
    found: dict[str, Any] = {}
    system = {"runs": str(folder), "threads": 1}
    for name, changes in (("rows", {}), ("task", {"task": "arithmetic:easy"}), ("lora", {"lora": {"rank": 2}})):
        config = SftConfig(model="nano", run=f"sft-{name}", steps=3, batch_size=5, lr=1e-3, system=system, **changes)
        try:
            with grpo.sft(config, data=None if name == "task" else rows, callbacks=[Heard()]) as run:
                found[name] = contents(run)
        except SystemExit as done:
            found[name] = done.code
    of_run = ["sft-rows", "--task", "arithmetic:easy", "--runs", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(["eval", *of_run, "--problems", "9", "--json"])
    return {**found, "eval": (code, printed.getvalue())}


def close(found: Any, expected: Any) -> bool:
    """Equal, numbers to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    return found == (pytest.approx(expected, rel=1e-5, abs=1e-7) if isinstance(expected, float) else expected)


def test_rewards_and_models_of_every_kind(tmp_path: Path, settings: dict[str, Any]) -> None:
    Judge.requests = 0
    one = trained(ALONE, tmp_path / "one", settings)
    requests = Judge.requests
    two, silent = ranks(2, trained, tmp_path / "two", settings)
    assert Judge.requests == 2 * requests, "each completion is graded once, on one rank"
    on_rank_0 = [[row.pop("extra_first") for row in each["functions"]["completions"]] for each in (one, two)]
    assert on_rank_0 == [[True] * 24, ([True] * 4 + [False] * 4 + [True] * 4) * 2]
    for name in settings:
        alone, together = one[name], two[name]
        assert together.pop("world")["size"] == 2
        assert alone.pop("world") == {**ALONE.layout("none")}
        for part in ("completions", "probes", "evals", "metrics", "findings"):
            assert close(together[part], alone[part]), f"{name}: {part}"
        assert one[f"{name} heard"] == two[f"{name} heard"] != []
        assert (silent[name], silent[f"{name} heard"]) == (0, []), "neither record, callbacks nor loggers"
    # What the runs were made for has happened.
    functions = one["functions"]
    texts = [row["text"] for row in functions["completions"]]
    assert any(text.endswith((";", "9")) for text in texts)
    assert not any(";" in text[:-1] or "9" in text[:-1] for text in texts)
    assert {row["extra_step"] for row in functions["completions"]} == {0, 1}
    assert all(row["logged/digits"] > 0 for row in functions["metrics"])
    assert one["functions heard"] == [
        "start",
        "evaluation 0",
        "step 0",
        "evaluation 1",
        "step 1",
        "stopped",
        0,
        0,
        1,
        1,
    ]
    assert any("has its own attention" in text for text in one["padded"]["findings"])
    changes = {**settings["padded"], "steps": 3, "prompts_per_step": 3, "run": "padded", "resume": True}
    with grpo.train(small(tmp_path / "two", **changes)) as run:
        assert run.meta("world") == ALONE.layout("none"), "a resume on one rank says so"


def test_fine_tuning_and_evaluation(tmp_path: Path) -> None:
    one = commands(ALONE, tmp_path / "one")
    two, silent = ranks(2, commands, tmp_path / "two")
    for name in ("rows", "task", "lora"):
        assert two[name].pop("world") == {**one[name].pop("world"), "size": 2, "hosts": ALONE.hosts * 2}
        assert close(two[name], one[name]), name
        assert silent[name] == 0
    (code, printed), (silent_code, nothing) = two["eval"], silent["eval"]
    assert (code, silent_code, nothing) == (0, 0, "")
    assert close(json.loads(printed), json.loads(one["eval"][1]))
