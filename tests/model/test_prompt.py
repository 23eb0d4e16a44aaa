"""A prompt is rendered as the chat template and its arguments say, and a conversation of the assistant is continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.config import Checkpoints, Dataset
from grpo.errors import GrpoError
from grpo.model.load import load_policy, load_tokenizer
from grpo.model.prompt import decoded_runs, prompt_tokens, template_warnings
from grpo.rewards.call_log import CallLog
from grpo.rewards.functions import trl_arguments
from grpo.rewards.pool.invoke import Request
from grpo.tasks.rows import Source, read_problems
from grpo.types import Problem, chat
from helpers.runs import small

CHATML = """{%- if not enable_thinking is defined or enable_thinking %}{%- set start = '' %}
{%- else %}{%- set start = '(' %}{%- endif %}
{%- for m in messages %}{%- if m.role == 'user' %}1{% else %}2{% endif %}{{ m.content }}={%- endfor %}
{%- if add_generation_prompt %}2{{ start }}{%- endif %}"""
"""By hand: 1 begins a user's turn, 2 the assistant's, and = ends it; ( opens an answer without thinking."""
PREFILLED = (*chat("3+4"), {"role": "assistant", "content": "7+"})


@pytest.fixture
def tokenizer() -> Any:
    found = load_tokenizer("nano")
    found.chat_template = CHATML
    return found


def rendered(tokenizer: Any, messages: Any, **kwargs: Any) -> str:
    return tokenizer.decode(prompt_tokens(Problem("p", "3+4=", "7", messages=messages), tokenizer, kwargs))


def test_a_conversation_of_the_assistant_is_continued(tokenizer: Any) -> None:
    assert rendered(tokenizer, chat("3+4")) == "13+4=2"
    assert rendered(tokenizer, PREFILLED) == "13+4=27+", "neither an end of the turn nor a second one"


@pytest.mark.parametrize("messages", [chat("3+4"), chat("3+4", "1+1"), PREFILLED])
def test_prompts_are_those_of_trl(tokenizer: Any, messages: Any) -> None:
    trl = pytest.importorskip("trl.data_utils")
    for kwargs in ({}, {"enable_thinking": False}):
        theirs = trl.apply_chat_template({"prompt": [*map(dict, messages)]}, tokenizer, **kwargs)["prompt"]
        assert rendered(tokenizer, messages, **kwargs) == theirs


def test_without_a_template_the_text_ends_with_the_prefill(tmp_path: Path) -> None:
    turns = '{"role": "user", "content": "%d+4="}, {"role": "assistant", "content": "7+"}'
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": [{turns % n}], "answer": "{n}"}}\n' for n in range(2, 9)))
    problems = read_problems(Source(str(file), Dataset(heldout_share=0.3)))
    for problem in (*problems.train, *problems.heldout):
        assert problem.messages[-1] == {"role": "assistant", "content": "7+"}
        assert problem.prompt.endswith("7+")


def test_reward_functions_get_the_prefill_in_the_prompt_and_the_sampled_text_as_completion() -> None:
    """As in TRL 1.16, where a completion is the decoded completion tokens."""
    problem = Problem("p", "3+4=\n\n7+", "7", messages=PREFILLED, conversational=True)
    arguments = trl_arguments(Request(problem, ("0=7", "1")), CallLog(count=2), messages=True)
    assert arguments["prompts"] == [[dict(turn) for turn in PREFILLED]] * 2
    assert arguments["completions"] == [[{"role": "assistant", "content": text}] for text in ("0=7", "1")]


def test_arguments_reach_the_template(tokenizer: Any) -> None:
    assert rendered(tokenizer, chat("3+4"), enable_thinking=False) == "13+4=2("
    told = template_warnings(tokenizer, {"enable_thinking": False, "thinking": True}, "m")
    assert told == ["dataset.chat_template_kwargs: thinking has no effect: the chat template of m never mentions it"]
    tokenizer.chat_template = None
    told = template_warnings(tokenizer, {"enable_thinking": False}, "m")
    assert told == ["dataset.chat_template_kwargs: enable_thinking has no effect: m has no chat template"]


@pytest.mark.parametrize("name", ["conversation", "add_generation_prompt", "tokenize"])
def test_an_argument_that_follows_from_the_messages_is_refused(tokenizer: Any, name: str) -> None:
    with pytest.raises(GrpoError, match=f"field dataset.chat_template_kwargs: {name} follows from the messages; leave"):
        rendered(tokenizer, chat("3+4"), **{name: True})


def test_a_template_that_refuses_the_messages_is_one_line(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(GrpoError, match=r"problem p: .* template refuses the messages: .* alternate; change them$"):
        rendered(tokenizer, chat("3+4"))


def test_runs_tell_added_tokens_from_text(tokenizer: Any) -> None:
    end = tokenizer.eos_token
    tokens = [*tokenizer("12=")["input_ids"], tokenizer.eos_token_id, *tokenizer("3")["input_ids"]]
    assert [*decoded_runs(tokens, tokenizer)] == [("12=", False), (end, True), ("3", False)]


def test_a_run_samples_from_the_rendered_prompts(tmp_path: Path) -> None:
    """The arguments of the run reach its prompts, and one that the template never mentions gets a warning."""
    model = tmp_path / "model"
    policy = load_policy("nano")
    policy.tokenizer.chat_template = CHATML
    policy.model.save_pretrained(model)
    policy.tokenizer.save_pretrained(model)
    rows = [{"prompt": [{"role": "user", "content": f"{n}+4"}], "answer": str(n + 4)} for n in range(10, 40)]
    dataset = {"chat_template_kwargs": {"enable_thinking": False, "thinking": 1}, "heldout_share": 0.3}
    config = small(tmp_path / "runs", model=str(model), task="", dataset=dataset, steps=1, run="job")
    with grpo.train(config, data=rows) as run:
        assert {row["text"] for row in run.findings() if "chat_template_kwargs" in row["text"]} == {
            f"dataset.chat_template_kwargs: thinking has no effect: the chat template of {model} never mentions it"
        }
        assert run.config["dataset"]["chat_template_kwargs"] == '{"enable_thinking": false, "thinking": 1}'
        prompts = run.prompts()
        assert prompts
        assert {row["place"] for row in prompts} <= {f"data[{n}]" for n in range(30)}
        for prompt in prompts:
            assert prompt["text"].startswith("1")
            assert prompt["text"].endswith("+4=2(")
            assert prompt["text"] == policy.tokenizer.decode(prompt["tokens"])
    with pytest.raises(GrpoError, match=r"began with other inputs: dataset.chat_template_kwargs was"):
        grpo.train(replace(config, resume=True, steps=2, dataset=Dataset(heldout_share=0.3)), data=rows)
    # An accepted change of the template is one: the checkpoint has a copy of the old one.
    (model / "chat_template.jinja").write_text(CHATML.replace("2{{", "3{{"))
    accepted = replace(config, resume=True, steps=2, checkpoints=Checkpoints(allow_change=True))
    with grpo.train(accepted, data=rows) as run:
        texts = {row["problem_id"]: row["text"] for row in run.prompts()}
        assert all(texts[group["problem_id"]].endswith("+4=3(") for group in run.groups(1))


def test_every_recorded_problem_has_its_prompt(tmp_path: Path) -> None:
    """Those that dynamic sampling drew, of evaluations and of probes too. By hand: nano's tokens are its characters."""
    config = small(tmp_path, steps=3, loss={"dynamic_sampling": 3.0}, evaluation={"every": 2, "problems": 5})
    with grpo.train(config) as run:
        asked = {
            row["problem_id"]: row["prompt"]
            for table in ("groups", "eval_groups", "probes")
            for row in run.select(f"SELECT problem_id, prompt FROM {table}")
        }
        assert any("+" in problem for problem in asked), "replaced problems"
        assert {row["problem_id"]: row["text"] for row in run.prompts()} == asked
        assert all(len(row["tokens"]) == len(row["text"]) for row in run.prompts())
