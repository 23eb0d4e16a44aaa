"""A problem's prompt as the model reads it: messages through the chat template, then text through the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo.errors import GrpoError, one_line
from grpo.types import Problem

SET_HERE = ("conversation", "messages", "add_generation_prompt", "continue_final_message", "tokenize")
"""Arguments of the chat template that follow from the problem."""


def prompt_tokens(problem: Problem, tokenizer: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
    """The prompt's tokens, through the chat template where problem and tokenizer have one.

    A conversation that ends with the assistant is continued; otherwise the template begins the assistant's turn.
    """
    if not problem.messages or not tokenizer.chat_template:
        tokens: list[int] = tokenizer(problem.prompt)["input_ids"]
        return tokens
    if taken := [name for name in SET_HERE if name in template_kwargs]:
        raise GrpoError(f"field dataset.chat_template_kwargs: {taken[0]} follows from the messages; leave it out")
    continued = problem.messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in problem.messages],
            add_generation_prompt=not continued,
            continue_final_message=continued,
            tokenize=False,
            **template_kwargs,
        )
    except Exception as error:  # border: a template is a program that came with the model
        reason = one_line(str(error).partition("\n")[0], 200)
        raise GrpoError(
            f"problem {problem.label}: the model's chat template refuses the messages: {reason}; change them, or use "
            "plain text (--dataset.no-chat)"
        ) from error
    # The template has written the special tokens.
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def template_warnings(tokenizer: Any, template_kwargs: Mapping[str, Any], model: str) -> list[str]:
    """One line for each argument that the model's chat template never mentions."""
    template = str(tokenizer.chat_template or "")
    why = f"the chat template of {model} never mentions it" if template else f"{model} has no chat template"
    unused = [name for name in template_kwargs if not re.search(rf"\b{re.escape(name)}\b", template)]
    return [f"dataset.chat_template_kwargs: {name} has no effect: {why}" for name in unused]


def decoded_runs(tokens: Sequence[int], tokenizer: Any) -> Iterator[tuple[str, bool]]:
    """The decoded tokens in runs: (text, whether the run is a special or added token)."""
    added = tokenizer.added_tokens_decoder
    for is_added, run in groupby(tokens, added.__contains__):
        yield tokenizer.decode(list(run)), is_added
