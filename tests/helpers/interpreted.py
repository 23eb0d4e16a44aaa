"""CUDA-graph decoding through Triton's interpreter, for machines without a GPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from grpo.rollout.cuda.graphs import GraphDecoding
from grpo.rollout.cuda.warmup import rehearsals


class InterpretedDecoding(GraphDecoding):
    """Does the work again instead of replaying a graph, so that it works without a GPU."""

    batches: list[int]

    def _rehearse(self):
        """The interpreter compiles nothing; that its works run, and leave nothing behind, can be seen all the same."""
        for work in rehearsals(self):
            work()

    def _graph(self, batch: int):
        self.batches = [*getattr(self, "batches", []), batch]
        return SimpleNamespace(replay=partial(self._replay, batch))

    def _replay(self, batch: int) -> None:
        """The host hears of the token before."""
        before = int(self.rows.count)
        self._step(batch)
        self.going.fill_(before)

    def _capture(self, work):
        """A replay reads the tensors that the work was captured with."""
        return SimpleNamespace(replay=work)

    def _moment(self):
        return SimpleNamespace(synchronize=lambda: None)
