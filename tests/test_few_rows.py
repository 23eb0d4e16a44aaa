"""Products of few rows in one kernel each, against float64 and against the kernels they replace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from conftest import random_policy
from grpo.adapter import adapt
from grpo.config import Lora

pytest.importorskip("triton")

from grpo.fused.kernels import gated, norm
from grpo.fused.weights import Linear, Weights
from grpo.rollout.decoder import decoded
from grpo.rollout.kernels import dependent, few_rows
from test_kernels import DEVICE, DTYPES, error, random

NARROW = DTYPES[1][0]
EPS = 1e-5


def maps_of(columns: int, depth: int, dtype: torch.dtype, bias: bool) -> Linear:
    module: Any = SimpleNamespace(
        weight=random(columns, depth, seed=1) / depth**0.5, bias=random(columns, seed=2) if bias else None
    )
    return Linear([module], dtype)


def exact(maps: Linear, x: torch.Tensor) -> torch.Tensor:
    bias = 0.0 if maps.bias is None else maps.bias.double()
    return x.double() @ maps.weight.double().t() + bias


def norm_of(depth: int) -> Any:
    return SimpleNamespace(weight=1 + 0.1 * random(depth, seed=3), variance_epsilon=EPS)


def exactly_normed(x: torch.Tensor, by: Any) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * by.weight.double()


def steps_apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The greatest difference, in steps of the narrow type at the size of the number, or of the typical one."""
    gap, size = (found.double() - expected.double()).abs(), expected.double().abs()
    return float((gap / (size + size.pow(2).mean().sqrt())).max()) / torch.finfo(NARROW).eps


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs them one after another."""
    monkeypatch.setattr(few_rows, "PROGRAMS", 1)


KINDS = [
    (dtype, bound, kept, bias) for dtype, bound in DTYPES for kept, bias in ((torch.float32, False), (dtype, True))
]
"""Precision of the weights and its bound, precision of the residual, whether there is a bias."""


@pytest.mark.parametrize(("dtype", "bound", "kept", "bias"), KINDS)
def test_normed_product(dtype: torch.dtype, bound: float, kept: torch.dtype, bias: bool) -> None:
    """SmolLM2's queries, keys and values; rows that fill no tile."""
    x, by, maps = 3 * random(19, 576, dtype=kept), norm_of(576), maps_of(960, 576, dtype, bias)
    found = few_rows.FewRows(x).normed(by, maps)
    assert found.dtype == dtype
    assert error(found, exact(maps, exactly_normed(x, by))) < bound
    replaced = maps(norm(x, by.weight, EPS, dtype)[0])
    assert steps_apart(found, replaced) < (1e-2 if dtype == torch.float32 else 4)


@pytest.mark.parametrize(("dtype", "bound", "kept", "bias"), KINDS)
def test_normed_gated_product(dtype: torch.dtype, bound: float, kept: torch.dtype, bias: bool) -> None:
    x, by, maps = 3 * random(5, 200, dtype=kept), norm_of(200), maps_of(2 * 328, 200, dtype, bias)
    found = few_rows.FewRows(x).normed_and_gated(by, maps)
    gate, up = exact(maps, exactly_normed(x, by)).chunk(2, dim=1)
    assert error(found, silu(gate) * up) < bound
    replaced = gated(maps(norm(x, by.weight, EPS, dtype)[0]))
    assert steps_apart(found, replaced) < (1e-2 if dtype == torch.float32 else 4)


@pytest.mark.parametrize(("dtype", "bound", "kept", "bias"), KINDS)
def test_product_onto(dtype: torch.dtype, bound: float, kept: torch.dtype, bias: bool) -> None:
    maps, residual = maps_of(136, 200, dtype, bias), random(19, 136, dtype=kept, seed=4)
    x = random(19, 200, dtype=dtype)
    expected = residual.double() + exact(maps, x)
    few, again = few_rows.FewRows(residual.clone()), few_rows.FewRows(residual.clone())
    for stream in (few, again):
        stream.add(x, maps)
    # A float32 residual keeps the sum unrounded, whatever the products are computed from.
    assert error(few.residual_BC, expected) < (2e-6 if kept == torch.float32 else bound)
    assert torch.equal(few.residual_BC, again.residual_BC)
    # The norm after it takes the squares that it left, which are those of the sum as it is kept.
    assert few.squares_BX is not None
    assert error(few.squares_BX.sum(1), few.residual_BC.double().pow(2).sum(1)) < 1e-6
    by, after = norm_of(136), maps_of(72, 136, dtype, bias)
    afresh = few_rows.FewRows(few.residual_BC)
    assert steps_apart(few.normed(by, after), afresh.normed(by, after)) < (1e-2 if dtype == torch.float32 else 4)


@pytest.mark.parametrize("rows", [1, 17, 64, 65, 129, 256])
def test_tiles_cover_few_rows_with_many_programs(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "PROGRAMS", 96)
    for columns, depth in ((960, 576), (576, 576), (1536, 576), (576, 1536), (18944, 3584)):
        tile = few_rows.tile_for(rows, columns, depth)
        programs = -(-rows // tile.rows) * -(-columns // tile.columns)
        assert tile.columns == 16 or programs >= few_rows.PROGRAMS
        # On their way: a residual in float32, two weights in bfloat16. Besides: the norm that is being multiplied.
        memory = (tile.stages - 1) * tile.depth * (4 * tile.rows + 4 * tile.columns + 4) + 2 * tile.rows * tile.depth
        assert memory <= 99 * 1024, "what a program has on the smallest GPUs from Ampere on"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_decoder_is_the_same_with_few_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(name)
    policy.model.to(DEVICE)
    weights = Weights(policy.model, torch.float32)
    token_B = torch.tensor([3, 40, 7, 7, 1], device=DEVICE)

    def own_values(index: int, qkv_BE: torch.Tensor, layer: Any) -> torch.Tensor:
        return qkv_BE[:, : layer.out.weight.shape[1]].contiguous()

    with torch.no_grad():
        expected = decoded(weights, token_B, own_values)
        monkeypatch.setattr("grpo.rollout.decoder.fits_few_rows", lambda *_: True)
        found = decoded(weights, token_B, own_values)
    assert not torch.equal(found, torch.zeros_like(found))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 on a GPU, few rows, no adapter."""
    policy = random_policy("llama")
    weights = Weights(policy.model, torch.bfloat16)
    assert not few_rows.fits_few_rows(weights, 8)
    weights.head = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    monkeypatch.setattr(few_rows, "MOST_TERMS", 8 * 32 * 64)
    assert few_rows.fits_few_rows(weights, 8)
    assert not few_rows.fits_few_rows(weights, 9)
    weights.dtype = torch.float32
    assert not few_rows.fits_few_rows(weights, 8)
    policy.name = "nano"
    adapt(policy, Lora(rank=2, targets="v_proj"), seed=0)
    adapted = Weights(policy.model, torch.bfloat16)
    adapted.head = SimpleNamespace(is_cuda=True)  # type: ignore[assignment]
    assert not few_rows.fits_few_rows(adapted, 8)


def test_dependent_launch_is_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(dependent, "DEPENDENT_LAUNCH", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    assert dependent.dependent(device) == {"DEPENDENT": False}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert dependent.dependent(device) == {"DEPENDENT": True, "launch_pdl": True}
    assert dependent.dependent(torch.device("cpu")) == {"DEPENDENT": False}
    monkeypatch.setattr(dependent, "DEPENDENT_LAUNCH", False)
    assert dependent.dependent(device) == {"DEPENDENT": False}
