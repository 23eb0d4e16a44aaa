"""AdamW on several ranks: replicated, with sharded moments, and with weights held in 16 bits, against one rank."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from grpo.config import Optimizer
from grpo.distributed import sharded
from grpo.distributed.buckets import gathered_bytes, make_buckets, reduced_bytes
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError
from grpo.model import optimizer as optimizer_module
from grpo.model.load import load_policy
from grpo.model.optimizer import AdamW, make_optimizer
from helpers.critics import critic_of
from helpers.policies import random_policy
from helpers.ranks import ranks

SHAPES = {"matrix": (7, 5), "norm": (3,), "one": (1,), "wide": (16, 9), "unused": (4,), "vector": (65,), "last": (2, 2)}
HELD = ("matrix", "wide", "last")
MODES = ("none", "optimizer", "weights")
SETTINGS = Optimizer(adam_beta1=0.9, adam_beta2=0.98, weight_decay=0.1)
UPDATES = 6
POISONED = 3
"""Update at which one element of one rank's gradient is not finite."""
LIMIT = 48
"""Elements of a bucket in these tests: weights are cut, and there are several buckets."""

Arrays = dict[str, np.ndarray]


def first_weights() -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    return {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}


def gradients(update: int, rank: int, size: int) -> dict[str, torch.Tensor]:
    """A rank's part of gradients that, summed over the ranks, are the same for every number of ranks, to rounding.

    `unused` has none on any rank, `one` has one only on the last, and in the second update only rank 0 has work.
    """
    torch.manual_seed(100 + update)
    found = {}
    for name, shape in SHAPES.items():
        whole = torch.randn(shape) * 10 ** (update - 2)
        owner = 0 if update == 1 else size - 1 if name == "one" else None
        if name != "unused" and owner in (None, rank):
            found[name] = whole if owner is not None else whole * (rank + 1) / (size * (size + 1) / 2)
    if update == POISONED and rank == size - 1:
        found["one"] = torch.tensor([math.inf])
    return found


def make(world: World, shard: str, named: Mapping[str, torch.nn.Parameter]) -> AdamW:
    if world.size > 1:  # in a process of its own
        for name in ("Shards", "Replicas"):
            setattr(optimizer_module, name, partial(getattr(sharded, name), limit=LIMIT))
    return AdamW(named.items(), SETTINGS, world, shard, {named[name]: torch.bfloat16 for name in HELD})


def descend(optimizer: AdamW, found: Mapping[str, torch.Tensor]) -> float:
    for name, gradient in found.items():
        optimizer.named[name].grad = gradient.clone()
    return optimizer.descend(lr=0.01, grad_clip=1.0)


def arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: tensor.detach().float().numpy().copy() for name, tensor in tensors.items()}


def trained(world: World, shard: str, updates: range, start: tuple[Arrays, Arrays] | None = None) -> dict[str, Any]:
    """Weights, state and norms of some updates, from the first weights or from another run's weights and state."""
    named = first_weights()
    optimizer = make(world, shard, named)
    if start is not None:
        saved, state = ({n: torch.tensor(a) for n, a in each.items()} for each in start)
        optimizer.load(saved if world.first else {})
        optimizer.restore(state if world.first else {})
    history, norms = [], []
    for update in updates:
        norms.append(descend(optimizer, gradients(update, world.rank, world.size)))
        history.append(arrays(named))
        assert all(weight.grad is None for weight in named.values())
    masters = arrays(dict(optimizer.whole({})))
    return {
        "history": history,
        "norms": norms,
        "masters": masters,
        "weights": history[-1] | masters,
        "state": arrays(dict(optimizer.state())),
        "formats": {name: weight.dtype for name, weight in named.items()},
        "kept": [
            (piece.nbytes, piece.untyped_storage().nbytes())
            for piece in optimizer.ranks.parameters
            if optimizer.ranks.number[piece] in optimizer.ranks.held
        ],
    }


