"""Predicts memory and compute of a run without loading a model."""

from grpo.model.plan.compute import flops
from grpo.model.plan.gpus import GIB, USABLE, gpu_memory
from grpo.model.plan.memory import PRECISIONS, Memory, Precision, memory_of
from grpo.model.plan.shape import SHAPES, Shape, find_shape, read_config, shape_of, typical_shape
from grpo.model.plan.work import Needs, Work, needs

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
