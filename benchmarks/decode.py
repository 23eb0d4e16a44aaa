"""Milliseconds per token of decoding on a GPU, by the number of rows that go on.

python benchmarks/decode.py --shape smollm2-135m --ways plain,few,dependent
python benchmarks/decode.py --check
python benchmarks/decode.py --tiles --batches 16,32,64,128,256

Each figure is a captured graph's replay in the middle of completions, with rows of as many prompts as there are. Ways:
plain: norms, products and gates apart; few: in one kernel each, whatever MOST_TERMS says; dependent: those, started
while the kernel before still runs. --check compares all ways with float64, and with one another over whole completions;
--tiles times each product of a layer alone, with every tile in a list, and says which is best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

BATCHES = "8,16,32,64,96,128,192,256,384,512,768,1024"
WAYS = ("plain", "few", "dependent")
PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 64, 16, 64, 128
REPLAYS, ROUNDS = 10, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--dtype", default="mixed", help="as system.dtype: mixed or bfloat16")
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one-program", type=int, help="most rows whose attention is one kernel; default: as it is")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))}: there are {', '.join(WAYS)}")
    if not torch.cuda.is_available():
        sys.exit("decode.py measures CUDA graphs and needs an NVIDIA GPU; there is none here")
    from shapes import random_policy

    from grpo.rollout.kernels import one_program

    if arguments.one_program is not None:
        one_program.MOST_PROMPT_KEYS = arguments.one_program * PROMPT_TOKENS
    policy = random_policy(arguments.shape, "cuda", arguments.dtype)
    batches = [int(size) for size in arguments.batches.split(",")]
    with torch.no_grad():
        measure = check if arguments.check else tiles if arguments.tiles else milliseconds
        report = measure(policy, batches, ways)
    report["machine"] = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.shape}"
    print(json.dumps(report) if arguments.json else "\n".join(lines(report)))


def lines(report: dict[str, Any]) -> Iterator[str]:
    for name, value in report.items():
        if isinstance(value, dict):
            yield f"{name:>24}  " + "  ".join(f"{key} {number}" for key, number in value.items())
        else:
            yield f"{name}: {value}"


@contextmanager
def way(name: str) -> Iterator[None]:
    from grpo.rollout.kernels import dependent, few_rows

    kept = few_rows.MOST_TERMS, dependent.DEPENDENT_LAUNCH
    few_rows.MOST_TERMS, dependent.DEPENDENT_LAUNCH = 0 if name == "plain" else 1 << 60, name == "dependent"
    try:
        yield
    finally:
        few_rows.MOST_TERMS, dependent.DEPENDENT_LAUNCH = kept


def decoding(policy: Any) -> tuple[Any, torch.Tensor]:
    """Ready to go, and the logits after its prompts."""
    from grpo.rollout.graphs import GraphDecoding
    from grpo.rollout.rows import Room

    room = Room(PROMPTS * GROUP, PROMPTS, PROMPT_TOKENS, NEW_TOKENS, GROUP)
    held, rng = GraphDecoding(policy, room), np.random.default_rng(0)
    return held, held.prefill(list(rng.integers(10, policy.model.config.vocab_size, (PROMPTS, PROMPT_TOKENS))))


def timed(go: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Milliseconds, the median of the rounds."""
    times = []
    for _ in range(ROUNDS):
        before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(REPLAYS):
            go()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPLAYS)
    return statistics.median(times)


