"""Conversations in supervised fine-tuning: the assistant's turns are learned, the rest is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.model.load import load_policy
from grpo.model.prompt import prompt_tokens
from grpo.tasks.rows import Source, written_answers
from grpo.training.sft import accumulate_gradients, with_answers
from grpo.types import Group
from helpers.chats import chat_policy

CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}],
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "1 and 2?"},
    CALL,
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


def talk(policy: Any, row: dict[str, Any], **settings: Any) -> Group:
    written = written_answers(Source("rows", Dataset(**settings), rows={"": [row]}))
    policy.prompt_tokens = lambda problem: prompt_tokens(problem, policy.tokenizer, {})
    policy.positions = 4096
    [group] = with_answers(written.train, policy, written.conversations)
    return group


@pytest.mark.parametrize("form", ["messages", "completion"])
@pytest.mark.parametrize("name", ["ours", "qwen2_5"])
def test_a_conversation_is_the_whole_that_the_template_writes_and_its_turns_are_learned(name: str, form: str) -> None:
    policy = chat_policy(name)
    row = {"messages": TALK} if form == "messages" else {"prompt": TALK[:1], "completion": TALK[1:]}
    group = talk(policy, row | {"tools": json.dumps([ADD])})
    [done] = group.completions
    decode = policy.tokenizer.decode
    whole = policy.tokenizer.apply_chat_template(TALK, tools=[ADD], tokenize=False)
    assert decode([*group.prompt_tokens, *done.sequence]) + "\n" == whole
    call = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    assert decode(done.tokens) == f"{call}<|im_end|>It is 3.<|im_end|>Yes.<|im_end|>"
    assert done.turns == (call, "It is 3.", "Yes.")
    assert [seen.text for seen in done.observations] == ["3", "Sure?"]
    assert done.turn_ends[-1] == len(done)


def test_a_template_without_tools_gets_calls_and_answers_as_text() -> None:
    policy = chat_policy("smollm2")
    group = talk(policy, {"messages": TALK, "tools": [ADD]})
    [done] = group.completions
    read = [policy.tokenizer.decode(seen.tokens) for seen in done.observations]
    start = "<|im_end|>\n<|im_start|>assistant\n"
    assert "To call one, write its name and arguments as JSON" in policy.tokenizer.decode(group.prompt_tokens)
    assert done.turns[0] == '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    assert read == [
        f"\n<|im_start|>user\n<tool_response>\n3\n</tool_response>{start}",
        f"\n<|im_start|>user\nSure?{start}",
    ]


def test_turns_end_as_the_template_ends_them() -> None:
    """A base model's tokenizer ends texts with another token than its chat template. Without a chat, and without a turn
    end that the model knows, it is the tokenizer's, or else any end token of the model."""
    policy = chat_policy("qwen2_5", end="<|endoftext|>")
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|im_start|>"]})
    [eos, turn_end] = policy.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    decode = policy.tokenizer.decode
    row = {"messages": TALK[:1] + TALK[3:]}
    plain = {"prompt": "1", "completion": "2"}

    def ends(row: dict[str, Any], *tokens: int, **settings: Any) -> str:
        policy.end_tokens = frozenset(tokens)
        [done] = talk(policy, row, **settings).completions
        return decode(done.tokens)

    assert ends(row, eos, turn_end) == "It is 3.<|im_end|>Yes.<|im_end|>"
    assert ends(plain, eos, turn_end) == "2<|im_end|>"
    assert ends(plain, eos, turn_end, chat=False) == "2<|endoftext|>"
    assert ends(plain, eos) == "2<|endoftext|>"
    assert ends(plain, turn_end, chat=False) == "2<|im_end|>"


def test_a_template_that_rewrites_turns_is_refused() -> None:
    with pytest.raises(GrpoError, match=r"field model: the chat template of qwen3 changes an earlier turn"):
        talk(chat_policy("qwen3"), {"messages": TALK})


def test_only_the_assistants_tokens_of_a_conversation_count(tmp_path: Path) -> None:
    """Cross-entropy of the stock model on the whole sequence, with a mask by hand; plain text, so no template."""
    turns = ("10+10=", "(1", "0;", ")20", "5", "2")
    roles = ("user", "assistant", "tool", "assistant", "user", "assistant")
    row = {"messages": [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]}
    ours, stock = load_policy("nano"), load_policy("nano")
    stock.model.config._attn_implementation = "sdpa"
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n" + json.dumps({"messages": row["messages"][:2]}))
    written = written_answers(Source(str(file)))
    loss, tokens = accumulate_gradients(ours, with_answers(written.train, ours, written.conversations), 40)
    total, end = torch.zeros(()), stock.tokenizer.eos_token_id
    for texts in (turns, turns[:2]):
        encoded = [stock.tokenizer(text)["input_ids"] for text in texts]
        sequence = [token for at, each in enumerate(encoded) for token in (each if at % 2 == 0 else [*each, end])]
        own = [at % 2 == 1 for at, each in enumerate(encoded) for _ in (each if at % 2 == 0 else [*each, end])]
        logits = stock.model(torch.tensor([sequence])).logits[0, :-1]
        terms = torch.nn.functional.cross_entropy(logits, torch.tensor(sequence[1:]), reduction="none")
        total = total + terms[torch.tensor(own[1:])].sum()
    assert tokens == 3 + 4 + 2 + 3  # with their end tokens
    (total / tokens).backward()
    assert loss == pytest.approx(total.item() / tokens, rel=1e-5)
    for a, b in zip(ours.model.parameters(), stock.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": TALK[:3]},
            'column "messages": the last message to learn is of role tool; it must be',
        ),
        ({"prompt": "1", "completion": TALK[:2]}, 'column "completion": the first message to learn is of role user'),
        ({"messages": [*TALK, TALK[-1]]}, 'column "messages" has two messages of the assistant in a row; join them'),
        ({"messages": TALK, "tools": "add"}, 'column "tools" must be a list of JSON schemas of functions; got "add"'),
    ],
)
def test_conversations_that_cannot_be_learned(row: dict[str, Any], message: str) -> None:
    with pytest.raises(GrpoError) as caught:
        talk(chat_policy("ours"), row)
    assert str(caught.value).startswith(f"data[0]: {message}")
