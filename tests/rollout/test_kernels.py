"""Decoding kernels against plain float64, and the whole of graph decoding against the plain engine.

Without a GPU the kernels run through Triton's interpreter: the same code, executed as Python.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grpo.model.plan.work import Work
from grpo.rollout.builtin import Engine
from grpo.rollout.expected import expect
from grpo.rollout.protocol import Sampling
from grpo.rollout.sampling import sample_token
from grpo.types import Problem
from helpers.interpreted import InterpretedDecoding
from helpers.policies import random_policy

pytest.importorskip("triton")

from grpo.model.fused import kernels as fused
from grpo.rollout.cuda import kernels
from grpo.rollout.cuda.batch import Capacity, DecodeBatch, Rows
from grpo.rollout.cuda.decoder import has_few_rows
from grpo.rollout.cuda.kernels import linear, residual
from grpo.rollout.cuda.kernels.blocks import step_of
from grpo.rollout.cuda.kv_cache import Tables
from grpo.rollout.cuda.prefill import Prefill
from grpo.rollout.noise import philox
from grpo.rollout.schedule import BLOCK_TOKENS as BLOCK
from grpo.rollout.schedule import Schedule

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies no bfloat16 matrices.
DTYPES = [(torch.float32, 2e-6), (torch.bfloat16 if DEVICE == "cuda" else torch.float16, 1e-2)]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in the norm; NaN counts as wrong."""
    gap = (found.double().cpu() - expected.double().cpu()).norm() / expected.double().cpu().norm()
    return float(gap) if torch.isfinite(gap) else float("inf")


def integers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def batch_of(owners: list[int], times: list[int], prompt_of: list[int], lengths: list[int], group_size: int = 1):
    """These rows and, after them, one that has finished: it belongs to the spare completion and to no prompt."""
    starts = [sum(p < place for p in prompt_of) for place in range(len(lengths) + 1)]
    return SimpleNamespace(
        owner_B=integers([*owners, max(owners) + 1]),
        time_B=integers([*times, 1]),
        first_B=integers([*(lengths[p] for p in prompt_of), 0]),
        prompt_B=integers([*prompt_of, len(lengths)]),
        start_P=integers(starts),
        length_P=integers(lengths),
        group_size=group_size,
    )


