"""Reads the one line that a mistake gets."""

from __future__ import annotations

import pytest

from grpo.config.schema import parse_train
from grpo.errors import GrpoError


def refusal(*argv: str, parse=parse_train) -> str:
    with pytest.raises(GrpoError) as caught:
        parse(list(argv))
    message = str(caught.value)
    assert message.isprintable(), "one line, whatever was typed"
    return message
