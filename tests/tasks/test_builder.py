"""How rows become prompts: conversations, templates, system prompts, and rows without gold answers."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo.cli.main import main
from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks import load_task
from grpo.tasks.builder import Builder
from grpo.tasks.handed_over import name_of_rows, take_rows
from grpo.tasks.readers import DataRow
from grpo.tasks.rows import other_answers
from grpo.types import Problem

USER = {"role": "user", "content": "6*7="}
SYSTEM = {"role": "system", "content": "Be exact."}
PREFILL = {"role": "assistant", "content": "<think>"}


def built(*rows: dict[str, Any], **settings: Any) -> list[Problem]:
    builder = Builder(Dataset(**settings), "{prompt}", str.strip)
    return builder.build([DataRow(f"data[{i}]", row) for i, row in enumerate(rows)])


def asked(prompt: Any, **settings: Any) -> Problem:
    return built({"prompt": prompt, "answer": "42", "level": 3}, **settings)[0]


def refusal(*rows: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(GrpoError) as caught:
        built(*rows, **settings)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_system_prompt_precedes_a_conversation_without_one() -> None:
    problem = asked([USER], system_prompt="Be brief.")
    assert problem.messages == ({"role": "system", "content": "Be brief."}, USER)
    assert (problem.prompt, problem.conversational) == ("Be brief.\n\n6*7=", True)
    assert asked([SYSTEM, USER]).messages == (SYSTEM, USER)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_two_system_prompts_are_refused(role: str) -> None:
    row = {"prompt": [{**SYSTEM, "role": role}, USER], "answer": "42"}
    message = refusal(row, system_prompt="Be brief.")
    assert message.startswith("field dataset.system_prompt: the conversation in data[0] has a system message already")


def test_a_template_is_put_around_the_last_user_message() -> None:
    turns = [SYSTEM, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}, USER, PREFILL]
    messages = asked(turns, template="{prompt} (level {level})").messages
    assert messages == (*turns[:3], {"role": "user", "content": "6*7= (level 3)"}, PREFILL)
    by_name = built({"question": [USER], "answer": "42"}, template="Q: {question}")[0]
    assert by_name.messages == ({"role": "user", "content": "Q: 6*7="},)
    row = {"prompt": [SYSTEM], "answer": "42"}
    assert refusal(row, template="{prompt}!").startswith(
        'data[0]: column "prompt" has no user message for dataset.temp'
    )


def test_the_template_of_a_task_leaves_conversations_alone() -> None:
    rows = take_rows([{"question": [USER], "answer": f"#### {n}"} for n in range(40)])
    task = load_task("gsm8k", name_of_rows(rows), Dataset(heldout="python:1 rows"), rows, rows)
    assert task.draw(0, 1, 1)[0].messages == (USER,)


PARTS = [{"type": "text", "text": "6*"}, {"type": "text", "text": "7=", "image": None}]


def test_text_parts_are_joined() -> None:
    assert asked([{"role": "user", "content": PARTS}]).messages == (USER,)


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ({"role": "user", "content": None}, "content must be text or a list of text parts; got null"),
        ({"role": "user", "content": 7}, "content must be text or a list of text parts; got 7"),
        ({"role": "user", "content": ["6*7="]}, 'content must be text or a list of text parts; got ["6*7="]'),
        (
            {"role": "user", "content": [*PARTS, {"type": "image_url", "image_url": {"url": "x"}}]},
            'content has a part of type "image_url"; only text parts can be read',
        ),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, 'content has a part of type "text"; only text'),
        ({"role": "User", "content": "x"}, 'role "User" is unknown; use system, developer, user, assistant, tool'),
        ({"role": None, "content": "x"}, "role null is unknown; use system"),
        ({"role": ["user"], "content": "x"}, 'role ["user"] is unknown; use system'),
        ({"from": "human", "value": "x"}, "has no role; it has from, value"),
        ({"role": "user"}, "has no content; it has role"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            'tool_calls has {"id": "1"}; write a list of objects with name and arguments',
        ),
        (
            {"role": "assistant", "tool_calls": [{"name": "add", "arguments": "{"}]},
            'tool_calls has arguments that are not JSON: "{"',
        ),
        ({"role": "user", "content": "x", "tool_calls": [{"name": "add"}]}, "has tool_calls, which only the assistant"),
    ],
)
def test_a_bad_message_is_told_in_one_line(turn: dict[str, Any], says: str) -> None:
    message = refusal({"prompt": "1+1=", "answer": "2"}, {"prompt": [SYSTEM, turn], "answer": "42"})
    assert message.startswith(f'data[1]: column "prompt", message 2: {says}')


def test_calls_and_other_keys_reach_the_chat_template() -> None:
    """As OpenAI writes calls, and as Parquet stores them: every object has all keys, None where it has none."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    answer = {"role": "tool", "content": "3", "tool_call_id": "1", "name": "add", "tool_calls": None}
    [problem] = built({"prompt": [USER, call, answer], "answer": "3"})
    assert problem.messages == (
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "1", "name": "add"},
    )
    assert '"arguments": {"a": 1, "b": 2}' in problem.prompt


