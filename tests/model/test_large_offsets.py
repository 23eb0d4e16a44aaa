"""Kernels address rows beyond 2³¹ elements, where a 32-bit offset would be negative.

Each kernel runs twice on the same four rows: side by side, and so far apart that the last begins beyond 2³¹ elements.
Memory that is not touched takes no room, so this needs neither a GPU nor gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from grpo.model.fused import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS = 4, 8
FAR = 2**31 // (ROWS - 1) + 4 & ~1
"""Even; the last row begins at three times as much."""


class Rows:
    """Rows of numbers in memory, `stride` elements apart; all are zeros but those that are set."""

    def __init__(self, stride: int):
        size = ROWS * stride + COLUMNS
        self.all = torch.from_numpy(np.zeros(size, np.float16)) if DEVICE == "cpu" else _zeros(size)
        self.stride = stride

    @property
    def pointer(self) -> torch.Tensor:
        """One element at the address of all: the interpreter copies what it is given as a whole."""
        return torch.from_numpy(self.all.numpy()[:1]) if DEVICE == "cpu" else self.all

    def at(self, column: int, width: int) -> torch.Tensor:
        """[rows, width]: a view of some columns."""
        return self.all.as_strided((ROWS, width), (self.stride, 1), column)


def _zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float16, device=DEVICE)


def random(width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(seed)).half().to(DEVICE)


def near_and_far(run: Callable[[int], torch.Tensor], near: int, far: int) -> None:
    """The same results, for row strides that differ."""
    expected, found = run(near), run(far)
    assert expected.abs().sum() > 0
    assert torch.equal(found, expected)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def test_norm() -> None:
    def run(stride: int) -> torch.Tensor:
        x, out, scale = Rows(stride), Rows(stride), numbers(*[0.0] * ROWS)
        x.at(0, COLUMNS).copy_(random(COLUMNS))
        weight = random(COLUMNS, seed=1)[0]
        kernels._norm[(ROWS,)](x.pointer, weight, out.pointer, scale, 1e-5, 1, stride, C=COLUMNS, BLOCK=COLUMNS)
        grad, again, parts = Rows(stride), Rows(stride), torch.zeros(ROWS, COLUMNS, device=DEVICE)
        grad.at(0, COLUMNS).copy_(random(COLUMNS, seed=2))
        kernels._norm_backward[(ROWS,)](
            grad.pointer, x.pointer, scale, weight, grad.pointer, grad.pointer, again.pointer, parts, ROWS, 1, stride,
            stride,
            C=COLUMNS, BLOCK=COLUMNS, ONTO=True,
        )  # fmt: skip
        return torch.cat([*(rows.at(0, COLUMNS) for rows in (out, again, grad)), parts.half()], dim=1)

    near_and_far(run, COLUMNS, FAR)


def test_gate() -> None:
    def run(width: int) -> torch.Tensor:
        both, out, grad, of_both, again = (Rows(n * width) for n in (2, 1, 1, 2, 1))
        both.at(0, COLUMNS).copy_(random(COLUMNS))
        both.at(width, COLUMNS).copy_(random(COLUMNS, seed=1))
        grad.at(0, COLUMNS).copy_(random(COLUMNS, seed=2))
        kernels._gated[(ROWS, 1)](both.pointer, out.pointer, width, BLOCK=COLUMNS)
        kernels._gate_backward[(ROWS, 1)](
            grad.pointer, both.pointer, of_both.pointer, again.pointer, width, BLOCK=COLUMNS
        )
        found = [(out, 0), (again, 0), (of_both, 0), (of_both, width)]
        return torch.cat([rows.at(column, COLUMNS) for rows, column in found], dim=1)

    near_and_far(run, COLUMNS, FAR // 2)


def test_rotation() -> None:
    """One query head and one key head; `width` is that of a head, of which four columns of each half are looked at."""
    cos, sin, position = numbers(0.6, 0.8, 1.0, 0.0), numbers(0.8, 0.6, 0.0, 1.0), torch.zeros(ROWS, dtype=torch.int64)
    sizes = {"H": 1, "K": 1, "HALF": 4}

    def run(width: int) -> torch.Tensor:
        columns = [head * width + half * width // 2 for head in range(3) for half in range(2)]
        qkv, rotated, out = Rows(3 * width), Rows(3 * width), Rows(3 * width)
        grads = [Rows(width) for _ in range(6)]
        for seed, column in enumerate(columns):
            qkv.at(column, 4).copy_(random(4, seed))
        for seed, grad in enumerate(grads):
            grad.at(0, 4).copy_(random(4, 10 + seed))
            grad.at(width // 2, 4).copy_(random(4, 20 + seed))
        place = position.to(DEVICE)
        kernels._rotate[(ROWS,)](
            qkv.pointer, qkv.pointer, rotated.pointer, cos, sin, place, D=width, HEADS=4, BIAS=False, **sizes
        )
        kernels._rotate_back[(ROWS,)](
            *(grad.pointer for grad in grads), out.pointer, cos, sin, place, 1, D=width, HEADS=4, MORE=True, **sizes
        )
        return torch.cat([rows.at(column, 4) for rows in (rotated, out) for column in columns], dim=1)

    near_and_far(run, COLUMNS, FAR // 3 + 1 & ~1)


def test_joined_attention() -> None:
    def run(width: int) -> torch.Tensor:
        out, more = Rows(width), Rows(width)
        out.at(0, 4).copy_(random(4)), more.at(0, 4).copy_(random(4, seed=1))
        lse, more_lse = random(1, seed=2).float(), random(1, seed=3).float()
        kernels._join[(ROWS,)](out.pointer, lse, more.pointer, more_lse, ROWS, ROWS, 0, H=1, D=width, HEADS=1, WIDTH=4)
        return torch.cat([out.at(0, 4), lse.half()], dim=1)

    near_and_far(run, 4, FAR)


def test_gradient_of_logits() -> None:
    def run(vocabulary: int) -> torch.Tensor:
        logits, out = Rows(vocabulary), Rows(vocabulary)
        logits.at(0, COLUMNS).copy_(random(COLUMNS))
        target = torch.arange(ROWS, device=DEVICE)
        lse, entropy, grad = numbers(2.0, 2.0, 2.0, 2.0), numbers(1.0, 1.0, 1.0, 1.0), numbers(1.0, -1.0, 0.5, 2.0)
        kernels._token_logprobs_backward[(ROWS, 1)](
            logits.pointer, target, lse, entropy, grad, grad, out.pointer, 1.0, vocabulary, BLOCK=COLUMNS
        )
        return out.at(0, COLUMNS)

    near_and_far(run, COLUMNS, FAR)
