"""The ranks of a run as its record describes them: how many, on which hosts, what they divide, how long each waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.record.reader import RunReader

SHARDED = {
    "none": "replicated",
    "optimizer": "optimizer moments sharded",
    "weights": "optimizer moments and float32 weights sharded",
}
"""What ranks divide among them, by `scale.shard`."""
LISTED = 4
"""Most ranks whose idle shares are listed one by one."""


@dataclass(frozen=True)
class Ranks:
    """The record's meta entry `world`. A record without one has a single rank.

    >>> ranks = Ranks(4, ("gpu-1", "gpu-1", "gpu-2", "gpu-2"), "optimizer")
    >>> str(ranks), ranks.name(3)
    ('4 ranks on 2 hosts, optimizer moments sharded', 'rank 3 on gpu-2')
    """

    size: int = 1
    hosts: Sequence[str] = ("",)
    """By rank."""
    shard: str = "none"

    @classmethod
    def of(cls, run: RunReader) -> Ranks:
        return cls(**(run.meta("world") or {}))

    def __bool__(self) -> bool:
        """Whether there are several."""
        return self.size > 1

    def __str__(self) -> str:
        return f"{self.count()}, {SHARDED[self.shard]}"

    def count(self) -> str:
        hosts = len({*self.hosts})
        return f"{self.size} ranks on {hosts} host{'s' if hosts > 1 else ''}"

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def idle(self, rows: Iterable[Mapping[str, Any]]) -> list[float]:
        """Mean idle share of each rank over the steps in which all were measured; empty where there is none.

        >>> Ranks(2, ("a", "a")).idle([{"idle/0": 0.25, "idle/1": 0.5}, {"idle/0": 0.75, "idle/1": 0.5}])
        [0.5, 0.5]
        """
        names = [f"idle/{rank}" for rank in range(self.size)]
        measured = [[row[name] for name in names] for row in rows if all(row.get(name) is not None for name in names)]
        return [fmean(shares) for shares in zip(*measured, strict=True)]

    def idle_text(self, shares: Sequence[float]) -> str:
        """
        >>> Ranks(2, ("a", "a")).idle_text([0.031, 0.412])
        'idle 3% 41% by rank'
        >>> Ranks(6, ["a"] * 6).idle_text([0.1, 0.1, 0.1, 0.1, 0.5, 0.3])
        'idle 20% (mean), 50% (rank 4 on a)'
        """
        if len(shares) <= LISTED:
            return f"idle {' '.join(f'{share:.0%}' for share in shares)} by rank"
        most = max(shares)
        return f"idle {fmean(shares):.0%} (mean), {most:.0%} ({self.name(shares.index(most))})"
