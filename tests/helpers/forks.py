"""Processes of tests, forked from one server that has torch and grpo loaded already: one costs tenths of a second."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
from unittest import mock

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        *("grpo.training.loop", "grpo.cli.main", "grpo.distributed.agent"),
        *("transformers.models.llama.modeling_llama", "helpers.trainer", "pytest"),
    ]
)

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "GRPO_KILL_AT": "",
}


def ensure_running() -> None:
    """Start the server before the first process. It finds modules where this process finds them."""
    paths = os.pathsep.join(path for path in sys.path if path)
    with mock.patch.dict(os.environ, {**ENVIRONMENT, "PYTHONPATH": paths}):
        multiprocessing.forkserver.ensure_running()
