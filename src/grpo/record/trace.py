"""Per-token values of an update, for the few groups whose tokens are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.distributed.world import World
from grpo.types import Completion, Group, Trace

if TYPE_CHECKING:
    import torch


def traced_groups(groups: Sequence[Group], count: int) -> list[int]:
    """Indices of the groups whose tokens are recorded: those with unequal rewards first."""

    def all_equal(index: int) -> bool:
        return len({completion.reward for completion in groups[index].completions} - {None}) < 2

    return sorted(range(len(groups)), key=all_equal)[:count]


class Traces:
    """Collects traces during the updates of a step. Of several updates on a completion, the last one is kept."""

    def __init__(self, groups: Sequence[Group], count: int):
        self.selected = [done for index in traced_groups(groups, count) for done in groups[index].completions]
        self.places = {done: place for place, done in enumerate(self.selected)}
        self.collected: dict[Completion, Trace] = {}

    def collect(
        self, completions: Iterable[Completion], logp_NL: torch.Tensor, entropy_NL: torch.Tensor, denominator: float
    ) -> None:
        """Copy the selected completions of one micro-batch, whose rows are in the order of `completions`."""
        for row, done in enumerate(completions):
            if done in self.places:
                logp_L, entropy_L = (grid[row, : len(done)].detach().cpu().numpy() for grid in (logp_NL, entropy_NL))
                self.collected[done] = Trace(logp_L, entropy_L, denominator)

    def discard(self, groups: Sequence[Group]) -> None:
        """Forget earlier updates on these groups: another rank may compute the next one."""
        for group in groups:
            for done in group.completions:
                self.collected.pop(done, None)

    def gather(self, world: World) -> None:
        """Adds what the other ranks collected. On all of them `selected` has the same order."""
        for part in world.meet({self.places[done]: trace for done, trace in self.collected.items()}):
            self.collected |= {self.selected[place]: trace for place, trace in part.items()}

    def add_to(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the traces of their completions."""
        return [
            replace(
                group, completions=tuple(replace(done, trace=self.collected.get(done)) for done in group.completions)
            )
            if any(done in self.collected for done in group.completions)
            else group
            for group in groups
        ]
