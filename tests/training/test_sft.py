"""Supervised fine-tuning: its loss, its data border, its record."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import grpo
from grpo.cli.main import main
from grpo.cli.terminal.report import settings_line
from grpo.config import Config, Dataset, SftConfig, System
from grpo.config.schema import parse_sft
from grpo.errors import GrpoError
from grpo.model.hub import locate_model
from grpo.model.load import load_policy
from grpo.model.policy import Policy, logprobs
from grpo.record.checkpoints import Checkpoints
from grpo.record.events import Callback
from grpo.record.store import Run
from grpo.tasks import load_task
from grpo.tasks.rows import Problems, Source, written_answers
from grpo.training.sft import accumulate_gradients, make_batches, shuffled_batch, with_answers
from grpo.types import Batch, Group
from helpers.faults import assert_resumed
from helpers.trainer import Orders, Ranks, Trainer, contents


def read_rows(source: Source, policy: Policy) -> list[Group]:
    written = written_answers(source)
    return with_answers(written.train, policy, written.conversations)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 20) for b in range(10, 20)]


def test_loss_and_gradient_are_those_of_cross_entropy(tmp_path: Path) -> None:
    ours, stock = load_policy("nano"), load_policy("nano")
    stock.model.config._attn_implementation = "sdpa"
    rows = read_rows(Source(str(write(tmp_path / "rows.jsonl", ROWS[:7]))), ours)
    loss, tokens = accumulate_gradients(ours, rows, token_budget=40)
    total = torch.zeros(())
    for row in ROWS[:7]:
        text = stock.tokenizer(row["prompt"] + row["answer"])["input_ids"] + [stock.tokenizer.eos_token_id]
        logits = stock.model(torch.tensor([text])).logits[0]
        start = len(row["prompt"])
        total = total + torch.nn.functional.cross_entropy(
            logits[start - 1 : -1], torch.tensor(text[start:]), reduction="sum"
        )
    assert tokens == sum(len(row["answer"]) + 1 for row in ROWS[:7])
    (total / tokens).backward()
    assert loss == pytest.approx(total.item() / tokens, rel=1e-5)
    for a, b in zip(ours.model.parameters(), stock.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-3)


def test_it_learns_and_records(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", ROWS)
    config = SftConfig(
        model="nano",
        data=str(data),
        epochs=6,
        batch_size=20,
        warmup_steps=5,
        system=System(runs=str(tmp_path / "runs")),
    )
    with grpo.sft(config) as run:
        losses = [value for _, value in run.series("sft_loss")]
        summary = run.summary()
        checkpoint = Checkpoints(run.path).newest()
    assert len(losses) == 6 * 100 / 20
    assert losses[-1] < 0.5 * losses[0]
    assert (summary["kind"], summary["status"], summary["steps"]) == ("sft", "finished", 30)
    assert checkpoint is not None
    assert load_policy(str(checkpoint.model)).model is not None


def test_settings_that_cannot_help_are_told(tmp_path: Path) -> None:
    config = SftConfig(
        model="nano",
        data=str(write(tmp_path / "rows.jsonl", ROWS[:8])),
        lr=0.5,
        lora={"alpha": 16},
        system=System(runs=str(tmp_path)),
    )
    with grpo.sft(config) as run:
        texts = [row["text"] for row in run.findings()]
    assert texts[0] == "lora.alpha has no effect: lora.rank is 0"
    assert texts[1].startswith("lr 0.5 is 4.4 times a typical weight, 0.11 (root mean square)")
    with grpo.sft(replace(config, lr=SftConfig.lr, lora={})) as run:
        assert run.findings() == []


def test_a_warm_up_that_is_cut_short_is_reported_and_unused_epochs(tmp_path: Path) -> None:
    """40 steps of a row each; the learning rate is at its full value from the fifth."""
    config = SftConfig(
        model="nano",
        data=str(write(tmp_path / "rows.jsonl", ROWS[:40])),
        batch_size=1,
        warmup_steps=20,
        schedule="constant",
        system=System(runs=str(tmp_path)),
    )
    with grpo.sft(replace(config, epochs=2.0, steps=1, warmup_steps=0)) as run:
        assert [row["text"] for row in run.findings()] == ["epochs has no effect: steps is set"]
    with grpo.sft(config) as run:
        texts = [row["text"] for row in run.findings()]
        rates = [value for _, value in run.series("lr")]
    assert texts == ["warmup_steps is 20, and the warm-up takes 4: at most a tenth of the 40 steps"]
    assert [rate == config.lr for rate in rates[:5]] == [False, False, False, True, True]


def test_every_row_once_per_epoch_in_a_keyed_order(tmp_path: Path) -> None:
    rows = read_rows(Source(str(write(tmp_path / "rows.jsonl", ROWS[:10]))), load_policy("nano"))

    def batches(seed: int) -> list[list[str]]:
        return [[row.problem.prompt for row in shuffled_batch(rows, step, 4, seed)] for step in range(6)]

    first = batches(1)
    assert [len(batch) for batch in first] == [4, 4, 2, 4, 4, 2]
    orders = list(chain(*first[:3])), list(chain(*first[3:]))
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(row["prompt"] for row in ROWS[:10])
    assert orders[0] != orders[1]
    assert first == batches(1)
    assert first != batches(2)


@pytest.mark.parametrize(("rows", "epochs", "steps"), [(7, 1.0, 1), (9, 1.0, 2), (9, 2.0, 4), (9, 0.5, 1)])
def test_epochs_are_passes_over_the_rows(tmp_path: Path, rows: int, epochs: float, steps: int) -> None:
    """Batches of 8; 2 answer digits and an end token a row. Half an epoch of two batches is the first of them."""
    config = SftConfig(
        model="nano",
        data=str(write(tmp_path / "rows.jsonl", ROWS[:rows])),
        epochs=epochs,
        batch_size=8,
        system=System(runs=str(tmp_path / "runs")),
    )
    with grpo.sft(config) as run:
        assert run.summary()["steps"] == steps
        trained = sum(value for _, value in run.series("tokens"))
    assert trained == 3 * (8 if epochs < 1 else epochs * rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}\n', r':2: has no column "answer"; it has prompt'),
        (b'{"prompt": "1+1=", "answer": "2"}\n\n{broken\n', r":3: not a line of JSON"),
        (b'{"prompt": "1+1=", "answer": "\xff"}\n', r":1: not a line of JSON in UTF-8"),
        (b'{"prompt": "", "answer": "2"}\n', r':1: column "prompt" must be text that is not empty'),
        (b'{"prompt": "1+1=", "answer": null}\n', r':1: column "answer" has no gold answer; got null'),
        (b"[1, 2]\n", r":1: expected an object"),
        (b"\n\n", r"has no rows"),
        ('{"prompt": "1+é=", "answer": "2"}\n'.encode(), r":1: nano has no token for a part of the row"),
        (b'{"prompt": "1+1=", "answer": "two"}\n', r":1: nano has no token for a part of the row"),
        (b'{"prompt": "1+1=", "answer": "' + b"2" * 200 + b'"}\n', r":1: 205 tokens exceed the 128 positions of nano"),
    ],
)
def test_bad_rows_are_named_with_their_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(GrpoError, match=message) as caught:
        read_rows(Source(str(path)), load_policy("nano"))
    assert "\n" not in str(caught.value)


def test_missing_file() -> None:
    with pytest.raises(GrpoError, match=r"field data: no file nowhere\.jsonl"):
        read_rows(Source("nowhere.jsonl"), load_policy("nano"))


def test_a_row_ends_with_the_end_token(tmp_path: Path) -> None:
    policy = load_policy("nano")
    [row] = read_rows(Source(str(write(tmp_path / "rows.jsonl", ROWS[:1]))), policy)
    assert row.prompt_tokens.tolist() == [1, 0, 10, 1, 0, 12]
    assert np.array_equal(row.completions[0].tokens, [2, 0, policy.tokenizer.eos_token_id])


FORMS = {
    "question.jsonl": '{"question": "10+10=", "gold": 20}',
    "table.csv": "prompt,response\n10+10=,20\n",
    "pair.jsonl": '{"prompt": "10+10=", "completion": "20"}',
    "turns.jsonl": '{"prompt": [{"role": "user", "content": "10+10="}], "completion": '
    '[{"role": "assistant", "content": "20"}]}',
    "messages.jsonl": '{"messages": [{"role": "user", "content": "10+10="}, {"role": "assistant", "content": "20"}]}',
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("chat", [True, False])
def test_rows_in_every_form_are_asked_as_grpo_asks_them(tmp_path: Path, name: str, chat: bool) -> None:
    """By hand: the template writes "1" before a user's turn and "2" where the answer begins."""
    (tmp_path / name).write_text(FORMS[name])
    policy = load_policy("nano")
    policy.tokenizer.chat_template = "{% for turn in messages %}1{{ turn.content }}{% endfor %}2"
    [row] = read_rows(Source(str(tmp_path / name), Dataset(chat=chat)), policy)
    assert policy.tokenizer.decode(row.prompt_tokens) == ("110+10=2" if chat else "10+10=")
    assert row.completions[0].tokens.tolist() == [2, 0, policy.tokenizer.eos_token_id]


