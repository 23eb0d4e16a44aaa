"""A problem's prompt as the model reads it: messages through the chat template, then text through the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo.errors import GrpoError, one_line
from grpo.model.tool_text import describe_tools
from grpo.types import Problem

Schema = Mapping[str, Any]
"""JSON schema of a tool, as transformers' `get_json_schema` makes it."""
SET_HERE = ("conversation", "messages", "add_generation_prompt", "continue_final_message", "tokenize")
"""Arguments of the chat template that follow from the problem."""
SETTINGS = {"tools": "episodes.tools", "chat_template": "dataset.chat_template"}
"""Arguments of the chat template that are settings."""
SHIPPED = Path(__file__).parent / "chat_templates"


def prompt_tokens(
    problem: Problem, tokenizer: Any, template_kwargs: Mapping[str, Any], tools: Sequence[Schema] = ()
) -> list[int]:
    """The prompt's tokens, through the chat template where problem and tokenizer have one.

    A conversation that ends with the assistant is continued; otherwise the template begins the assistant's turn. A
    template that knows no tools gets them as text in the system message.
    """
    if not is_chat(problem, tokenizer):
        if tools:
            raise GrpoError(_without_chat(problem, tokenizer))
        tokens: list[int] = tokenizer(problem.prompt)["input_ids"]
        return tokens
    if taken := [name for name in SET_HERE if name in template_kwargs]:
        raise GrpoError(f"field dataset.chat_template_kwargs: {taken[0]} follows from the messages; leave it out")
    if taken := [name for name in SETTINGS if name in template_kwargs]:
        raise GrpoError(f"field dataset.chat_template_kwargs: {taken[0]} is a setting; use {SETTINGS[taken[0]]}")
    tools = problem.tools or tools
    continued = problem.messages[-1]["role"] == "assistant"
    messages = problem.messages if knows_tools(tokenizer) else describe_tools(problem.messages, tools)
    try:
        text = render(
            messages,
            tokenizer,
            template_kwargs,
            tools,
            add_generation_prompt=not continued,
            continue_final_message=continued,
        )
    except Exception as error:  # border: a template is a program that came with the model
        reason = one_line(str(error).partition("\n")[0], 200)
        # Only rows, which have a place, become messages by a setting.
        plain = ", or use plain text (--dataset.no-chat)" if problem.place else ""
        raise GrpoError(
            f"problem {problem.label}: the model's chat template refuses the messages: {reason}; change them{plain}"
        ) from error
    # The template has written the special tokens.
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def is_chat(problem: Problem, tokenizer: Any) -> bool:
    """Whether the problem is read through the chat template, and not as plain text."""
    return bool(problem.messages and tokenizer.chat_template)


def render(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    template_kwargs: Mapping[str, Any],
    tools: Sequence[Schema] = (),
    **form: bool,
) -> str:
    """The text that the chat template writes. May raise anything: a template is a program."""
    text: str = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        # Llama's templates describe an empty list of tools, too.
        tools=[dict(tool) for tool in tools] if tools and knows_tools(tokenizer) else None,
        tokenize=False,
        **form,
        **template_kwargs,
    )
    return text


def knows_tools(tokenizer: Any) -> bool:
    """Whether the chat template writes the tools into the prompt."""
    return _mentions(tokenizer, "tools")


def set_chat_template(tokenizer: Any, template: str) -> None:
    """Replaces the tokenizer's chat template by one that ships (by name) or a file; nothing where `template` is
    empty."""
    if template:
        tokenizer.chat_template = template_file(template).read_text()


def template_file(template: str) -> Path:
    """The file of `dataset.chat_template`.

    >>> template_file("qwen3").name
    'qwen3.jinja'
    """
    shipped = SHIPPED / f"{template}.jinja"
    file = shipped if shipped.is_file() else Path(template)
    if not file.is_file():
        names = ", ".join(sorted(each.stem for each in SHIPPED.glob("*.jinja")))
        raise GrpoError(
            f"field dataset.chat_template: no file {template}; name a Jinja file, or one that ships: {names}"
        )
    return file


def template_warnings(tokenizer: Any, template_kwargs: Mapping[str, Any], model: str) -> list[str]:
    """One line for each argument that the model's chat template never mentions."""
    why = (
        f"the chat template of {model} never mentions it"
        if tokenizer.chat_template
        else f"{model} has no chat template"
    )
    unused = [name for name in template_kwargs if not _mentions(tokenizer, name)]
    return [f"dataset.chat_template_kwargs: {name} has no effect: {why}" for name in unused]


def decoded_runs(tokens: Sequence[int], tokenizer: Any) -> Iterator[tuple[str, bool]]:
    """The decoded tokens in runs: (text, whether the run is a special or added token)."""
    added = tokenizer.added_tokens_decoder
    for is_added, run in groupby(tokens, added.__contains__):
        yield tokenizer.decode(list(run)), is_added


def _mentions(tokenizer: Any, name: str) -> bool:
    return bool(re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template or "")))


def _without_chat(problem: Problem, tokenizer: Any) -> str:
    if tokenizer.chat_template:
        return (
            f"problem {problem.label}: is plain text, which cannot describe tools (episodes.tools); its task must give "
            "messages (--dataset.chat)"
        )
    return (
        "field episodes.tools: the model has no chat template to describe tools with; name a model that has one or a "
        "template (--dataset.chat-template FILE), or answer in a task's method reply"
    )
