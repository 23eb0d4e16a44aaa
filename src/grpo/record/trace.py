"""What an update saw of single tokens, for the few groups whose every token is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.types import Completion, Group, Trace

if TYPE_CHECKING:
    import torch


def traced_groups(groups: Sequence[Group], count: int) -> list[int]:
    """Which groups have their tokens recorded: those with unequal rewards first."""

    def all_equal(index: int) -> bool:
        return len({completion.reward for completion in groups[index].completions} - {None}) < 2

    return sorted(range(len(groups)), key=all_equal)[:count]


class Traces:
    """Filled while a step's updates run. Of several updates on a completion the last counts: it has moved furthest."""

    def __init__(self, groups: Sequence[Group], count: int):
        self.wanted = {done for index in traced_groups(groups, count) for done in groups[index].completions}
        self.seen: dict[Completion, Trace] = {}

    def see(
        self, completions: Iterable[Completion], logp_NL: torch.Tensor, entropy_NL: torch.Tensor, denominator: float
    ) -> None:
        """One micro-batch, its rows in the order of `completions`; nothing is copied but what is wanted."""
        for row, done in enumerate(completions):
            if done in self.wanted:
                logp_L, entropy_L = (grid[row, : len(done)].detach().cpu().numpy() for grid in (logp_NL, entropy_NL))
                self.seen[done] = Trace(logp_L, entropy_L, denominator)

    def onto(self, groups: Sequence[Group]) -> list[Group]:
        """The groups, their completions with what was seen of them."""
        return [
            replace(group, completions=tuple(replace(done, trace=self.seen.get(done)) for done in group.completions))
            if any(done in self.seen for done in group.completions)
            else group
            for group in groups
        ]
