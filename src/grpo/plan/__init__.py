"""Memory and compute of a run, before anything is loaded."""

from grpo.plan.compute import flops
from grpo.plan.gpus import GIB, USABLE, gpu_memory
from grpo.plan.memory import PRECISIONS, Memory, Precision, memory_of
from grpo.plan.shape import SHAPES, Shape, find_shape, read_config, shape_of, typical_shape
from grpo.plan.work import Needs, Work, needs

__all__ = [
    "GIB",
    "PRECISIONS",
    "SHAPES",
    "USABLE",
    "Memory",
    "Needs",
    "Precision",
    "Shape",
    "Work",
    "find_shape",
    "flops",
    "gpu_memory",
    "memory_of",
    "needs",
    "read_config",
    "shape_of",
    "typical_shape",
]
