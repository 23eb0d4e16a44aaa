"""Milliseconds per decoded token on a GPU, by the number of active rows.

python benchmarks/decode.py [--shape smollm2-135m] [--batches 8,64,512,1024] [--one-program 1024] [--json]

Each figure is the median time of a graph replay in the middle of the completions, over nine rounds of ten replays. The
active rows are spread evenly over 64 prompts. --one-program sets the largest number of rows whose attention is computed
by a single kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import numpy as np
import torch

BATCHES = "8,16,32,64,96,128,192,256,384,512,768,1024"
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 64, 16, 64, 128
REPLAYS, ROUNDS = 10, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", help="model shape of shapes.py")
    parser.add_argument("--dtype", default="mixed", help="precision, as system.dtype")
    parser.add_argument("--batches", default=BATCHES, help="numbers of active rows, separated by commas")
    parser.add_argument("--one-program", type=int, help="most rows with attention in one kernel; default: grpo's")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("decode.py: no NVIDIA GPU found, and CUDA graphs need one; run it on a machine with one")
    from shapes import random_policy

    from grpo.rollout.cuda.kernels import one_program

    policy = random_policy(arguments.shape, "cuda", arguments.dtype)
    if arguments.one_program is not None:
        config = policy.model.config
        keys = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        one_program.MOST_PROMPT_KEYS = arguments.one_program * PROMPT_TOKENS * keys
    with torch.no_grad():
        times = milliseconds(policy, [int(size) for size in arguments.batches.split(",")])
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.shape}"
    if arguments.json:
        print(json.dumps({"milliseconds": times, "machine": machine}))
    else:
        print("\n".join([*(f"{rows:>6} rows {time:.4f} ms" for rows, time in times.items()), machine]))


def milliseconds(policy: Any, sizes: list[int]) -> dict[int, float]:
    """Milliseconds per token, by the number of active rows."""
    from grpo.rollout.cuda.graphs import GraphDecoding
    from grpo.rollout.cuda.slots import Capacity

    decoding = GraphDecoding(policy, Capacity(PROMPTS * GROUP, PROMPTS, PROMPT_TOKENS, NEW_TOKENS, GROUP))
    prompts = np.random.default_rng(0).integers(10, policy.model.config.vocab_size, (PROMPTS, PROMPT_TOKENS))
    decoding.prefill(list(prompts))
    decoding.sampler.inverse_temperature.fill_(1.0)
    decoding.sampler.results.noise_SL.uniform_()
    times = {}
    for size in sizes:
        keep_rows(decoding.batch, size)
        times[size] = round(replay_milliseconds(decoding, decoding._graph(size)), 4)
    return times


def keep_rows(batch: Any, count: int) -> None:
    """Deactivates all rows except `count`, evenly spread over the prompts."""
    batch.start([PROMPT_TOKENS] * PROMPTS, GROUP)
    batch.active_B.zero_()
    batch.active_B[torch.linspace(0, PROMPTS * GROUP - 1, count).round().long()] = 1
    batch.compact(PROMPTS * GROUP)


def replay_milliseconds(decoding: Any, graph: torch.cuda.CUDAGraph) -> float:
    """Median time of one replay."""
    times = []
    for _ in range(ROUNDS):
        decoding.batch.time.fill_(NEW_TOKENS // 2)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPLAYS)
    return statistics.median(times)


if __name__ == "__main__":
    main()
