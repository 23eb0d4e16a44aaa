"""CUDA-graph decoding through Triton's interpreter, for machines without a GPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from grpo.rollout.cuda.graphs import GraphDecoding
from grpo.rollout.cuda.warmup import kernel_launches


class InterpretedDecoding(GraphDecoding):
    """Runs each step instead of replaying a graph, so that no GPU is needed."""

    sizes: list[int]
    """Batch sizes of the steps run."""

    def _compile_kernels(self):
        """The interpreter compiles nothing; the launches must still run and leave nothing behind."""
        for launch in kernel_launches(self):
            launch()

    def _graph(self, size: int):
        self.sizes = [*getattr(self, "sizes", []), size]
        return SimpleNamespace(replay=partial(self._step, size))

    def _capture(self, work):
        """A replay reads the tensors that the work was captured with."""
        return SimpleNamespace(replay=work)

    def _recorded_event(self):
        on_gpu = self.policy.device.type == "cuda"
        return super()._recorded_event() if on_gpu else SimpleNamespace(synchronize=lambda: None)
