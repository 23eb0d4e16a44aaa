"""Prints a problem's prompt, in a terminal or a log: as messages, or as the tokens that a model reads.

A new line is shown as ⏎ at the end of its line. Prompts are untrusted: control characters are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from grpo.cli.terminal.line import FAINT, write_line
from grpo.errors import one_line
from grpo.model.prompt import Schema, decoded_runs, prompt_tokens
from grpo.tasks.conversation import message_text
from grpo.types import Problem

MARKED = "bold cyan"


@dataclass(frozen=True)
class ShownPrompt:
    problem: Problem
    blocks: Sequence[Sequence[tuple[str, bool]]]
    """Printed one below another: texts, and whether each is a special token or a role."""
    tokens: Sequence[int] | None = None

    def as_dict(self) -> dict[str, Any]:
        rendered = "".join(text for block in self.blocks for text, _ in block)
        return {
            "problem": self.problem.label,
            "answer": self.problem.answer,
            "messages": [dict(message) for message in self.problem.messages],
            "text": self.problem.prompt if self.tokens is None else rendered,
            **({} if self.tokens is None else {"tokens": self.tokens}),
        }

    def text(self) -> Text:
        count = f"   {len(self.tokens)} tokens" if self.tokens is not None else ""
        answer = f"   gold {_visible(self.problem.answer)}" if self.problem.answer else ""
        header = Text(f"{_visible(self.problem.label)}{count}{answer}", FAINT)
        blocks = [Text.assemble(*((_visible(run), MARKED * marked) for run, marked in block)) for block in self.blocks]
        return Text("\n").join([header, *blocks])


def as_messages(problem: Problem) -> ShownPrompt:
    """The messages by role, or the plain text."""
    turns = [[(f"{turn['role']}: ", True), (message_text(turn), False)] for turn in problem.messages]
    return ShownPrompt(problem, turns or [[(problem.prompt, False)]])


def as_tokens(
    problem: Problem, tokenizer: Any, template_kwargs: Mapping[str, Any], tools: Sequence[Schema] = ()
) -> ShownPrompt:
    """The prompt as a model with this tokenizer reads it."""
    tokens = prompt_tokens(problem, tokenizer, template_kwargs, tools)
    return ShownPrompt(problem, [[*decoded_runs(tokens, tokenizer)]], tokens)


def print_prompts(prompts: Sequence[ShownPrompt]) -> None:
    """Special tokens are bold if there is a terminal."""
    for index, prompt in enumerate(prompts):
        text = Text("\n" if index else "").append_text(prompt.text())
        if sys.stdout.isatty():
            Console().print(text, soft_wrap=True)
        else:
            write_line(text.plain)


def _visible(text: str) -> str:
    return "⏎\n".join(one_line(line, sys.maxsize - 1) for line in text.split("\n"))