def train_in_all_modes(world: World) -> dict[str, dict[str, Any]]:
    return {shard: trained(world, shard, range(UPDATES)) for shard in MODES}


def go_on_in_all_modes(world: World, starts: Mapping[str, tuple[Arrays, Arrays]]) -> dict[str, dict[str, Any]]:
    return {shard: trained(world, shard, range(UPDATES, UPDATES + 2), start) for shard, start in starts.items()}


Runs = list[dict[str, dict[str, Any]]]
"""By rank, then by mode."""


@pytest.fixture(scope="module")
def two() -> Runs:
    return ranks(2, train_in_all_modes)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return trained(ALONE, "none", range(UPDATES))


def close(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


def equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("shard", MODES)
def test_two_ranks_update_as_one(two: Runs, alone: dict[str, Any], shard: str) -> None:
    first, second = (run[shard] for run in two)
    close(first["weights"], alone["weights"])
    close(first["state"], alone["state"])
    np.testing.assert_allclose(first["norms"], alone["norms"], rtol=1e-6)
    assert first["norms"] == second["norms"] or math.isinf(first["norms"][POISONED])
    for mine, other in zip(first["history"], second["history"], strict=True):
        equal(mine, other)


@pytest.mark.parametrize("shard", MODES)
def test_what_has_no_gradient_or_none_that_is_finite_stays_as_it_is(two: Runs, shard: str) -> None:
    run = two[0][shard]
    np.testing.assert_array_equal(run["weights"]["unused"], first_weights()["unused"].detach().numpy())
    assert not any("unused" in name for name in run["state"])
    assert not math.isfinite(run["norms"][POISONED])
    equal(run["history"][POISONED], run["history"][POISONED - 1])
    # One of 6 updates was skipped.
    assert run["state"]["step/matrix"] == 5
    assert run["state"]["step/one"] == 5


def test_only_rank_0_gets_sharded_state_and_the_model_holds_16_bits(two: Runs) -> None:
    for shard in ("optimizer", "weights"):
        assert two[1][shard]["state"] == {}
        assert two[1][shard]["masters"] == {}
    assert two[0]["optimizer"]["masters"] == {}
    assert set(two[0]["weights"]["masters"]) == set(HELD)
    for rank in (0, 1):
        formats = two[rank]["weights"]["formats"]
        assert {name for name, dtype in formats.items() if dtype == torch.bfloat16} == set(HELD)
        kept = two[rank]["weights"]["kept"]
        assert kept
        assert all(own == stored for own, stored in kept), "no piece keeps the whole float32 weight"
    for name, master in two[0]["weights"]["masters"].items():
        held = two[1]["weights"]["history"][-1][name]
        np.testing.assert_array_equal(torch.from_numpy(master).bfloat16().float().numpy(), held)


def test_any_number_of_ranks_goes_on_with_the_state_of_two(two: Runs) -> None:
    starts = {shard: (two[0][shard]["weights"], two[0][shard]["state"]) for shard in MODES}
    expected = trained(ALONE, "none", range(UPDATES, UPDATES + 2), starts["none"])
    three = ranks(3, go_on_in_all_modes, starts)
    for shard, start in starts.items():
        one = trained(ALONE, "none", range(UPDATES, UPDATES + 2), start)
        close(three[0][shard]["weights"], one["weights"])
        close(three[0][shard]["state"], one["state"])
        close(one["weights"], expected["weights"])
        for rank in (1, 2):
            equal(three[rank][shard]["history"][-1], three[0][shard]["history"][-1])


@pytest.mark.parametrize("shard", MODES)
def test_a_restored_state_is_the_saved_state(two: Runs, shard: str) -> None:
    optimizer = AdamW(first_weights().items(), SETTINGS)
    optimizer.restore({name: torch.tensor(array) for name, array in two[0][shard]["state"].items()})
    equal(arrays(dict(optimizer.state())), two[0][shard]["state"])
    with pytest.raises(GrpoError, match="of another model"):
        optimizer.restore({"exp_avg/other": torch.zeros(3)})


def held_at_once(world: World) -> int:
    """Most tensors of a gathered state that exist at the same time, besides the one being made."""
    named = first_weights()
    optimizer = make(world, "optimizer", named)
    descend(optimizer, gradients(0, world.rank, world.size))
    given: list[weakref.ref[torch.Tensor]] = []
    most = 0
    for _, tensor in optimizer.state():
        given.append(weakref.ref(tensor))
        del tensor
        most = max(most, sum(each() is not None for each in given))
    return most


def test_a_state_is_gathered_tensor_by_tensor() -> None:
    """A checkpoint holds one copy in main memory, not two."""
    assert ranks(2, held_at_once) == [1, 0]


def rounded_in_the_model(world: World) -> list[Arrays]:
    """Float32 values of a weight whose gradient depends on the value that the model holds, in bfloat16."""
    named = {"weight": torch.nn.Parameter(first_weights()["wide"].detach())}
    optimizer = AdamW(named.items(), SETTINGS, world, "weights", {named["weight"]: torch.bfloat16})
    found = []
    for update in range(5):
        named["weight"].grad = named["weight"].detach().float() * (update + 1 + world.rank)
        optimizer.descend(lr=0.01, grad_clip=1e9)
        found.append(arrays(dict(optimizer.whole({}))))
    return found


def test_float32_values_follow_gradients_of_rounded_weights() -> None:
    found, _ = ranks(2, rounded_in_the_model)
    weight = torch.nn.Parameter(first_weights()["wide"].detach())
    adam = AdamW([("weight", weight)], SETTINGS)
    for update in range(5):
        held = weight.detach().bfloat16().float()
        weight.grad = held * (update + 1) + held * (update + 2)
        adam.descend(lr=0.01, grad_clip=1e9)
        np.testing.assert_array_equal(found[update]["weight"], weight.detach().numpy())


def saved_in_float32(world: World) -> tuple[set[torch.dtype], Arrays]:
    policy = replace(load_policy("nano"), compute=torch.bfloat16)
    optimizer = make_optimizer(policy, SETTINGS, world, "weights")
    saved = dict(optimizer.whole(policy.weights()))
    return {weight.dtype for weight in policy.model.parameters()}, arrays(saved)


def test_a_policy_is_saved_with_the_float32_values_of_weights_held_in_16_bits() -> None:
    for rank, (formats, saved) in enumerate(ranks(2, saved_in_float32)):
        assert formats == {torch.float32, torch.bfloat16}
        if rank == 0:
            equal(saved, arrays(load_policy("nano").weights()))


def a_critic(world: World, shard: str, saved: Arrays | None = None) -> Arrays:
    """A critic's tensors after one update, or as restored by rank 0; on rank 0."""
    critic = critic_of(replace(random_policy("llama"), compute=torch.bfloat16), shared=False, world=world, shard=shard)
    if saved is None:
        for name, weight in critic.named_parameters():
            values = torch.arange(weight.numel(), dtype=torch.float32).view(weight.shape) / weight.numel()
            weight.grad = (values + len(name)) * (world.rank + 1) / (world.size * (world.size + 1) / 2)
        critic.optimizer.descend(lr=0.01, grad_clip=1.0)
    else:
        critic.restore({name: torch.tensor(array) for name, array in saved.items()} if world.first else {})
    return arrays(dict(critic.tensors()))


def critics(world: World) -> dict[str, tuple[Arrays, Arrays]]:
    found = {shard: a_critic(world, shard) for shard in MODES}
    return {shard: (tensors, a_critic(world, shard, found["none"])) for shard, tensors in found.items()}


def test_a_critic_is_sharded_saved_and_restored_alike() -> None:
    alone, (first, _) = a_critic(ALONE, "none"), ranks(2, critics)
    for trained_there, restored_there in first.values():
        close(trained_there, alone)
        equal(restored_there, first["none"][0])
        equal(a_critic(ALONE, "none", trained_there), trained_there)


# Many ranks, in one process: the intervals, and the bytes that travel.

SEVEN_BILLION = {
    "embedding": (152_064, 3584),
    **{
        f"layer {layer}: {name}": shape
        for layer in range(28)
        for name, shape in {
            "q": (3584, 3584),
            "k": (512, 3584),
            "v": (512, 3584),
            "bias": (4608,),
            "out": (3584, 3584),
            "gate": (18_944, 3584),
            "up": (18_944, 3584),
            "down": (3584, 18_944),
            "norms": (2, 3584),
        }.items()
    },
    "norm": (3584,),
    "head": (152_064, 3584),
}
"""Qwen2.5-7B."""
IN_FLOAT32 = ("embedding", "bias", "norms", "norm")


def test_intervals_of_1024_ranks_cover_every_element_once() -> None:
    sizes = [math.prod(shape) for shape in SEVEN_BILLION.values()]
    assert sum(sizes) == 7_615_616_512
    buckets = make_buckets(sizes, [torch.float32] * len(sizes), 1024)
    ends = [0] * len(sizes)
    shares = [0] * 1024
    for bucket in buckets:
        for rank in range(1024):
            for span in bucket.owned(rank):
                assert span.start == ends[span.weight]
                assert span.offset + span.size <= bucket.interval
                ends[span.weight] += span.size
                shares[rank] += span.size
    assert ends == sizes
    assert max(shares) - min(shares) < 0.01 * sum(sizes) / 1024


@pytest.fixture
def rank_700_of_1024() -> Iterator[World]:
    """A process group whose other ranks are not there: it gives every rank's message the value of this one's."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=700, world_size=1024)
    yield World(rank=700, size=1024, tensors=dist.group.WORLD)
    dist.destroy_process_group()


def test_an_update_of_1024_ranks_sends_what_the_formulas_say(
    rank_700_of_1024: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {"reduced": 0, "gathered": 0}

    def count(kind: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        assert whole.numel() == 1024 * part.numel()
        sent[kind] += whole.nbytes

    monkeypatch.setattr(sharded, "reduce_scatter", lambda mine, flat, group: count("reduced", flat, mine))
    monkeypatch.setattr(sharded, "all_gather", lambda flat, mine, group: count("gathered", flat, mine))
    parameters = sum(math.prod(shape) for shape in SEVEN_BILLION.values())
    wide = sum(math.prod(s) for name, s in SEVEN_BILLION.items() if name.rpartition(" ")[2] in IN_FLOAT32)
    for shard, gathered in (("optimizer", 4 * parameters), ("weights", 4 * wide + 2 * (parameters - wide))):
        named = {n: torch.nn.Parameter(torch.empty(s, device="meta")) for n, s in SEVEN_BILLION.items()}
        held = {w: torch.bfloat16 for n, w in named.items() if n.rpartition(" ")[2] not in IN_FLOAT32}
        shards = AdamW(named.items(), SETTINGS, rank_700_of_1024, shard, held).ranks
        for weight in named.values():
            weight.grad = torch.empty(weight.shape, device="meta")
        sent.update(reduced=0, gathered=0)
        shards.reduce()
        assert all(weight.grad is None for weight in named.values()), "only pieces have gradients"
        shards.publish()
        assert sent == {"reduced": reduced_bytes(shards.buckets), "gathered": gathered_bytes(shards.buckets)}
        assert sent["reduced"] == pytest.approx(4 * parameters, rel=1e-3)
        assert sent["gathered"] == pytest.approx(gathered, rel=1e-3)
        assert sum(p.numel() for p in shards.parameters) == pytest.approx(parameters / 1024, rel=0.01)