def milliseconds(policy: Any, batches: list[int], ways: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {f"{batch} rows": {} for batch in batches}
    for name in ways:
        with way(name):
            held, _ = decoding(policy)
            held.cool.fill_(1.0)
            held.results.noise_SL.uniform_()
            for batch in batches:
                leave_rows(held, batch)
                graph = held._graph(batch)
                spent = timed(graph.replay, lambda held=held: held.rows.time.fill_(NEW_TOKENS // 2))
                report[f"{batch} rows"][name] = round(spent, 4)
        del held, graph
        torch.cuda.empty_cache()
    return report


def leave_rows(held: Any, batch: int) -> None:
    """As many rows of all, evenly spread over the prompts."""
    rows = held.rows
    rows.begin([PROMPT_TOKENS] * PROMPTS, GROUP)
    rows.going_B.zero_()
    rows.going_B[torch.linspace(0, PROMPTS * GROUP - 1, batch).round().long()] = 1
    rows.close_up(PROMPTS * GROUP)


def check(policy: Any, batches: list[int], ways: list[str]) -> dict[str, Any]:
    from grpo.fused.weights import Weights

    report: dict[str, Any] = {}
    weights = Weights(policy.model, policy.compute_dtype)
    for batch in (1, 19, *batches):
        token_B = torch.randint(weights.head.shape[0], (batch,), device="cuda")
        exact = exact_logits(weights, token_B)
        errors = report[f"logits of {batch} rows, relative error"] = {}
        for name in ways:
            with way(name):
                errors[name] = f"{relative_error(weights, token_B, exact):.2e}"
    report |= check_completions(policy, ways)
    return report


def own_values(index: int, qkv_BE: torch.Tensor, layer: Any) -> torch.Tensor:
    """Stands in for attention, which all ways share."""
    return qkv_BE[:, : layer.out.weight.shape[1]].contiguous()


def relative_error(weights: Any, token_B: torch.Tensor, exact: torch.Tensor) -> float:
    from grpo.product import wide_product
    from grpo.rollout.decoder import decoded

    found = wide_product(decoded(weights, token_B, own_values), weights.head).double()
    return float((found - exact).norm() / exact.norm())


def exact_logits(weights: Any, token_B: torch.Tensor) -> torch.Tensor:
    """In float64 from the working copy, rounded nowhere."""

    def normed(x: torch.Tensor, by: Any) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + by.variance_epsilon).sqrt() * by.weight.double()

    def through(maps: Any, x: torch.Tensor) -> torch.Tensor:
        product = x @ maps.weight.double().t()
        return product if maps.bias is None else product + maps.bias.double()

    x = weights.body.embed_tokens.weight[token_B].double()
    for index, layer in enumerate(weights.layers):
        x = x + through(layer.out, own_values(index, through(layer.qkv, normed(x, layer.before)), layer))
        gate, up = through(layer.gate_up, normed(x, layer.after)).chunk(2, dim=1)
        x = x + through(layer.down, torch.nn.functional.silu(gate) * up)
    return normed(x, weights.body.norm) @ weights.head.double().t()


def check_completions(policy: Any, ways: list[str]) -> dict[str, Any]:
    """Dependent launches change no bit of anything; other ways differ by rounding, and later by the tokens it moved."""
    noise = torch.rand(PROMPTS, GROUP, NEW_TOKENS, generator=torch.Generator().manual_seed(0)).cuda()
    found = {}
    for name in ways:
        with way(name):
            held, logits_PV = decoding(policy)
            found[name] = held.run([PROMPT_TOKENS] * PROMPTS, logits_PV, noise, 1.0)
        del held
        torch.cuda.empty_cache()
    report = {}
    for a, b in itertools.combinations(ways, 2):
        (tokens, logp, _), (others, other_logp, _) = found[a], found[b]
        alike = np.cumprod(tokens == others, axis=1).astype(bool)
        report[f"{a} and {b}"] = {
            "same tokens": f"{(tokens == others).mean():.4f}",
            "mean difference of log-probabilities until they part": f"{np.abs(logp - other_logp)[alike].mean():.2e}",
            "every bit": bool((tokens == others).all() and (logp == other_logp).all()),
        }
    return report


def tiles(policy: Any, batches: list[int], ways: list[str]) -> dict[str, Any]:
    """Microseconds of each product of a layer, all layers' weights in turn, so that they come from memory."""
    from grpo.fused.weights import Weights
    from grpo.rollout.kernels import few_rows

    weights, chosen = Weights(policy.model, policy.compute_dtype), few_rows.tile_for
    report: dict[str, Any] = {}
    shapes = itertools.product((16, 32, 64), (16, 32, 64), ((64, 4), (128, 3), (128, 4)))
    candidates = [
        few_rows.Tile(rows, columns, depth, warps=4, stages=stages)
        for rows, columns, (depth, stages) in shapes
        if (stages - 1) * depth * (4 * rows + 4 * columns) <= 150_000
    ]
    for name, batch in itertools.product([name for name in ways if name != "plain"], batches):
        with way(name):
            for product, go in products(weights, batch).items():
                spent = {}
                for tile in candidates:
                    if tile.rows > max(16, 2 * batch):
                        continue
                    few_rows.tile_for = lambda *_, tile=tile: tile
                    spent[tile] = 1000 * timed(captured(go).replay) / len(weights.layers)
                few_rows.tile_for = chosen
                best = sorted(spent, key=spent.__getitem__)[:3]
                ours = 1000 * timed(captured(go).replay) / len(weights.layers)
                found = report[f"{product}, {batch} rows, {name}"] = {"now": round(ours, 2)} | {
                    f"{tile.rows}x{tile.columns}x{tile.depth}/{tile.stages}": round(spent[tile], 2) for tile in best
                }
                print(f"{product}, {batch} rows, {name}: {found}", file=sys.stderr, flush=True)
    return report


def products(weights: Any, batch: int) -> dict[str, Callable[[], Any]]:
    from grpo.rollout.kernels.few_rows import FewRows

    def random(columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(batch, columns, device="cuda").to(dtype)

    layers, kept = weights.layers, weights.body.embed_tokens.weight.dtype
    mixed_BE, gated_BI = (random(maps.weight.shape[1], weights.dtype) for maps in (layers[0].out, layers[0].down))
    few = FewRows(random(layers[0].qkv.weight.shape[1], kept))
    few.add(mixed_BE, layers[0].out)  # which leaves the squares behind, as in the middle of a model
    steps: dict[str, Callable[[Any], Any]] = {
        "qkv": lambda layer: few.normed(layer.before, layer.qkv),
        "out": lambda layer: few.add(mixed_BE, layer.out),
        "gate_up": lambda layer: few.normed_and_gated(layer.after, layer.gate_up),
        "down": lambda layer: few.add(gated_BI, layer.down),
    }
    return {name: lambda step=step: [step(layer) for layer in layers] for name, step in steps.items()}


def captured(go: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    go()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        go()
    return graph


if __name__ == "__main__":
    main()
