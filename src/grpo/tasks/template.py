"""A prompt's template: text with columns in braces, such as "Q: {question}"; {{ and }} are braces themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo.errors import GrpoError

FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True)
class Template:
    """A template. Braces around anything but a word stay as they are, as in \\boxed{}.

    >>> Template("Q: {ask}\\nAnswer in \\\\boxed{} or as {{ask}}.").filled({"ask": "6*7="}, "rows.jsonl:1")
    'Q: 6*7=\\nAnswer in \\\\boxed{} or as {ask}.'
    """

    text: str

    @cached_property
    def names(self) -> frozenset[str]:
        """The columns it names."""
        return frozenset(found[1] for found in FIELD.finditer(self.text) if found[1])

    def filled(self, values: Mapping[str, Any], place: str) -> str:
        """The text with the values in place of their names."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if not name:
                return found[0][0]
            if name not in values:
                known = ", ".join(values)
                raise GrpoError(f"field dataset.template: {found[0]} names no column of {place}, which has {known}")
            if values[name] is None:
                raise GrpoError(f'{place}: column "{name}" is null, and the template puts it into the prompt')
            return str(values[name])

        return FIELD.sub(value, self.text)
