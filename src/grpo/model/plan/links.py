"""Links between GPUs, and the bytes and seconds of a collective over a ring of them. No link was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grpo.config.leaf import shown
from grpo.errors import GrpoError

Operation = Literal["all_reduce", "reduce_scatter", "all_gather"]


@dataclass(frozen=True)
class Link:
    bandwidth: float
    """Bytes per second in each direction, as a ring uses it: assumed."""
    between_nodes: bool
    stands_for: str


LINKS: Mapping[str, Link] = {
    "nvlink": Link(350e9, False, "NVLink 4 of an H100 or H200: 450 GB/s in each direction, 78% of it in a ring"),
    "pcie": Link(25e9, False, "PCIe 4.0 with 16 lanes: 31.5 GB/s, 80% of it in a ring"),
    "400gbit": Link(45e9, True, "one 400 Gbit/s adapter a node (InfiniBand NDR, RoCE): 50 GB/s, 90% of it in a ring"),
    "1gbit": Link(0.11e9, True, "one gigabit Ethernet a node: 0.125 GB/s, 88% of it in a ring"),
}
INSIDE, BETWEEN = "nvlink", "400gbit"
"""Links that are assumed where none is named."""


@dataclass(frozen=True)
class Cluster:
    """`nodes` machines with `gpus` GPUs each.

    >>> Cluster(8, 2, "nvlink", "400gbit").slowest(8), Cluster(8, 2, "nvlink", "400gbit").slowest(9)
    ('nvlink', '400gbit')
    """

    gpus: int
    nodes: int = 1
    inside: str = INSIDE
    between: str = BETWEEN

    @classmethod
    def read(cls, gpus: int, nodes: int, link: str) -> Cluster:
        """`link`: one name, or two ("pcie,1gbit"): inside a node, and between nodes. The GPUs of a single node may have
        any link between them."""
        names = [name.strip() for name in link.split(",") if name.strip()]
        for name in names:
            if name not in LINKS:
                raise GrpoError(f"field link: no link is named {shown(name)}; known: {', '.join(LINKS)}")
        between = [name for name in names if LINKS[name].between_nodes]
        inside = [name for name in names if not LINKS[name].between_nodes]
        if len(between) > 1 or len(inside) > 1:
            raise GrpoError(f"field link: {shown(link)} names two links of one kind; write one such as nvlink,400gbit")
        if nodes == 1 and not inside:
            return cls(gpus, 1, *(between or [INSIDE]))
        return cls(gpus, nodes, *(inside or [INSIDE]), *(between or [BETWEEN]))

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes

    def slowest(self, ranks: int) -> str:
        """The link that sets the pace of a ring over the first `ranks` GPUs, which fill one node after another."""
        links = [self.inside] * (self.gpus > 1) + [self.between] * (ranks > self.gpus)
        return min(links or [self.inside], key=lambda name: LINKS[name].bandwidth)


def sent(operation: Operation, size: int, ranks: int) -> int:
    """Bytes that each rank sends, and receives, in a ring; `size`: bytes of the whole buffer.

    >>> sent("all_reduce", 800, 8), sent("reduce_scatter", 800, 8), sent("all_gather", 800, 1)
    (1400, 700, 0)
    """
    return (2 if operation == "all_reduce" else 1) * size * (ranks - 1) // ranks
