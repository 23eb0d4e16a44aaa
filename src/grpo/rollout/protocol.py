"""Engines: what turns problems into groups of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grpo.types import Group, Problem


class SamplingEngine(Protocol):
    """Satisfied by `engine.Engine` (the policy's own weights) and `scripted.ScriptedEngine` (given texts)."""

    def sample(
        self,
        problems: Sequence[Problem],
        group_size: int,
        *,
        seed: int,
        step: int,
        temperature: float,
        max_new_tokens: int,
        purpose: str = "train",
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> list[Group]: ...