ASKED = {"role": "user", "content": "10+10="}
TALK = [ASKED, {"role": "assistant", "content": "20"}]
OTHER = {"role": "user", "content": "x"}


def unread(first: str, others: str) -> list[str]:
    return [f"column {first} is learned, and {others} not read; name another with --dataset.answer"]


SEVERAL: dict[str, tuple[dict[str, Any], dict[str, str], str, list[str]]] = {
    "label": ({"prompt": "10+10=", "completion": "20", "label": True}, {}, "20", []),
    "target": ({"prompt": "10+10=", "completion": "20", "target": "web"}, {}, "20", unread("completion", "target is")),
    "named": ({"prompt": "10+10=", "completion": "20", "target": "5"}, {"answer": "target"}, "5", []),
    "number": ({"prompt": "10+10=", "answer": 20, "target": "5"}, {}, "20", unread("answer", "target is")),
    "ultrachat": (
        {"prompt": "x", "prompt_id": "7", "label": "y", "messages": TALK},
        {},
        "20",
        unread("messages", "label is"),
    ),
    "numina": ({"problem": "x", "solution": "y", "messages": TALK}, {}, "20", unread("messages", "solution is")),
    "both": (
        {"prompt": "10+10=", "completion": "20", "messages": TALK, "output": "1"},
        {},
        "20",
        unread("completion", "messages, output are"),
    ),
    "named messages": ({"prompt": "x", "completion": "5", "messages": TALK}, {"answer": "messages"}, "20", []),
    "named twice": ({"messages": TALK}, {"prompt": "messages", "answer": "messages"}, "20", []),
    "named prompt": ({"question": "10+10=", "messages": [OTHER, TALK[1]]}, {"prompt": "question"}, "20", []),
    "no completion": ({"messages": TALK, "completion": None}, {}, "20", []),
    "empty cell": ({"messages": TALK, "completion": math.nan}, {}, "20", []),
    "blank": ({"prompt": "10+10=", "response": " ", "answer": "20"}, {}, "20", []),
    "a prompt in messages": ({"prompt": "10+10=", "messages": [OTHER], "answer": "20"}, {}, "20", []),
    "template": (
        {"instruction": "10+", "input": "10=", "output": "20"},
        {"template": "{instruction}{input}"},
        "20",
        [],
    ),
    "alpaca": (
        {"instruction": "10+10=", "input": "3+1", "output": "20"},
        {},
        "20",
        [
            "the prompt is column instruction; input is not read; name another with --dataset.prompt, or several with "
            "--dataset.template"
        ],
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_which_of_several_columns_is_learned(case: str) -> None:
    """The first of them that holds something, unless one is named."""
    row, settings, answer, notes = SEVERAL[case]
    written = written_answers(Source("rows", Dataset(**settings), rows={"": [row]}))
    assert [(problem.prompt, problem.answer) for problem in written.train] == [("10+10=", answer)]
    assert written.notes == notes


def test_rows_of_several_kinds_in_one_file() -> None:
    rows = [
        {"messages": TALK, "prompt": None},
        {"prompt": "1+1=", "answer": "2"},
        {"prompt": [ASKED], "completion": [TALK[1]]},
        {"prompt": "2+2=", "completion": "4", "messages": None},
    ]
    written = written_answers(Source("rows", rows={"": rows}))
    found = [(problem.prompt, problem.answer) for problem in written.train]
    assert found == [("10+10=", "20"), ("1+1=", "2"), ("10+10=", "20"), ("2+2=", "4")]
    assert written.notes == []


def test_a_conversation_must_end_with_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for turns, fault in (
        ([ASKED], "must have two turns or more"),
        ([ASKED, {"role": "assistant", "content": " "}], "has an empty message of the assistant"),
    ):
        path.write_text(json.dumps({"messages": turns}))
        with pytest.raises(GrpoError, match=rf"rows.jsonl:1: column \"messages\" {fault}"):
            read_rows(Source(str(path)), load_policy("nano"))


def test_what_to_do_about_a_long_row(tmp_path: Path) -> None:
    """nano has 128 positions. A long answer is no prompt that could be left out."""
    for row, advice in (({"prompt": "1" * 130, "answer": "2"}, True), ({"prompt": "1+1=", "answer": "2" * 130}, False)):
        with pytest.raises(GrpoError, match=r"exceed the 128 positions of nano; shorten the row") as caught:
            read_rows(Source(str(write(tmp_path / "rows.jsonl", [row]))), load_policy("nano"))
        assert ("--dataset.max-prompt-tokens" in str(caught.value)) == advice


def test_memory_that_runs_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows of 5 + 3 tokens, and room for 100: 16384 is halved to 64. A wish to compute again what a CPU keeps
    reaches the policy, too."""
    monkeypatch.setattr("grpo.model.oom_retry.MIN_TOKENS", 8)
    checkpointing = []

    def small(policy: Policy, batch: Batch, temperature: float, **others: bool) -> tuple[torch.Tensor, torch.Tensor]:
        checkpointing.append(policy.gradient_checkpointing)
        if len(batch.tokens_T) > 100:
            raise torch.OutOfMemoryError
        return logprobs(policy, batch, temperature, **others)

    monkeypatch.setattr("grpo.training.sft.policy_logprobs", small)
    system = System(runs=str(tmp_path / "runs"), gradient_checkpointing=True)
    data = str(write(tmp_path / "rows.jsonl", ROWS[:20]))
    with grpo.sft(SftConfig(model="nano", data=data, steps=2, batch_size=20, system=system)) as run:
        told = [found["text"] for found in run.findings() if found["kind"] == "memory"]
    assert told == ["step 0: out of memory; micro-batches now hold 64 tokens"]
    assert set(checkpointing) == {True}


def test_a_tasks_problems_are_asked_as_grpo_asks_them(tmp_path: Path) -> None:
    policy, task = load_policy("nano"), load_task("arithmetic")
    config = SftConfig(model="nano", task="arithmetic", steps=2, batch_size=3, seed=5)
    batch_of = make_batches(config, task, Problems(()), policy)
    for step in range(2):
        batch = batch_of(step)
        problems = task.draw(step, 3, 5)
        assert [group.problem for group in batch] == problems
        for group, problem in zip(batch, problems, strict=True):
            assert group.prompt_tokens.tolist() == policy.prompt_tokens(problem)
            [done] = group.completions
            assert done.tokens.tolist() == [
                *policy.tokenizer(problem.answer)["input_ids"],
                policy.tokenizer.eos_token_id,
            ]


def test_a_task_is_learned_from_its_golds(tmp_path: Path) -> None:
    system = System(runs=str(tmp_path))
    with grpo.sft(SftConfig(model="nano", task="arithmetic", steps=20, warmup_steps=2, system=system)) as run:
        losses = [value for _, value in run.series("sft_loss")]
        assert settings_line(run) == "nano · arithmetic · sft"
    assert len(losses) == 20
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "field data: missing; write --data FILE or --task NAME"),
        ({"task": "arithmetic"}, "field steps: required with --task; set --steps"),
        ({"data": "rows.jsonl", "dataset": Dataset(heldout_share=0.2)}, "all rows are trained on"),
    ],
)
def test_rows_must_come_from_somewhere_and_end(settings: dict[str, str], message: str) -> None:
    with pytest.raises(GrpoError, match=message):
        grpo.sft(SftConfig(model="nano", **settings))


SETTINGS = (
    "--steps 6 --batch-size 8 --warmup-steps 0 --checkpoint-every 2 --system.threads 1 --system.device cpu --quiet"
)
KILL_POINTS = (
    "update.stepped:4",
    "record.written:5",
    "record.committed:3",
    "checkpoint.model:2",
    "checkpoint.renamed:1",
)


def sft_command(folder: Path, run: str, *source: str) -> list[str]:
    return ["sft", "nano", *source, *SETTINGS.split(), "--system.runs", str(folder), "--run", run, "--resume"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """By name: arguments that say where answers come from, and what an uninterrupted run leaves."""
    folder = tmp_path_factory.mktemp("whole")
    data = str(write(folder / "rows.jsonl", ROWS[:20]))  # 8 rows a step, and 4 at the end of an epoch
    found = {}
    adapted = (data, "--lora.rank", "4", "--lora.targets", "q_proj,down_proj")
    for name, arguments in {"rows": (data,), "task": ("--task", "arithmetic"), "lora": adapted}.items():
        trainer = Trainer(sft_command(folder, name, *arguments), folder)
        assert trainer.ended() == 0, trainer.said()
        found[name] = arguments, contents(folder / name)
    return found


@pytest.mark.parametrize(
    ("source", "place"),
    [*(("rows", place) for place in KILL_POINTS), ("task", "update.stepped:4"), ("lora", "update.stepped:4")],
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, sources: dict[str, Any], source: str, place: str) -> None:
    arguments, expected = sources[source]
    argv = sft_command(tmp_path, "job", *arguments)
    point, _, count = place.partition(":")
    assert Trainer(argv, tmp_path, Orders(kill_at=point, count=int(count))).ended() == -signal.SIGKILL
    again = Trainer(argv, tmp_path)
    assert again.ended() == 0, again.said()
    assert_resumed(tmp_path / "job", expected)


def test_a_killed_rank_resumes_bit_for_bit(tmp_path: Path, sources: dict[str, Any]) -> None:
    argv = [*sft_command(tmp_path, "job", *sources["rows"][0]), "--scale.shard", "optimizer"]
    killed = Ranks(2, argv, tmp_path, {1: Orders(kill_at="gradients.reduced", count=4)})
    assert killed.ended() == [1, -signal.SIGKILL], killed.said()
    again = Ranks(2, argv, tmp_path)
    assert again.ended() == [0, 0], again.said()
    whole = Ranks(2, [*argv, "--run", "whole"], tmp_path)
    assert whole.ended() == [0, 0], whole.said()
    assert_resumed(tmp_path / "job", contents(tmp_path / "whole"))


def test_a_hang_up_ends_the_run_with_a_checkpoint(tmp_path: Path, sources: dict[str, Any]) -> None:
    class HangUp(Callback):
        def on_step(self, step: int, *_: object) -> None:
            if step == 2:
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGHUP)  # a terminal that closes sends it twice

    before = signal.getsignal(signal.SIGHUP)
    arguments, expected = sources["rows"]
    argv = sft_command(tmp_path, "job", *arguments)
    with grpo.sft(parse_sft(argv[1:]), callbacks=[HangUp()]) as run:
        # The record is written behind the loop: the signal may come during the step after this one.
        assert (run.status, run.last_step() in (2, 3)) == ("stopped", True)
        checkpoint = Checkpoints(run.path).newest()
        assert checkpoint is not None
        assert checkpoint.step == (run.last_step() or 0) + 1
    assert signal.getsignal(signal.SIGHUP) == before
    again = Trainer(argv, tmp_path)
    assert again.ended() == 0, again.said()
    assert_resumed(tmp_path / "job", expected)


def test_a_resume_may_train_longer_but_not_on_other_rows(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", ROWS[:20])
    config = SftConfig(
        model="nano",
        data=str(data),
        batch_size=10,
        schedule="constant",
        run="job",
        resume=True,
        system=System(runs=str(tmp_path)),
    )
    grpo.sft(config).close()
    with grpo.sft(replace(config, epochs=2)) as run:
        assert run.last_step() == 3
    with pytest.raises(GrpoError, match=r"field run: job exists in"):
        grpo.sft(replace(config, resume=False))
    with pytest.raises(GrpoError, match=r"field resume: job began with other inputs: lr was 0.001, is 0.5;"):
        grpo.sft(replace(config, lr=0.5))
    write(data, ROWS[1:21])
    with pytest.raises(
        GrpoError,
        match="data: column answer changed, column prompt changed;",
    ):
        grpo.sft(replace(config, epochs=3))
    with pytest.raises(GrpoError, match=r"field run: job is a run of grpo sft, not of grpo train; choose another name"):
        grpo.train(Config(model="nano", run="job", resume=True, system=System(runs=str(tmp_path))))


def test_lora_trains_only_an_adapter_which_export_merges_and_train_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", ROWS)
    adapter = ["--lora.rank", "4", "--lora.alpha", "16", "--lora.targets", "q_proj,down_proj"]
    argv = ["sft", "nano", "rows.jsonl", *adapter, "--lr", "1e-2", "--epochs", "5", "--quiet", "--run", "job"]
    assert main([*argv, "--batch-size", "20"]) == 0
    with Run.open(Path("runs"), "job", readonly=True) as run:
        losses = [value for _, value in run.series("sft_loss")]
        checkpoint = Checkpoints(run.path).newest()
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert checkpoint is not None
    assert {path.name for path in checkpoint.model.glob("*.safetensors")} == {"adapter_model.safetensors"}
    saved = load_file(checkpoint.model / "adapter_model.safetensors")
    layers = load_policy("nano").model.config.num_hidden_layers
    assert len(saved) == 2 * 2 * layers, "A and B of two layers in every block"
    assert len(checkpoint.tensors("optimizer")) == 3 * len(saved)

    assert main(["export", "job", "merged"]) == 0
    base, merged = (
        transformers.AutoModelForCausalLM.from_pretrained(name) for name in (locate_model("nano"), "merged")
    )
    weights = dict(base.named_parameters())
    for name, weight in merged.named_parameters():
        factors = [saved.get(f"base_model.model.{name.replace('weight', f'lora_{part}.weight')}") for part in "AB"]
        A, B = factors
        expected = weights[name] if A is None or B is None else weights[name] + 4 * B @ A  # alpha / rank is 4
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=0)

    capsys.readouterr()
    small = ["--steps", "1", "--prompts-per-step", "2", "--task", "arithmetic:easy", "--evaluation.problems", "20"]
    assert main(["train", "--model", "job", *small, "--run", "grpo", "--quiet"]) == 0
    with Run.open(Path("runs"), "grpo", readonly=True) as run:
        first = run.evals()[0]
    capsys.readouterr()
    assert main(["eval", "merged", "--task", "arithmetic:easy", "--problems", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length_mean"] == first["length_mean"]

    assert main([*argv, "--batch-size", "20", "--resume", "--lora.rank", "8"]) == 2
    assert "began with other inputs: lora.rank was 4, is 8" in capsys.readouterr().err
    assert main(["sft", "nano", "rows.jsonl", "--lora.rank", "4", "--lora.targets", "nothing"]) == 2
    assert "field lora.targets: no linear layer is named 'nothing'" in capsys.readouterr().err