@pytest.mark.parametrize("prompt", [None, 7, [], {}, ["6*7="], [[USER]], [USER, "6*7="], " "])
def test_a_prompt_that_is_neither_text_nor_conversation_is_refused(prompt: Any) -> None:
    message = refusal({"prompt": prompt, "answer": "42"})
    assert message.startswith('data[0]: column "prompt" must be text that is not empty; got ')


def test_a_conversation_of_empty_messages_is_refused() -> None:
    message = refusal({"prompt": [{"role": "system", "content": " "}, {"role": "user", "content": ""}]})
    assert message == 'data[0]: column "prompt" must have text; every message is empty'


@pytest.mark.parametrize(
    ("value", "gold", "others"),
    [
        (np.int64(42), "42", ()),
        (np.array(["42", "forty-two"]), "42", ("forty-two",)),
        (torch.tensor(42), "42", ()),
        (("42", 43), "42", ("43",)),
        (np.True_, "yes", ()),
        (Decimal("4.20"), "4.20", ()),
        ([], "", ()),
        ({"of": 42}, "", ()),
    ],
)
def test_golds_of_other_types_than_jsons(value: Any, gold: str, others: tuple[str, ...]) -> None:
    """Without a gold, `text.endswith(problem.answer)` would be true of every text."""
    [problem] = built({"prompt": "6*7=", "answer": value})
    assert (problem.answer, other_answers(problem, Dataset())) == (gold, others)
    assert problem.columns["answer"] is value


def test_an_empty_cell_of_pandas_is_no_gold() -> None:
    assert [
        problem.answer for problem in built({"prompt": "6*7=", "answer": math.nan}, {"prompt": "1", "answer": 0.0})
    ] == [
        "",
        "0.0",
    ]


def test_braces_can_be_escaped_in_templates() -> None:
    template = 'Write {{"answer": {{level}}}}, or \\boxed{}: {prompt} {"x"} {{{level}}}'
    assert asked("6*7=", template=template).prompt == 'Write {"answer": {level}}, or \\boxed{}: 6*7= {"x"} {3}'


def test_backslashes_stay_in_templates() -> None:
    assert asked("6*7=", template=r"{prompt} x \neq 1").prompt == r"6*7= x \neq 1"
    assert asked("6*7=", template="Q: {prompt}\nA:").prompt == "Q: 6*7=\nA:"


def test_a_template_must_ask_something() -> None:
    row = {"prompt": "6*7=", "answer": "42", "nums": [6, 7], "hint": None}
    assert "field dataset.template: names no column; put {prompt} where" in refusal(
        row, template="Solve it: {{prompt}}"
    )
    assert built(row, template="Multiply {nums}.")[0].prompt == "Multiply [6, 7]."
    assert refusal(row, template="{prompt} {hint}") == (
        'data[0]: column "hint" is null, and the template puts it into the prompt'
    )


