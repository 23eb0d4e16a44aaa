"""The gradient of given groups on several ranks, compared with one rank, and the weights of all ranks after updates.

python benchmarks/ranks.py --shape smollm2-135m --device cuda:0 [--ranks 2] [--prompts 64] [--group 16] [--json]

With --device cuda:0 all ranks share that GPU and exchange tensors through gloo. The groups are sampled once, on one
rank. Differences of gradients are relative: the L2 norm of the difference, divided by that of one rank's gradient. One
rank's two micro-batch sizes show how much rounding alone changes. Then each mode of --shard makes updates from weights
and groups of its own: every rank samples its problems with the updated weights. "Gap" is the mean |Δ log-probability|
between sampler and trainer after the first update: it is large where a sampler has old weights.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SHAPES, random_policy

from grpo.config import Config, Optimizer, Scale, System
from grpo.config.schema import Loss, resolve
from grpo.distributed.checksum import differing
from grpo.distributed.launch import launch
from grpo.distributed.world import ALONE, World, joined
from grpo.errors import LostRankError
from grpo.model.optimizer import make_optimizer, take_step
from grpo.model.plan.shard import SHARDS
from grpo.model.policy import Policy
from grpo.rollout.builtin import Engine
from grpo.rollout.protocol import Sampling
from grpo.training.gradient import accumulate_gradients
from grpo.types import Group, Problem

Gradient = list[torch.Tensor]


def problems(arguments: argparse.Namespace, step: int) -> list[Problem]:
    rng = np.random.default_rng([1, step])
    rows = rng.integers(3, 500, (arguments.prompts, arguments.prompt_tokens))
    return [Problem(f"{step}/{i}", " ".join(map(str, row)), "") for i, row in enumerate(rows)]


def sampled(
    policy: Policy, engine: Engine, arguments: argparse.Namespace, step: int, world: World = ALONE
) -> list[Group]:
    """The groups of a step, each completion with an advantage of 1 or -1."""
    sampling = Sampling(seed=1, temperature=1.0, max_new_tokens=arguments.new, step=step)
    groups = world.gather(engine.sample(world.mine(problems(arguments, step)), arguments.group, sampling))
    rng = np.random.default_rng([2, step])
    return [
        replace(
            group,
            completions=tuple(
                replace(each, reward=1.0, advantages=np.full(len(each), rng.choice([-1.0, 1.0]), np.float32))
                for each in group.completions
            ),
        )
        for group in groups
    ]


def make_policy(arguments: argparse.Namespace) -> Policy:
    return random_policy(arguments.shape, arguments.device, arguments.dtype)


def make_config(arguments: argparse.Namespace, tokens: int) -> Config:
    system = System(token_budget=tokens, dtype=arguments.dtype, device=arguments.device)
    return resolve(Config(max_new_tokens=arguments.new, loss=Loss(beta=0.0), system=system))


def gradient_alone(policy: Policy, groups: Sequence[Group], arguments: argparse.Namespace, tokens: int) -> Gradient:
    accumulate_gradients(policy, groups, make_config(arguments, tokens))
    found = [weight.grad for _, weight in policy.trainable()]
    policy.model.zero_grad(set_to_none=True)
    return [gradient for gradient in found if gradient is not None]


def difference(found: Gradient, expected: Gradient) -> float:
    """Relative L2 norm of the difference."""
    pairs = list(zip(found, expected, strict=True))
    apart = sum(float((one - other.to(one.device)).double().square().sum()) for one, other in pairs)
    whole = sum(float(other.double().square().sum()) for _, other in pairs)
    return float((apart / whole) ** 0.5)


def on_one_rank(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Samples the groups, and leaves them and their gradient in the folder. Returns differences of micro-batch sizes
    and of a repetition."""
    policy = make_policy(arguments)
    groups = sampled(policy, Engine(policy), arguments, 0)
    by_size = {part: gradient_alone(policy, groups, arguments, arguments.micro // part) for part in (1, 2, 4)}
    again = gradient_alone(policy, groups, arguments, arguments.micro)
    (folder / "groups").write_bytes(pickle.dumps(groups))
    torch.save([gradient.cpu() for gradient in by_size[1]], folder / "gradient")
    return {
        "repeated": difference(again, by_size[1]),
        "half": difference(by_size[2], by_size[1]),
        "quarter": difference(by_size[4], by_size[1]),
    }


def on_each_rank(arguments: argparse.Namespace, folder: Path, world: World) -> dict[str, Any]:
    groups = pickle.loads((folder / "groups").read_bytes())
    policy = make_policy(arguments)
    world.broadcast([weight.detach() for _, weight in policy.trainable()])
    optimizer = make_optimizer(policy, Optimizer(), world)
    accumulate_gradients(policy, groups, make_config(arguments, arguments.micro), world=world)
    optimizer.ranks.reduce()
    summed = [weight.grad for _, weight in policy.trainable() if weight.grad is not None]
    found: dict[str, Any] = {"gradient": difference(summed, torch.load(folder / "gradient"))}
    del policy, optimizer, summed
    modes = {shard: updated(arguments, groups, world, shard) for shard in SHARDS}
    weights = {shard: mode.pop("weights") for shard, mode in modes.items()}
    for shard, mode in modes.items() if world.first else ():
        mode["from_replicated"] = difference(weights[shard], weights["none"])
    return found | {"modes": modes, "backend": torch.distributed.get_backend(world.tensors)}


def updated(arguments: argparse.Namespace, groups: Sequence[Group], world: World, shard: str) -> dict[str, Any]:
    """Updates in one mode: the first with the given groups, the others with groups of the updated weights."""
    policy = make_policy(arguments)
    world.broadcast([weight.detach() for _, weight in policy.trainable()])
    optimizer, engine = make_optimizer(policy, Optimizer(), world, shard), Engine(policy)
    sampled(policy, engine, arguments, 0, world)  # graphs are captured before the first update
    norms, gaps, drifted = [], [], []
    for step in range(arguments.updates):
        own = sampled(policy, engine, arguments, step, world) if step else groups
        config = make_config(arguments, arguments.micro)
        gaps.append(accumulate_gradients(policy, own, config, world=world).gap)
        norms.append(take_step(policy, optimizer, lr=1e-4, grad_clip=1.0))
        drifted.append(differing(policy.trainable(), world))
    whole = dict(optimizer.whole(policy.weights()))  # on rank 0
    return {
        "weights": [whole[name].cpu() for name, _ in policy.trainable()] if world.first else [],
        "norms": norms,
        "gap": max(gaps[1:], default=0.0),
        "drifted": drifted,
        "graphs": engine.graphs is not None,
        "fused": policy.fused_in_training is not None,
    }


def work_as_rank(arguments: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(1)
    with joined(Scale(), arguments.device) as world:
        found = world.meet(on_each_rank(arguments, folder, world))
    if world.first:
        (folder / "found").write_text(json.dumps(found))


def table(arguments: argparse.Namespace, alone: Mapping[str, float], ranks: Sequence[Mapping[str, Any]]) -> str:
    work = f"{arguments.prompts} × {arguments.group}, {arguments.prompt_tokens} + {arguments.new} tokens"
    micro = arguments.micro
    differences = {
        "one rank, the same again": alone["repeated"],
        f"one rank, micro-batches of {micro // 2:,} instead of {micro:,} tokens": alone["half"],
        f"one rank, micro-batches of {micro // 4:,} instead of {micro:,} tokens": alone["quarter"],
        f"{len(ranks)} ranks": ranks[0]["gradient"],
    }
    lines = [
        f"{arguments.shape}, {work}, {arguments.dtype}, on {arguments.device}, {ranks[0]['backend']}",
        "gradient of given groups, relative L2 difference from one rank:",
        *(f"  {name:64} {found:.3g}" for name, found in differences.items()),
        f"{arguments.updates} updates on {len(ranks)} ranks:",
    ]
    for shard, mode in ranks[0]["modes"].items():
        weights = "DIFFER" if any(mode["drifted"]) else "identical on all ranks"
        norms = ", ".join(f"{norm:.5g}" for norm in mode["norms"])
        lines += [
            f"  {shard}: weights {weights}; relative difference from replicated {mode['from_replicated']:.2g}",
            f"    norms {norms}; gap {mode['gap']:.2g}; graphs {mode['graphs']}, fused {mode['fused']}",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", help=", ".join(SHAPES))
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, shared by all ranks; cuda: one GPU each; or cpu")
    parser.add_argument("--dtype", default="mixed", choices=["mixed", "half", "float32", "bfloat16"])
    parser.add_argument("--prompts", type=int, default=64, help="prompts per update")
    parser.add_argument("--group", type=int, default=16, help="completions per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of a completion")
    parser.add_argument("--micro", type=int, default=16384, help="tokens per micro-batch")
    parser.add_argument("--updates", type=int, default=3, help="updates in each mode")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        work_as_rank(arguments, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = on_one_rank(arguments, folder)
        torch.cuda.empty_cache()
        command = [__file__, *sys.argv[1:], "--folder", name]
        try:
            code = launch(Scale(gpus=arguments.ranks, restarts=0), command)
        except LostRankError as error:
            sys.exit(f"ranks.py: {error}")
        if code:
            sys.exit(code)  # the ranks have printed the error
        ranks = json.loads((folder / "found").read_text())
    print(json.dumps({"one rank": alone, "ranks": ranks}) if arguments.json else table(arguments, alone, ranks))


if __name__ == "__main__":
    main()