def tables_of(own: dict[int, int], prompts: list[int], shuffled: int = 0) -> Tables:
    """Blocks for the tokens of completions, by number, and of prompts, in random order; block 0 is spare."""
    counts = [*(-(-tokens // BLOCK) for tokens in [*own.values(), *prompts])]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(shuffled)) + 1
    rows = [row.int() for row in order.split(counts)]
    own_NT = torch.zeros(max(own) + 2, max(counts[: len(own)]), dtype=torch.int32)  # the last row is the spare one's
    prompt_PT = torch.zeros(len(prompts), max(counts[len(own) :]), dtype=torch.int32)
    for owner, row in zip(own, rows, strict=False):
        own_NT[owner, : len(row)] = row
    for place, row in enumerate(rows[len(own) :]):
        prompt_PT[place, : len(row)] = row
    return Tables(own_NT.to(DEVICE), prompt_PT.to(DEVICE), prompt_PT.to(DEVICE))


def pool_of(
    own: dict[int, int], prompts: list[int], K: int, D: int, dtype: torch.dtype, seed: int
) -> tuple[Tables, kernels.KeyValues]:
    """Blocks with random keys and values. Places without a token hold keys that are not numbers and infinite values."""
    tables = tables_of(own, prompts)
    blocks = 1 + max(int(tables.own_NT.max()), int(tables.prompt_PT.max()))
    k, v = (random(blocks, K, BLOCK, D, dtype=dtype, seed=seed + i) for i in range(2))
    rows = [*((tables.own_NT[n], tokens) for n, tokens in own.items()), *zip(tables.prompt_PT, prompts, strict=True)]
    used = torch.zeros(blocks, BLOCK, dtype=torch.bool)
    for row, tokens in rows:
        token = torch.arange(tokens)
        used[row.cpu().long()[token // BLOCK], token % BLOCK] = True
    unused = ~used[:, None, :, None].to(DEVICE)
    return tables, (k.masked_fill(unused, float("nan")), v.masked_fill(unused, float("inf")))


def sequence(values: torch.Tensor, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """[K, tokens, D] in order."""
    return values[table.long()].transpose(0, 1).flatten(1, 2)[:, :tokens].double().cpu()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_rotate_and_store(dtype: torch.dtype, bound: float, normed: bool, biased: bool) -> None:
    """Two rows: the third token of the first, and the 66th of the second, which begins its second block."""
    H, K, D = 3, 1, 12
    qkv = random(2, (H + 2 * K) * D)
    bias = random((H + 2 * K) * D, dtype=dtype, seed=9) if biased else None
    given = (qkv.double() + (0 if bias is None else bias.double())).view(2, H + 2 * K, D)
    angle = torch.arange(80.0)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01, 0.003])
    rotation = angle.cos().to(dtype).to(DEVICE), angle.sin().to(dtype).to(DEVICE)
    tables = tables_of({2: 3, 0: 66}, [3, 6])
    pool = tuple(torch.full((6, K, BLOCK, D), 7.0, dtype=dtype, device=DEVICE) for _ in "kv")
    norms = (random(D, dtype=dtype, seed=3), random(D, dtype=dtype, seed=4), 1e-6) if normed else None
    batch = batch_of([2, 0], [3, 66], [0, 1], [3, 6])
    found = kernels.rotate_and_store(qkv, bias, pool, tables.own_NT, rotation, batch, H, norms)
    assert found.dtype == dtype
    turned = given.clone()
    if norms:
        scale = (given.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        turned[:, :H] = (given * scale)[:, :H] * norms[0].double()
        turned[:, H:] = (given * scale)[:, H:] * norms[1].double()
    cos, sin = (table.double()[[3 + 2, 6 + 65]][:, None] for table in rotation)
    low, high = turned.chunk(2, dim=-1)
    turned = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    assert error(found.view(2, -1, D)[:, : H + K], turned[:, : H + K]) < bound
    assert error(found.view(2, -1, D)[:, H + K :], given[:, H + K :]) < bound
    untouched = torch.ones(6, BLOCK, dtype=torch.bool)
    for row, owner, index in ((0, 2, 2), (1, 0, 65)):
        block = int(tables.own_NT[owner, index // BLOCK])
        assert error(pool[0][block, :, index % BLOCK], turned[row, H : H + K]) < bound
        assert error(pool[1][block, :, index % BLOCK], given[row, H + K :]) < bound
        untouched[block, index % BLOCK] = False
    assert (pool[0][:, 0].cpu()[untouched] == 7).all()


@pytest.mark.parametrize("normed", [False, True])
def test_the_rotation_is_that_of_training(normed: bool) -> None:
    """In 16 bits, to the last bit of almost all numbers: their float32 values may differ in the last bit. Each number
    is rounded once: it is at most half a last bit from the rotation of the unrounded matmul."""
    (dtype, _), (H, K, D, rows) = DTYPES[1], (3, 1, 16, 40)
    qkv, bias = random(rows, (H + 2 * K) * D), None if normed else random((H + 2 * K) * D, dtype=dtype, seed=9)
    angle = torch.arange(80.0)[:, None] * torch.rand(D // 2, generator=torch.Generator().manual_seed(1))
    rotation = angle.cos().to(dtype).to(DEVICE), angle.sin().to(dtype).to(DEVICE)
    tables, batch = tables_of({0: 70}, [9]), batch_of([0] * rows, list(range(20, 20 + rows)), [0] * rows, [9])
    pool = tuple(torch.zeros(4, K, BLOCK, D, dtype=dtype, device=DEVICE) for _ in "kv")
    norms = (random(D, dtype=dtype, seed=3), random(D, dtype=dtype, seed=4), 1e-6) if normed else None
    expected = qkv.clone()
    if norms:
        fused.norm_heads(expected, norms[0], norms[2], H, expected)
        fused.norm_heads(expected[:, H * D :], norms[1], norms[2], K, expected[:, H * D :])
    positions = (batch.first_B + batch.time_B - 1)[:rows]
    exact = fused.rotate(expected, bias, rotation, positions, H, K, torch.float32)
    expected = fused.rotate(expected, bias, rotation, positions, H, K, dtype)
    found = kernels.rotate_and_store(qkv, bias, pool, tables.own_NT, rotation, batch, H, norms)
    assert found.dtype == expected.dtype == dtype
    assert (found == expected).double().mean() > 0.99
    assert ((expected - exact).abs() <= 0.5001 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


def expected_attention(q, pool, tables, batch, H, scale, window) -> torch.Tensor:
    """In float64, one row and head at a time."""
    (_, K, _, D), rows = pool[0].shape, len(batch.owner_B) - 1
    expected = torch.empty(rows, H, D, dtype=torch.float64)
    for row in range(rows):
        owner, place, time = int(batch.owner_B[row]), int(batch.prompt_B[row]), int(batch.time_B[row])
        length = int(batch.length_P[place])
        k_KSD, v_KSD = (
            torch.cat([sequence(x, tables.prompt_PT[place], length), sequence(x, tables.own_NT[owner], time)], dim=1)
            for x in pool
        )
        for head in range(H):
            k, v = k_KSD[head * K // H], v_KSD[head * K // H]
            k, v = (k, v) if window is None else (k[-window:], v[-window:])
            weights = torch.softmax(k @ q[row, : H * D].double().cpu().view(H, D)[head] * scale, dim=0)
            expected[row, head] = weights @ v
    return expected


@pytest.mark.parametrize(("splits", "width", "programs"), [(1, 24, 512), (1, 32, 0), (3, 32, 512)])
@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_attention(
    dtype: torch.dtype,
    bound: float,
    window: int | None,
    splits: int,
    width: int,
    programs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of different age, read in steps of a block or, by many programs, half a block. Three prompts, the middle one
    without rows; the first longer than one program reads."""
    monkeypatch.setattr("grpo.rollout.cuda.kernels.blocks.PROGRAMS", programs)
    H, K, D = 6, 2, width
    batch = batch_of([4, 1, 0], [67, 1, 200], [0, 0, 2], [300, 40, 9], group_size=2)
    tables, pool = pool_of({4: 67, 1: 1, 0: 200}, [300, 40, 9], K, D, dtype, seed=1)
    q = random(4, H * D, dtype=dtype, seed=5)
    partial = tuple(torch.full((4 * (2 + splits), H, *rest), float("nan"), device=DEVICE) for rest in ((D,), (), ()))
    out = kernels.attention(q, pool, tables, batch, partial, H, 0.3, window, splits, dependent=splits > 1)
    assert error(out.view(4, H, D)[:3], expected_attention(q, pool, tables, batch, H, 0.3, window)) < bound


@pytest.mark.parametrize(("splits", "width", "programs"), [(1, 24, 0), (1, 32, 512), (3, 24, 512)])
@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize(("normed", "has_bias"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_one_kernel_does_what_three_do(
    dtype: torch.dtype,
    bound: float,
    normed: bool,
    has_bias: bool,
    window: int | None,
    splits: int,
    width: int,
    programs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpo.rollout.cuda.kernels.blocks.PROGRAMS", programs)
    H, K, D = 6, 2, width
    lengths = [77, 40, 9]
    batch = batch_of([4, 1, 0], [67, 1, 150], [0, 0, 2], lengths, group_size=2)
    tables, given = pool_of({4: 67, 1: 1, 0: 150}, lengths, K, D, dtype, seed=1)
    pools = [tuple(x.clone() for x in given) for _ in "ab"]
    qkv = random(4, (H + 2 * K) * D, seed=5)
    bias = random((H + 2 * K) * D, dtype=dtype, seed=9) if has_bias else None
    angle = torch.arange(240.0)[:, None] * torch.rand(D // 2, generator=torch.Generator().manual_seed(1))
    rotation = angle.cos().to(dtype).to(DEVICE), angle.sin().to(dtype).to(DEVICE)
    norms = (random(D, dtype=dtype, seed=3), random(D, dtype=dtype, seed=4), 1e-6) if normed else None
    partial = tuple(torch.full((4 * (1 + splits), H, *rest), float("nan"), device=DEVICE) for rest in ((D,), (), ()))
    dependent = splits > 1  # on a GPU that can
    places = pools[0], tables.own_NT, rotation, batch
    apart = kernels.rotate_and_store(qkv, bias, *places, H, norms, dependent)
    expected = kernels.attention(apart, pools[0], tables, batch, partial, H, 0.3, window, dependent=dependent)
    wanted = expected_attention(apart, pools[0], tables, batch, H, 0.3, window)
    assert error(expected.view(4, H, D)[:3], wanted) < bound
    settings = batch, partial, H, 0.3, window, norms, splits, dependent
    found = kernels.whole_attention(qkv, bias, pools[1], tables, rotation, *settings)
    assert error(found[:3], expected[:3]) < bound
    for a, b in zip(*pools, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        assert error(a[a.isfinite()], b[b.isfinite()]) < bound / 100


@pytest.mark.parametrize(("rows", "depth"), [(1, 320), (8, 640), (20, 320), (70, 640), (300, 320)])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_matmuls_of_few_rows(dtype: torch.dtype, bound: float, rows: int, depth: int) -> None:
    """Tiles of every height. 200 columns fill no whole number of them, and five steps are an uneven share of two
    programs."""
    shapes = (rows, depth), (200, depth), (200,)
    x, weight, bias = (random(*shape, dtype=dtype, seed=i) / 4 for i, shape in enumerate(shapes))
    whole = kernels.project(x, weight)
    assert whole.dtype == torch.float32
    assert error(whole, x.double() @ weight.double().T) < bound / 100 + 2e-6
    for given in (None, bias):
        expected = x.double() @ weight.double().T + (0 if given is None else given.double())
        parts = kernels.project_in_parts(x, weight, given)
        assert parts.dtype == torch.float32
        assert len(parts) > 1
        assert error(parts.sum(dim=0), expected) < bound
        gate, up = expected.to(dtype).double().chunk(2, dim=1)
        assert error(kernels.project_and_gate(x, weight, given), torch.nn.functional.silu(gate) * up) < bound


def test_tiles_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes of Qwen2.5-1.5B, 7B and SmolLM2-135M, with an H200's memory."""

    def found(rows: int, columns: int, depth: int, gate: bool = False) -> tuple[object, int]:
        tile = linear.tile_of(torch.empty(rows, depth, dtype=torch.bfloat16), columns, gate)
        return (tile.rows, tile.depth, tile.stages), linear.parts_of(tile, rows, columns, depth)

    assert found(8, 1536, 8960) == ((16, 128, 6), 4), "24 tiles, 96 programs"
    assert found(64, 3584, 18944) == ((64, 128, 6), 2)
    assert found(128, 576, 576) == ((64, 64, 6), 3), "nine steps: three each"
    assert found(64, 8960, 1536, gate=True) == ((64, 64, 4), 1), "140 programs: two share a multiprocessor"
    assert found(64, 18944, 3584, gate=True) == ((64, 64, 6), 1)
    assert found(300, 576, 1536)[0] == (128, 64, 6)
    monkeypatch.setattr(linear, "_shared_memory", lambda _: 99 * 1024)
    assert found(64, 3584, 18944)[0] == (64, 128, 3)

    def fits(rows: int, columns: int, depth: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        return kernels.fits_few_rows(rows, columns, torch.empty(1, depth, dtype=dtype))

    assert fits(64, 10**6, 4096)
    assert fits(256, 2048, 1536)
    assert not fits(257, 2048, 1536)
    assert not fits(8, 64, 64, torch.float32)
    assert not fits(8, 64, 48)
    maps = SimpleNamespace(weight=torch.empty(64, 64, dtype=torch.bfloat16), adapter=None)
    assert has_few_rows(8, maps)
    assert not has_few_rows(8, SimpleNamespace(weight=maps.weight, adapter="LoRA"))


@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize("stored", [torch.float32, None])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES)
def test_residual_and_norm(dtype: torch.dtype, bound: float, stored: torch.dtype | None, parts: int) -> None:
    """A residual in float32, or in the precision of computation: then the sum is rounded once."""
    embedding, weight = random(9, 20, dtype=stored or dtype), random(20, dtype=dtype, seed=1)
    residual, normed = kernels.embed_and_norm(integers([3, 8, 3, 0]), embedding, kernels.Norm(weight, 1e-6, dtype))
    assert torch.equal(residual, embedding[[3, 8, 3, 0]])
    assert (residual.dtype, normed.dtype) == (stored or dtype, dtype)
    assert error(normed, expected_norm(residual, weight)) < bound
    summed = random(parts, 4, 20, seed=2) if parts else None
    expected = residual.double() + (summed.double().sum(dim=0) if summed is not None else 0)
    normed = kernels.add_and_norm(residual, summed, kernels.Norm(weight, 1e-6, dtype))
    assert error(residual, expected) < bound / 5
    assert error(normed, expected_norm(residual, weight)) < bound


def expected_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * (x.pow(2).mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * weight.double()


@pytest.mark.parametrize(
    ("programs", "width", "dtype", "keys", "warps"),
    [
        (512, 64, torch.bfloat16, 64, 1),  # 256 rows with 2 key heads: all of them run at a time
        (512, 128, torch.bfloat16, 64, 2),
        (640, 128, torch.bfloat16, 32, 1),  # 320 rows
        (640, 256, torch.bfloat16, 32, 2),
        (640, 24, torch.float16, 32, 1),
        (640, 64, torch.float32, 32, 4),
    ],
)
def test_many_programs_read_smaller_steps(programs: int, width: int, dtype: torch.dtype, keys: int, warps: int) -> None:
    assert step_of(programs, torch.empty(0, dtype=dtype), width) == {"KEYS": keys, "num_warps": warps}


def test_few_rows_are_split_among_many_programs() -> None:
    """Two key heads: 512 programs for 8, 64 and 128 rows; never more than half of a row's blocks."""
    assert [kernels.splits(rows, 2, 68) for rows in (8, 64, 128, 256, 512)] == [32, 4, 2, 1, 1]
    assert [kernels.splits(8, 3, blocks) for blocks in (3, 4, 12, 400)] == [1, 2, 6, 21]


def test_noise_is_the_plain_generators_bit_for_bit() -> None:
    """Over several blocks of positions, the last of them cut, with words that use the highest of their 32 bits."""
    words, key = [0, 2**32 - 1, 0x80000001], (0xFFFFFFF0, 0x89ABCDEF)
    counter = [
        torch.tensor(2**31 + 7),
        torch.tensor(words)[:, None, None],
        torch.arange(3)[None, :, None],
        torch.arange(1500)[None, None, :],
    ]
    expected = (philox(counter, key)[0] >> 8).float() * 2.0**-24
    found = kernels.uniforms(words, 2**31 + 7, key, 3, 1500, torch.device(DEVICE))
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_sampled_tokens(temperature: float) -> None:
    """Against the plain sampler, over several parts of a vocabulary that ends inside one."""
    B, V, L = 40, 9001, 3
    logits = 3 * random(4, V)
    source = (torch.arange(B, device=DEVICE) % 4).int()
    noise = torch.rand(B, L, generator=torch.Generator().manual_seed(7)).to(DEVICE)
    noise[0, 1], noise[1, 1] = 0.0, 1 - 2**-24
    ends = sample_token(logits[source.long()], noise[:, 1], temperature)[0][5:6].int()
    noise[10, 1], noise[11, 1], noise[12, 1] = (
        -1 - ends[0],
        -1 - (V - 1),
        -1,
    )  # given: an end token, the last, the first
    expected, expected_logp = sample_token(logits[source.long()], noise[:, 1], temperature)
    assert expected[10:13].tolist() == [ends.item(), V - 1, 0]
    owners = torch.randperm(B, generator=torch.Generator().manual_seed(0)).int().to(DEVICE)
    active = torch.ones(B, dtype=torch.int32, device=DEVICE)
    active[3] = 0
    by_owner = torch.empty_like(noise)
    by_owner[owners.long()] = noise
    batch = SimpleNamespace(
        owner_B=owners, active_B=active, token_B=torch.full_like(owners, -1), time_B=torch.ones_like(owners)
    )
    limits = torch.full_like(owners, L)
    limits[owners[7].long()] = 2
    results = SimpleNamespace(
        noise_NL=by_owner,
        tokens_NL=torch.full((B, L), -1, dtype=torch.int32, device=DEVICE),
        logp_NL=torch.zeros(B, L, device=DEVICE),
        length_N=torch.zeros_like(owners),
        limit_N=limits,
        ends=ends,
    )
    scratch = torch.empty(B, 3, device=DEVICE), torch.empty(B, 3, device=DEVICE)
    inverse_temperature = torch.tensor([1 / temperature if temperature else 0.0], device=DEVICE)
    kernels.sample_tokens(logits, source, batch, results, inverse_temperature, scratch)
    places = owners.long()
    wrote = torch.ones(B, dtype=torch.bool, device=DEVICE)
    wrote[3] = False
    assert torch.equal(batch.token_B.long(), torch.where(wrote, expected, -1)), "a finished row samples nothing"
    assert torch.equal(results.tokens_NL[places, 1].long(), torch.where(wrote, expected, -1))
    assert torch.equal(batch.time_B, torch.where(wrote, 2, 1).int())
    torch.testing.assert_close(results.logp_NL[places, 1][wrote], expected_logp[wrote], atol=1e-5, rtol=1e-5)
    ended = ((expected == ends[0]) & (noise[:, 1] >= 0) | (torch.arange(B, device=DEVICE) == 7)) & wrote
    assert torch.equal(results.length_N[places], torch.where(ended, 2, 0).int()), "by its end token or its limit"
    assert torch.equal(active == 0, ended | ~wrote)


@pytest.mark.parametrize("rows_at_once", [4, 16])
def test_compaction_moves_active_rows_to_the_front(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four prompts of three rows in a batch of eleven: the first loses one row, the second all, the third two."""
    monkeypatch.setattr("grpo.rollout.cuda.kernels.compaction.ROWS_AT_ONCE", rows_at_once)
    capacity = Capacity(completions=20, rows=13, prompts=5, prompt_tokens=64, new_tokens=4, group_size=3, blocks=40)
    batch = DecodeBatch(capacity, torch.device(DEVICE))
    times = [1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 5, 6]
    batch.fill(Rows(range(12), times, [place for place in range(4) for _ in range(3)], [20, 21, 22, 23]))
    assert batch.start_P.tolist() == [0, 3, 6, 9, 12, 12]
    batch.token_B.copy_(torch.arange(100, 113))
    batch.active_B[:12] = 1
    batch.compact(13)
    assert (batch.count.item(), batch.owner_B.tolist()) == (12, [*range(12), 20])
    batch.active_B[[1, 3, 4, 5, 6, 8]] = 0
    batch.compact(12)
    assert batch.count.item() == 6
    assert batch.owner_B[:12].tolist() == [0, 2, 7, 9, 10, 11] + 6 * [20], "finished rows share the spare completion"
    assert batch.time_B[:12].tolist() == [1, 3, 2, 4, 5, 6] + 6 * [1]
    assert batch.token_B[:12].tolist() == [100, 102, 107, 109, 110, 111] + 6 * [0]
    assert batch.prompt_B[:12].tolist() == [0, 0, 2, 3, 3, 3] + 6 * [5]
    assert batch.first_B[:12].tolist() == [20, 20, 22, 23, 23, 23] + 6 * [0]
    assert batch.active_B[:12].tolist() == 6 * [1] + 6 * [0]
    assert batch.start_P.tolist() == [0, 2, 2, 3, 6, 6]
    batch.active_B[:6] = 0
    batch.compact(6)
    assert batch.count.item() == 0
    assert batch.start_P.tolist() == 6 * [0]


def test_batch_sizes() -> None:
    capacity = Capacity(
        completions=1000, rows=1000, prompts=1, prompt_tokens=64, new_tokens=4, group_size=1000, blocks=2000
    )
    assert capacity.batch_sizes == [
        8,
        16,
        32,
        64,
        80,
        96,
        112,
        128,
        160,
        192,
        224,
        256,
        320,
        384,
        448,
        512,
        640,
        768,
        896,
        1000,
    ]
    assert all(capacity.batch_size(rows) >= rows for rows in range(1, 1001))


@pytest.mark.parametrize(
    ("name", "fused", "one_program", "few_rows"),
    [
        ("llama", True, True, False),
        ("llama", True, False, True),
        ("qwen2", True, True, True),
        ("qwen2", True, False, False),
        ("qwen3", True, True, False),
        ("qwen3", True, False, True),
        ("mistral-window", True, True, True),
        ("mistral-window", True, False, False),
        ("mistral-window", False, False, False),
        ("gemma", False, False, False),
    ],
)
def test_graph_decoding_equals_the_plain_engine(
    name: str, fused: bool, one_program: bool, few_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.rollout.cuda.kernels.one_program.MOST_PROMPT_KEYS", 2**20 if one_program else 0)
    # Float32 matmuls are left to cuBLAS, unless they are tested.
    monkeypatch.setattr("grpo.rollout.cuda.kernels.fits_few_rows", lambda *_: few_rows)
    problems = [Problem(str(i), text, "") for i, text in enumerate(["hello", "longer prompt"])]
    sampling = Sampling(seed=3, temperature=0.8, max_new_tokens=7)
    policy = random_policy(name)
    policy.model.to(DEVICE)
    policy.end_tokens = frozenset(range(1, 9))  # so that some completions end soon
    if not fused:
        monkeypatch.setattr("grpo.model.policy.can_be_fused", lambda _: False)
    expected = Engine(policy).sample(problems, 4, sampling)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 2)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    engine = Engine(policy)
    found = engine.sample(problems, 4, sampling)
    for a, b in zip(expected, found, strict=True):
        for c, d in zip(a.completions, b.completions, strict=True):
            assert c.tokens.tolist() == d.tokens.tolist()
            assert (c.text, c.finish) == (d.text, d.finish)
            np.testing.assert_allclose(c.logprobs, d.logprobs, atol=1e-4)
    assert isinstance(engine.graphs, InterpretedDecoding)
    assert (engine.graphs.fused is not None) == fused
    assert engine.graphs.sizes[0] == 8 > engine.graphs.sizes[-1], "finished rows leave the batch"


def test_a_graph_is_chosen_by_the_rows_of_exactly_one_token_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the device is ahead of the host: in the interpreter each token is there at once."""
    counts: list[int] = []
    counted = InterpretedDecoding._counted

    def recorded(decoding: InterpretedDecoding) -> Any:
        counts.append(int(decoding.batch.count))
        return counted(decoding)

    monkeypatch.setattr(InterpretedDecoding, "_counted", recorded)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 1)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    policy.end_tokens = frozenset(range(1, 9))
    engine = Engine(policy)
    engine.sample([Problem("0", "hello", "")], 8, Sampling(seed=3, temperature=0.8, max_new_tokens=16))
    assert isinstance(engine.graphs, InterpretedDecoding)
    late = [8, 8, *counts[:-2]]
    assert len(set(late)) > 3
    assert engine.graphs.sizes == [engine.graphs.capacity.batch_size(rows) for rows in late]


@pytest.mark.parametrize("most_rows", [4, 100])
def test_the_warm_up_compiles_what_decoding_runs(most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some and all matmuls of few rows; a prefill has 32 tokens and more."""
    launched: list[tuple[object, ...]] = []
    multiply, normalise = linear._launch, residual._launch

    def recorded_multiply(x, weight, bias, out, tile, parts=1, *, gate=False):
        launched.append((tile, bias is not None, gate, out.dtype))
        multiply(x, weight, bias, out, tile, parts, gate=gate)

    def recorded_normalise(residual_BC, parts_SBC, embedded, norm):
        tokens = embedded[0].dtype if embedded else None
        launched.append((0 if parts_SBC is None else len(parts_SBC), tokens, norm.dependent))
        return normalise(residual_BC, parts_SBC, embedded, norm)

    monkeypatch.setattr(linear, "_launch", recorded_multiply)
    monkeypatch.setattr(residual, "_launch", recorded_normalise)
    monkeypatch.setattr("grpo.rollout.cuda.kernels.fits_few_rows", lambda rows, *_: rows <= most_rows)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 2)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    compiled: list[tuple[object, ...]] = []
    compile_kernels = InterpretedDecoding._compile_kernels

    def recorded_warm_up(decoding):
        compile_kernels(decoding)
        compiled.extend(launched)
        launched.clear()

    monkeypatch.setattr(InterpretedDecoding, "_compile_kernels", recorded_warm_up)
    policy = random_policy("qwen2")
    policy.model.to(DEVICE)
    policy.end_tokens = frozenset(range(1, 9))
    problems = [Problem(str(i), text, "") for i, text in enumerate(["hello", "longer prompt"])]
    Engine(policy).sample(problems, 4, Sampling(seed=3, temperature=0.8, max_new_tokens=3))
    assert compiled
    assert launched
    assert not set(launched) - set(compiled)


class Fickle(Schedule):
    """Drops the youngest row at every third look."""

    looks = drops = 0

    def _grow(self) -> list[int]:
        self.looks += 1
        rows = np.flatnonzero(self._running_N)
        if self.looks % 3 or len(rows) < 2:
            return super()._grow()
        Fickle.drops += 1
        self._remove(rows[-1:])
        return [*super()._grow(), int(rows[-1])]


@pytest.mark.parametrize(("name", "rows"), [("llama", 3), ("mistral-window", 1), ("gemma", 3)])
def test_rows_that_come_and_go_sample_the_same_tokens(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One or three rows at a time, of three groups of two; some are dropped. Against all rows at once on a CPU."""
    problems = [Problem(str(i), text, "") for i, text in enumerate(["hello", "longer prompt", "hi"])]
    sampling = Sampling(seed=3, temperature=0.8, max_new_tokens=9)
    policy = random_policy(name)
    policy.model.to(DEVICE)
    policy.end_tokens = frozenset(range(1, 5))
    expected = Engine(policy).sample(problems, 2, sampling)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 2)
    monkeypatch.setattr("grpo.rollout.builtin.Schedule", Fickle)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 1)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    computed: list[int] = []
    real = Prefill.__call__

    def counted(self: Prefill, prompts: list[np.ndarray], *arguments: Any) -> torch.Tensor:
        computed.append(len(prompts))
        return real(self, prompts, *arguments)

    monkeypatch.setattr(Prefill, "__call__", counted)
    Fickle.drops = 0
    found = Engine(policy, max_concurrent=rows).sample(problems, 2, sampling)
    assert (Fickle.drops > 1) == (rows > 1)
    # Of two rows, one at a time, the second finds its prompt gone, unless it gets the same blocks at the same look.
    assert 3 <= sum(computed) <= 3 + Fickle.drops
    for a, b in zip(expected, found, strict=True):
        for c, d in zip(a.completions, b.completions, strict=True):
            assert (c.tokens.tolist(), c.finish) == (d.tokens.tolist(), d.finish)
            np.testing.assert_allclose(c.logprobs, d.logprobs, atol=1e-4)


def test_rows_with_a_stop_string_leave_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host looks every 2 tokens. Completions equal those of the plain engine, also without stop strings after."""
    problems = [Problem("0", "hello", "")]
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    policy.end_tokens = frozenset()
    free = Sampling(seed=3, temperature=0.8, max_new_tokens=8)
    texts = [completion.text for completion in Engine(policy).sample(problems, 4, free)[0].completions]
    runs = [replace(free, stop=(texts[1][2:4], texts[0][3:5])), free]
    expected = [Engine(policy).sample(problems, 4, sampling) for sampling in runs]
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr("grpo.rollout.builtin.TOKENS_BETWEEN_LOOKS", 2)
    monkeypatch.setattr("grpo.rollout.cuda.batch.SMALLEST_BATCH", 1)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    engine = Engine(policy)
    smallest = []
    for sampling, wanted in zip(runs, expected, strict=True):
        found = engine.sample(problems, 4, sampling)
        for a, b in zip(wanted, found, strict=True):
            assert [c.tokens.tolist() for c in a.completions] == [c.tokens.tolist() for c in b.completions]
            assert [c.finish for c in a.completions] == [c.finish for c in b.completions]
        assert isinstance(engine.graphs, InterpretedDecoding)
        smallest.append(min(engine.graphs.sizes))
        engine.graphs.sizes = []
    assert smallest[0] < smallest[1] == 4, "rows leave only where there are stop strings"


@pytest.mark.parametrize(("at_a_time", "captured"), [(32768, [(2, 16)]), (16, [(1, 16)])])
def test_prompts_of_a_size_are_read_by_one_graph(
    at_a_time: int, captured: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step asks others; the first of a size compiles, the second is captured, the third replayed."""
    monkeypatch.setattr("grpo.rollout.cuda.prefill.PREFILL_TOKENS", at_a_time)
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    engine, plain = Engine(policy), Engine(policy)
    for step, texts in enumerate(
        (["hello", "a long one"], ["jolly", "is longer"], ["worlds", "short"], ["a", "b" * 20])
    ):
        problems = [Problem(f"{step}/{i}", text, "") for i, text in enumerate(texts)]
        sampling = Sampling(seed=3, step=step, temperature=0.0, max_new_tokens=2)
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "_can_use_graphs", lambda *_: False)
            expected = plain.sample(problems, 1, sampling)
            patch.setattr(Engine, "_can_use_graphs", lambda *_: True)
            found = engine.sample(problems, 1, sampling)
        for a, b in zip(expected, found, strict=True):
            assert [c.tokens.tolist() for c in a.completions] == [c.tokens.tolist() for c in b.completions]
    assert isinstance(engine.graphs, InterpretedDecoding)
    assert [(s.prompts, s.columns) for s in engine.graphs.prefill.graphs] == captured, (
        "a size asked for once is not captured"
    )


def test_one_set_of_graphs_serves_every_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [Problem("a", "hello", "")]
    heats = [Sampling(seed=3, temperature=heat, max_new_tokens=3) for heat in (0.0, 0.7, 0.0)]
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    expected = [Engine(policy).sample(problems, 2, sampling) for sampling in heats]
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    engine, held = Engine(policy), set()
    for sampling, wanted in zip(heats, expected, strict=True):
        [found] = engine.sample(problems, 2, sampling)
        assert [c.tokens.tolist() for c in found.completions] == [c.tokens.tolist() for c in wanted[0].completions]
        held.add(id(engine.graphs))
    assert len(held) == 1


def test_one_decoding_serves_the_evaluations_and_steps_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a resume, whose first call may be a step: its graphs have the same sizes."""
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    sampling = Sampling(seed=3, temperature=1.0, max_new_tokens=2)
    evaluation, step = ([Problem(str(i), "hello", "") for i in range(count)] for count in (9, 2))
    whole = Capacity(
        completions=9, rows=9, prompts=9, prompt_tokens=128, new_tokens=2, group_size=4, blocks=9 * 2 + 9 * 1
    )
    for calls in ([(evaluation, 1), (step, 4)], [(step, 4), (evaluation, 1)]):
        engine, held = Engine(policy), set()
        expect(engine, Work(prompts=2, group_size=4, prompt_tokens=65, new_tokens=2, heldout=9))
        for problems, group_size in calls:
            engine.sample(problems, group_size, sampling)
            assert engine.graphs is not None
            assert engine.graphs.capacity == whole
            held.add(id(engine.graphs))
        assert len(held) == 1


def test_a_decoding_that_is_too_small_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector: two KV caches at once would not fit a GPU."""
    policy = random_policy("llama", layers=1)
    policy.model.to(DEVICE)
    monkeypatch.setattr("grpo.rollout.cuda.graphs.GraphDecoding", InterpretedDecoding)
    monkeypatch.setattr(Engine, "_can_use_graphs", lambda *_: True)
    engine, held = Engine(policy), []
    gc.disable()
    try:
        for new_tokens in (2, 1, 3):
            engine.sample([Problem("a", "hello", "")], 1, Sampling(seed=3, temperature=1.0, max_new_tokens=new_tokens))
            held.append(weakref.ref(engine.graphs))
        assert [reference() is engine.graphs for reference in held] == [False, False, True]
        assert [reference() is None for reference in held] == [True, True, False]
    finally:
        gc.enable()
