"""Leaves out rows whose prompt has too many tokens (`dataset.max_prompt_tokens`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.types import Problem


@dataclass
class PromptLimit:
    """The limit of one dataset. Without a model, nothing is left out: its tokenizer decides what a token is."""

    settings: Dataset
    model: str
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that prompts describe."""
    notes: list[str] = field(default_factory=list)
    """One line for each set of rows of which some were left out."""

    def within(self, problems: Sequence[Problem], rows: str = "rows") -> list[Problem]:
        """The problems whose rendered prompt is within the limit. `rows` is the set's name in messages."""
        limit = self.settings.max_prompt_tokens
        if not limit or not self.model:
            return list(problems)
        from grpo.model.prompt import prompt_tokens  # imports torch

        kwargs = self.settings.template_kwargs
        lengths = [len(prompt_tokens(problem, self.tokenizer, kwargs, self.tools)) for problem in problems]
        kept = [problem for problem, length in zip(problems, lengths, strict=True) if length <= limit]
        if not kept:
            raise GrpoError(
                f"field dataset.max_prompt_tokens: the prompts of all {len(problems)} {rows} have more than {limit} "
                f"tokens, the shortest has {min(lengths)}; raise it"
            )
        if left_out := len(problems) - len(kept):
            self.notes.append(
                f"dataset: {left_out} of {len(problems)} {rows} left out: prompt longer than {limit} tokens"
            )
        return kept

    @cached_property
    def tokenizer(self) -> Any:
        from grpo.model.load import load_tokenizer  # imports torch
        from grpo.model.prompt import set_chat_template

        tokenizer = load_tokenizer(self.model)
        set_chat_template(tokenizer, self.settings.chat_template)
        return tokenizer
