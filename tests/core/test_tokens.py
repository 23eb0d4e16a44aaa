"""Values of single tokens agree with the loss of the whole batch."""

from __future__ import annotations

import pytest
import torch

from grpo.core import denominator, policy_loss, token_loss, token_terms, zero_signal_chance

SETTINGS = [
    {"ratio": ratio, "aggregate": aggregate, "beta": beta, "kl": kl, "clip_low": 0.2, "clip_high": 0.28}
    for ratio in ("token", "sequence")
    for aggregate in ("sequence", "token", "constant")
    for beta, kl in ((0.0, "k3"), (0.3, "k1"), (0.3, "k2"), (0.3, "k3"), (0.3, "k3_ratio"))
]


def completions(seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Three of different lengths, with ratios well outside the clip range and advantages of both signs and zero."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(length: int) -> torch.Tensor:
        return torch.randn(length, generator=generator, dtype=torch.float64)

    rows = []
    for length, advantage in ((4, 1.3), (7, -0.8), (2, 0.0)):
        old = -1 - numbers(length).abs()
        rows.append(
            {
                "logp_L": old + 0.4 * numbers(length),
                "old_logp_L": old,
                "advantages_L": torch.full((length,), advantage, dtype=torch.float64),
                "ref_logp_L": old + 0.2 * numbers(length),
            }
        )
    return rows


def whole(rows: list[dict[str, torch.Tensor]], settings: dict, divide_by: float):
    """The same completions padded into one batch."""
    longest = max(len(row["logp_L"]) for row in rows)
    grids = {
        name: torch.stack([torch.nn.functional.pad(row[name], (0, longest - len(row[name]))) for row in rows])
        for name in rows[0]
    }
    mask = torch.tensor([[place < len(row["logp_L"]) for place in range(longest)] for row in rows])
    logp = grids["logp_L"].requires_grad_()
    loss, statistics = policy_loss(
        logp, grids["old_logp_L"], grids["advantages_L"], mask, denominator=divide_by, ref_logp=grids["ref_logp_L"],
        **settings,
    )  # fmt: skip
    [gradient] = torch.autograd.grad(loss, logp)
    return loss, statistics, [gradient[i, : len(row["logp_L"])] for i, row in enumerate(rows)]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(str(v) for v in s.values()))
def test_parts_agree_with_the_whole(settings: dict) -> None:
    rows = completions()
    lengths = torch.tensor([len(row["logp_L"]) for row in rows])
    divide_by = denominator(lengths, settings["aggregate"], 8)
    loss, statistics, gradients = whole(rows, settings, divide_by)

    shares = [
        token_loss(i, **row, denominator=divide_by, **settings) for row in rows for i in range(len(row["logp_L"]))
    ]
    assert sum(shares) == pytest.approx(loss.item(), abs=1e-12)

    terms = [token_terms(**row, denominator=divide_by, **settings) for row in rows]
    for term, gradient in zip(terms, gradients, strict=True):
        torch.testing.assert_close(term.push, -gradient, atol=1e-14, rtol=1e-12)
    metrics = statistics.metrics()
    clips = torch.cat([term.clip for term in terms])
    with_signal = metrics["gradient_tokens"]  # shares of clipped tokens are of the tokens with an advantage
    assert float((clips > 0).double().mean()) == pytest.approx(metrics["clip_high"] * with_signal)
    assert float((clips < 0).double().mean()) == pytest.approx(metrics["clip_low"] * with_signal)
    ratios = torch.cat([term.ratio for term in terms])
    assert (ratios.min().item(), ratios.max().item()) == pytest.approx((metrics["ratio_min"], metrics["ratio_max"]))
    kls = torch.cat([term.kl for term in terms if term.kl is not None])
    assert float(kls.mean()) == pytest.approx(metrics["kl"])


def test_some_of_these_tokens_are_clipped_on_either_side() -> None:
    clips = torch.cat([token_terms(**row, denominator=1.0).clip for row in completions()])
    assert set(clips.tolist()) == {-1, 0, 1}


def test_zero_signal_chance_by_counting() -> None:
    """Of the 2^3 outcomes of three fair completions, two are all alike."""
    assert zero_signal_chance(0.5, 3) == 2 / 8
    assert zero_signal_chance(0.25, 2) == pytest.approx(1 / 16 + 9 / 16)
