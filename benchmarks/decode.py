"""Milliseconds per decoded token on a GPU, by the number of rows and by the keys that each row has of its own.

python benchmarks/decode.py
python benchmarks/decode.py --shape qwen2.5-1.5b --prompts 32 --prompt-tokens 256 --rows 8,64,448 --keys 64,1000,4000

Each figure is the median time of a graph replay over nine rounds of ten replays. The rows are spread over the prompts.
In brackets: the share of the memory-traffic floor, the time to read all weights, each prompt's keys and values once for
its rows, and each row's own at 4.3 TB/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import numpy as np
import torch
from floor import Traffic

from grpo.model.plan.shape import shape_of
from grpo.rollout.schedule import Room, Schedule, blocks_of

ROWS = "8,16,32,64,96,128,192,256,384,512,768,1024"
REPLAYS, ROUNDS = 10, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", help="model shape of shapes.py")
    parser.add_argument("--dtype", default="mixed", help="precision, as system.dtype")
    parser.add_argument("--prompts", type=int, default=64, help="most prompts")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--rows", default=ROWS, help="numbers of rows, separated by commas")
    parser.add_argument("--keys", default="64", help="own keys of each row, separated by commas")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("decode.py: no NVIDIA GPU found, and CUDA graphs need one; run it on a machine with one")
    from shapes import SHAPES, random_policy

    from grpo.rollout.cuda.graphs import GraphDecoding

    if arguments.shape not in SHAPES:
        parser.error(f"--shape {arguments.shape}: unknown; use {', '.join(SHAPES)}")
    rows, keys = ([int(number) for number in text.split(",")] for text in (arguments.rows, arguments.keys))
    policy = random_policy(arguments.shape, "cuda", arguments.dtype)
    traffic = Traffic.of(shape_of(policy.model.config.to_dict(), arguments.shape))
    with torch.no_grad():
        bench = Bench(policy, arguments.prompts, arguments.prompt_tokens, rows, keys, GraphDecoding)
        found = {count: bench.milliseconds(count) for count in rows}
    shares = {
        count: {own: round(1e3 * bench.floor(traffic, count, own) / ms, 4) for own, ms in times.items()}
        for count, times in found.items()
    }
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.shape}"
    if arguments.json:
        print(json.dumps({"milliseconds": found, "share_of_floor": shares, "machine": machine}))
    else:
        print("\n".join([*table(found, shares), machine]))


def table(found: dict[int, dict[int, float]], shares: dict[int, dict[int, float]]) -> list[str]:
    lines = ["  rows" + "".join(f"{keys:>9,} own keys" for keys in next(iter(found.values())))]
    for rows, times in found.items():
        cells = (f"{time:.4f} ms ({shares[rows][keys]:.0%})" for keys, time in times.items())
        lines.append(f"{rows:>6}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


class Bench:
    """A decoding that holds the largest number of rows with the most keys."""

    def __init__(
        self, policy: Any, prompts: int, prompt_tokens: int, rows: list[int], keys: list[int], kind: type[Any]
    ):
        from grpo.rollout.cuda.batch import Capacity

        self.prompts, self.prompt_tokens, self.keys = prompts, prompt_tokens, keys
        self.new_tokens = max(keys) + REPLAYS + 1
        own, shared = blocks_of(self.new_tokens), blocks_of(prompt_tokens)
        groups = [self.groups(count) for count in rows]
        capacity = Capacity(
            completions=max(used * size for used, size in groups),
            rows=max(rows),
            prompts=max(used for used, _ in groups),
            prompt_tokens=prompt_tokens,
            new_tokens=self.new_tokens,
            group_size=max(size for _, size in groups),
            blocks=max(rows) * own + prompts * shared,
        )
        self.decoding = kind(policy, capacity)

    def groups(self, rows: int) -> tuple[int, int]:
        """Prompts with rows, and the size of their groups; the last group may be smaller."""
        size = -(-rows // self.prompts)
        return -(-rows // size), size

    def floor(self, traffic: Traffic, rows: int, keys: int) -> float:
        """Shortest seconds of a token of every row."""
        return traffic.seconds(1, rows * keys + self.groups(rows)[0] * self.prompt_tokens)

    def start(self, rows: int) -> None:
        """Fills the batch with rows that have the blocks of all their tokens."""
        decoding, (prompts, size) = self.decoding, self.groups(rows)
        room = Room(decoding.capacity.blocks, rows)
        schedule = Schedule([self.prompt_tokens] * prompts, size, self.new_tokens, room, ahead=self.new_tokens)
        rng, vocabulary = np.random.default_rng(0), decoding.policy.model.config.vocab_size
        tokens = list(rng.integers(10, vocabulary, (prompts, self.prompt_tokens)))
        noise_NL = torch.rand(prompts * size, self.new_tokens, device=decoding.policy.device)
        decoding.begin(schedule, tokens, noise_NL, 1.0)
        look = schedule.look([])
        assert len(look.running) == rows
        decoding.change(look)

    def milliseconds(self, rows: int) -> dict[int, float]:
        """Milliseconds per token, by own keys."""
        self.start(rows)
        graph = self.decoding._graph(self.decoding.size)
        return {keys: round(replay_milliseconds(self.decoding, graph, keys), 4) for keys in self.keys}


def replay_milliseconds(decoding: Any, graph: torch.cuda.CUDAGraph, keys: int) -> float:
    """Median time of one replay."""
    times = []
    for _ in range(ROUNDS):
        decoding.batch.time_B.fill_(keys)
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