def test_a_template_makes_prompts_of_rows_without_a_question() -> None:
    """As the rows of Countdown: numbers and a target, which is asked for and is not a gold."""
    row = {"nums": [6, 7], "target": 42}
    template = "Use {nums} to make {target}."
    assert refusal(row, template=template).startswith(
        "field dataset.template: {target} would put the gold answer into the prompt; leave it out, or name the gold's "
        "column with --dataset.answer (none: the rows have no golds, and the reward is your own)"
    )
    [problem] = built(row, template=template, answer="none")
    assert (problem.prompt, problem.answer) == ("Use [6, 7] to make 42.", "")
    assert "field dataset.prompt: no column named prompt, " in refusal(row, answer="none")


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        ("{prompt} {answer}", {}),
        ("{prompt} {solution}", {}),  # another of the usual names, with the same golds
        ("{prompt} {answer}", {"answer": "solution"}),
        ("{prompt} {hidden}", {"answer": "hidden"}),
    ],
)
def test_a_template_must_not_hold_the_gold(template: str, settings: dict[str, Any]) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": n + 1, "solution": str(n + 1), "hidden": n + 1} for n in range(3)]
    assert "would put the gold answer into the prompt" in refusal(*rows, template=template, **settings)
    turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    assert "would put the gold answer into the prompt" in refusal(*turns, template=template, **settings)


def test_another_column_with_a_usual_name_may_be_asked() -> None:
    rows = [{"prompt": f"{n}+1=", "answer": n + 1, "label": "sum"} for n in range(3)]
    assert built(*rows, template="{label}: {prompt}")[2].prompt == "sum: 2+1="


def test_rows_without_golds_have_no_verdict() -> None:
    rows = take_rows([{"prompt": f"{n}?"} for n in range(40)])
    task: Any = load_task("data", name_of_rows(rows), Dataset(), rows)
    [problem] = task.draw(0, 1, 1)
    assert (problem.answer, task.is_correct(problem, "7"), task.score(problem, "7")) == ("", None, {"correct": None})
    assert task.traits(problem, "7") == {}
    with pytest.raises(GrpoError, match=r"^field dataset.answer: no column named .*; without gold answers the"):
        task.check_requirements()


ASKED = [{"prompt": f"{a}+{a}="} for a in range(10, 50)]
REWARD = "def short(completions, prompts, topic, **kwargs):\n    return [-len(text) / 10 for text in completions]\n"
FLAGS = (
    "--model nano --system.device cpu --quiet --steps 1 --prompts-per-step 2 --group-size 2 --evaluation.problems 3 "
    "--max-new-tokens 8 --scoring.workers 1 --run job --data rows.jsonl"
)


@pytest.mark.parametrize("some", ["none", "some"])
def test_prompts_without_answers_train_with_a_reward_of_ones_own(
    some: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [{**row, "topic": "sums"} for row in ASKED]
    if some == "some":
        rows = [*({**row, "answer": "42"} for row in rows[:20]), {**rows[20], "answer": None}, *rows[21:]]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("mine.py").write_text(REWARD)
    assert main(["train", *FLAGS.split()]) == 2
    line = capsys.readouterr().err
    assert ("rows.jsonl:21: column" if some == "some" else "field dataset.answer: no column named answer") in line
    assert "give a reward of your own (--reward file.py:function" in line
    assert main(["train", *FLAGS.split(), "--reward", "mine.py:short, task"]) == 2, "the task's checker needs golds"
    assert not Path("runs").exists()
    assert main(["train", *FLAGS.split(), "--reward", "mine.py:short"]) == 0
    if some == "none":
        capsys.readouterr()
        assert main(["runs", "job", "--json"]) == 0
        evaluations = json.loads(capsys.readouterr().out)["eval"]
        assert [(row["accuracy"], row["greedy_accuracy"]) for row in evaluations] == [(None, None)] * 2
        assert all(row["reward_mean"] < 0 for row in evaluations)
    assert main(["check", "--data", "rows.jsonl"]) == 2
    assert "without gold answers the task's checker cannot score" in capsys.readouterr().err


def test_sft_needs_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ASKED))
    of_rows, of_a_task = ["nano", "rows.jsonl"], ["nano", "--task", "data", "--data", "rows.jsonl", "--steps", "1"]
    for flags, first in ((of_rows, "completion"), (of_a_task, "answer")):
        assert main(["sft", *flags]) == 2
        assert f"field dataset.answer: no column named {first}, " in capsys.readouterr().err
