"""Reads a command's words into its options, and refuses numbers that cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from grpo import flags
from grpo.errors import GrpoError

T = TypeVar("T")

LEAST: Mapping[str, int] = {
    "count": 1,
    "problems": 1,
    "temperature": 0,
    "max_new_tokens": 0,
    "top_k": 0,
    "group_size": 1,
    "model_problems": 1,
    "samples": 0,
}
"""The least that an option of this name may be, whichever command has it."""


def parse(
    options: type[T], arguments: list[str], prog: str, positionals: Sequence[str], *, least: Mapping[str, int] = LEAST
) -> T:
    if "--help" in arguments or "-h" in arguments:
        flags.show_help(options, prog)
    settings = flags.read(options, arguments, prog=prog, positionals=positionals)
    parsed = flags.build(options, settings, prog=prog)
    for name, bound in least.items():
        if (value := getattr(parsed, name, bound)) < bound:
            raise GrpoError(f"field {name} (command line): must be at least {bound}; got {value}")
    if not 0 < (top_p := getattr(parsed, "top_p", 1.0)) <= 1:
        raise GrpoError(f"field top_p (command line): must be above 0 and at most 1; got {top_p}")
    return parsed
