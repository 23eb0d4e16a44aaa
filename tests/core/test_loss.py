"""The loss against hand numbers and a second implementation in plain Python: its value and its gradient."""

import itertools
import math
import random
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.config.presets import PRESETS
from grpo.core import LossStatistics, denominator, policy_loss

RATIOS = ("token", "sequence", "product")
AGGREGATES = ("sequence", "token", "constant")
KL_KINDS = ("k1", "k2", "k3")
CLIP_RANGES = ((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4), (1.0, 5.0))
NAN, INF = math.nan, math.inf
MAX_NEW_TOKENS = 9


@dataclass
class Case:
    """Ragged rows as lists: rows[i][t] is token t of completion i."""

    logp: list[list[float]]
    old: list[list[float]]
    advantages: list[list[float]]
    ref: list[list[float]]

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.logp]

    def rows(self, chosen: list[int]) -> "Case":
        picked = ([rows[i] for i in chosen] for rows in (self.logp, self.old, self.advantages, self.ref))
        return Case(*picked)


def random_case(seed: int, *, spread: float = 0.4, same_advantage: bool = False) -> Case:
    rng = random.Random(seed)
    lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 5))]
    logp = [[rng.uniform(-3, -0.1) for _ in range(length)] for length in lengths]
    old = [[value + rng.gauss(0, spread) for value in row] for row in logp]
    ref = [[value + rng.gauss(0, spread) for value in row] for row in logp]
    draws = [[rng.choice([0.0, rng.gauss(0, 1)]) for _ in row] for row in logp]
    advantages = [[row[0]] * len(row) if same_advantage else row for row in draws]
    return Case(logp, old, advantages, ref)


def grid(rows: list[list[float]], fill: float, width: int) -> torch.Tensor:
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=torch.float64)


def torch_loss(
    case: Case, *, divide_by: float, fill: float = 0.0, **kind
) -> tuple[float, list[list[float]], LossStatistics]:
    """Value, gradient by logp (as ragged rows) and statistics; padding holds `fill`."""
    width = max(case.lengths) + (fill != 0)
    logp = grid(case.logp, fill, width).requires_grad_()
    mask = grid([[1.0] * length for length in case.lengths], 0.0, width) > 0
    old, advantages, ref = (grid(rows, fill, width) for rows in (case.old, case.advantages, case.ref))
    loss, statistics = policy_loss(logp, old, advantages, mask, denominator=divide_by, ref_logp=ref, **kind)
    loss.backward()
    assert logp.grad is not None
    gradient = [row[:length] for row, length in zip(logp.grad.tolist(), case.lengths, strict=True)]
    padding = logp.grad[~mask]
    assert padding.equal(torch.zeros_like(padding)), "padding has a gradient"
    return loss.item(), gradient, statistics


# The second implementation: one token at a time, no tensors.


def plain_ratio(case: Case, i: int, t: int, ratio: str) -> float:
    differences = [a - b for a, b in zip(case.logp[i], case.old[i], strict=True)]
    if ratio == "token":
        return math.exp(differences[t])
    return math.exp(math.fsum(differences) / (len(differences) if ratio == "sequence" else 1))


def plain_kl(logp: float, ref: float, kl: str) -> tuple[float, float]:
    """(value, derivative by logp)"""
    if kl == "k1":
        return logp - ref, 1.0
    if kl == "k2":
        return (logp - ref) ** 2 / 2, logp - ref
    return math.exp(ref - logp) - (ref - logp) - 1, 1 - math.exp(ref - logp)


def is_clipped(ratio: float, advantage: float, clip_low: float, clip_high: float) -> bool:
    return ratio > 1 + clip_high if advantage > 0 else ratio < 1 - clip_low if advantage < 0 else False


def plain_denominator(lengths: list[int], aggregate: str) -> float:
    return {"sequence": len(lengths), "token": sum(lengths), "constant": len(lengths) * MAX_NEW_TOKENS}[aggregate]


def plain_loss(case: Case, divide_by: float, ratio, clip_low, clip_high, aggregate, beta, kl) -> float:
    total = []
    for i, length in enumerate(case.lengths):
        weight = 1 / length if aggregate == "sequence" else 1.0
        for t in range(length):
            rho, advantage = plain_ratio(case, i, t, ratio), case.advantages[i][t]
            clipped = min(max(rho, 1 - clip_low), 1 + clip_high)
            policy = -min(rho * advantage, clipped * advantage)
            total.append(weight * (policy + beta * plain_kl(case.logp[i][t], case.ref[i][t], kl)[0]))
    return math.fsum(total) / divide_by


def plain_gradient(case: Case, divide_by: float, ratio, clip_low, clip_high, aggregate, beta, kl) -> list[list[float]]:
    """Derived by hand: dρ/dlogp is ρ per token; per sequence each of its |o| tokens has ρ / |o| of every ρ in it; of a
    product each has all of it."""
    gradient = []
    for i, length in enumerate(case.lengths):
        weight = 1 / length if aggregate == "sequence" else 1.0
        by_ratio = []  # derivative of each token's policy term by log ρ
        for t in range(length):
            rho, advantage = plain_ratio(case, i, t, ratio), case.advantages[i][t]
            by_ratio.append(0.0 if is_clipped(rho, advantage, clip_low, clip_high) else -rho * advantage)
        if ratio == "sequence":
            by_ratio = [math.fsum(by_ratio) / length] * length
        elif ratio == "product":
            by_ratio = [math.fsum(by_ratio)] * length
        by_kl = [plain_kl(a, b, kl)[1] for a, b in zip(case.logp[i], case.ref[i], strict=True)]
        gradient.append([weight * (a + beta * b) / divide_by for a, b in zip(by_ratio, by_kl, strict=True)])
    return gradient


EVERY_KIND = [
    {"ratio": ratio, "aggregate": aggregate, "clip_low": low, "clip_high": high, "beta": beta, "kl": kl}
    for ratio, aggregate, (low, high) in itertools.product(RATIOS, AGGREGATES, CLIP_RANGES)
    for beta, kl in ((0.0, "k3"), *((0.3, kl) for kl in KL_KINDS))
]


def name_of(kind: dict) -> str:
    return "-".join(str(value) for value in kind.values())


# By hand.


def test_denominators():
    lengths = torch.tensor([3, 5, 1])
    assert [denominator(lengths, aggregate, 10) for aggregate in AGGREGATES] == [3.0, 9.0, 30.0]
    with pytest.raises(ValueError, match="unknown aggregate 'mean': sequence, token or constant"):
        denominator(lengths, "mean", 10)


def ratios(*rows: list[float]) -> Case:
    """Tokens with these ratios: old log-probs −1, and log-probs −1 + log ρ. The reference is the old policy."""
    old = [[-1.0] * len(row) for row in rows]
    logp = [[-1.0 + math.log(rho) for rho in row] for row in rows]
    return Case(logp, old, [[1.0] * len(row) for row in rows], old)


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "gradient"),
    [
        # ℓ = −min(ρA, clip(ρ, 0.8, 1.2)A);  dℓ/dlogp = −ρA where the first is chosen, 0 where the clipped one is.
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # good and already likelier: min(3.0, 2.4), no further push
        (0.5, 2.0, -1.0, -1.0),  # good but less likely: min(1.0, 1.6) pulls it back
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # bad and already less likely: min(−1.0, −1.6), no further push
        (1.5, -2.0, 3.0, 3.0),  # bad but likelier: min(−3.0, −2.4), pushed down
        (0.9, -2.0, 1.8, 1.8),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_one_token(rho, advantage, value, gradient):
    case = replace(ratios([rho]), advantages=[[advantage]])
    found_value, found_gradient, _ = torch_loss(case, divide_by=1.0)
    assert found_value == pytest.approx(value, rel=1e-14)
    assert found_gradient == [[pytest.approx(gradient, rel=1e-14)]]


def test_aggregates():
    # A = 1 and ρ = 1 everywhere, rows of 1 and 3 tokens: every token's ℓ is −1, its derivative −1.
    case = ratios([1.0], [1.0, 1.0, 1.0])
    # sequence: (1/1 + 3/3) / 2 completions. token: 4 / 4 tokens. constant: 4 / (2 × 9).
    expected = {
        "sequence": (-1.0, [[-1 / 2], [-1 / 6] * 3]),
        "token": (-1.0, [[-1 / 4], [-1 / 4] * 3]),
        "constant": (-4 / 18, [[-1 / 18], [-1 / 18] * 3]),
    }
    for aggregate, (value, gradient) in expected.items():
        divide_by = denominator(torch.tensor(case.lengths), aggregate, MAX_NEW_TOKENS)
        found_value, found_gradient, _ = torch_loss(case, divide_by=divide_by, aggregate=aggregate)
        assert found_value == pytest.approx(value, rel=1e-15), aggregate
        assert found_gradient == [pytest.approx(row, rel=1e-15) for row in gradient], aggregate


def test_the_sequence_ratio_is_the_geometric_mean():
    # ρ of the row is √(2 · 1/2) = 1, inside any clip range, although each token is outside: nothing is clipped.
    case = ratios([2.0, 0.5])
    value, gradient, statistics = torch_loss(case, divide_by=1.0, ratio="sequence")
    assert value == pytest.approx(-1.0, rel=1e-15)
    assert gradient == [pytest.approx([-0.5, -0.5], rel=1e-15)]
    assert float(statistics.clip_high) == 0.0
    # √(2 · 1.28) = 1.6 > 1.2: the row is clipped as one.
    value, gradient, statistics = torch_loss(ratios([2.0, 1.28]), divide_by=1.0, ratio="sequence")
    assert value == pytest.approx(-1.2, rel=1e-15)
    assert gradient == [[0.0, 0.0]]
    assert float(statistics.clip_high) == 2.0


def test_the_product_ratio_is_that_of_the_whole_completion():
    # ρ of the row is 2 · 0.55 = 1.1. As one term per completion: −1.1 A, and dρ/dlogp is ρ for every token.
    value, gradient, statistics = torch_loss(ratios([2.0, 0.55]), divide_by=1.0, ratio="product")
    assert value == pytest.approx(-1.1, rel=1e-14)
    assert gradient == [pytest.approx([-1.1, -1.1], rel=1e-14)]
    assert float(statistics.clip_high) == 0.0
    # 1.1^4 = 1.4641 > 1.2: clipped, although every token is inside the range.
    value, gradient, statistics = torch_loss(ratios([1.1] * 4), divide_by=1.0, ratio="product")
    assert (value, gradient) == (pytest.approx(-1.2, rel=1e-14), [[0.0] * 4])
    assert float(statistics.clip_high) == 4.0


def test_at_ratio_one_the_product_has_the_gradient_of_the_completions_log_probability():
    """With the mean over tokens, −A · ∇ Σ logp: REINFORCE on whole completions."""
    case = replace(random_case(3, same_advantage=True), old=random_case(3).logp)
    _, gradient, _ = torch_loss(case, divide_by=1.0, ratio="product", aggregate="sequence")
    for row, advantages in zip(gradient, case.advantages, strict=True):
        assert row == pytest.approx([-advantage for advantage in advantages], rel=1e-14)


def test_kl_is_added_with_its_weight():
    # One token, ρ = 1, A = 1, logp − ref = 0.5: k3 = e^−0.5 − 0.5; loss −1 + 0.04·k3; derivative −1 + 0.04(1 − e^−0.5).
    case = replace(ratios([1.0]), ref=[[-1.5]])
    value, gradient, _ = torch_loss(case, divide_by=1.0, beta=0.04)
    assert value == pytest.approx(-1 + 0.04 * (math.exp(-0.5) - 0.5), rel=1e-14)
    assert gradient == [[pytest.approx(-1 + 0.04 * (1 - math.exp(-0.5)), rel=1e-14)]]


def test_what_it_refuses():
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="unknown ratio 'group': token, sequence or product"):
        policy_loss(one, one, one, one > 0, denominator=1.0, ratio="group")
    with pytest.raises(ValueError, match="unknown aggregate 'mean': sequence, token or constant"):
        policy_loss(one, one, one, one > 0, denominator=1.0, aggregate="mean")
    with pytest.raises(ValueError, match="beta > 0 needs ref_logp"):
        policy_loss(one, one, one, one > 0, denominator=1.0, beta=0.1)


# Against the second implementation.


@pytest.mark.parametrize("kind", EVERY_KIND, ids=name_of)
def test_agrees_with_plain_python(kind):
    for seed in range(12):
        case = random_case(seed)
        divide_by = plain_denominator(case.lengths, kind["aggregate"])
        assert divide_by == denominator(torch.tensor(case.lengths), kind["aggregate"], MAX_NEW_TOKENS)
        value, gradient, _ = torch_loss(case, divide_by=divide_by, **kind)
        assert value == pytest.approx(plain_loss(case, divide_by, **kind), rel=1e-9, abs=1e-12)
        for found, expected in zip(gradient, plain_gradient(case, divide_by, **kind), strict=True):
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", EVERY_KIND[:: len(KL_KINDS) + 2], ids=name_of)
def test_the_hand_derived_gradient_is_the_slope_of_the_plain_loss(kind):
    """Central differences, so that the formula above does not only agree with the code it checks."""
    width = 1e-6
    for seed in range(4):
        case = random_case(seed)
        gradient = plain_gradient(case, 1.0, **kind)
        for i, t in ((i, t) for i, length in enumerate(case.lengths) for t in range(length)):
            moved = []
            for step in (width, -width):
                logp = [list(row) for row in case.logp]
                logp[i][t] += step
                moved.append(plain_loss(replace(case, logp=logp), 1.0, **kind))
            assert gradient[i][t] == pytest.approx((moved[0] - moved[1]) / (2 * width), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("kl", KL_KINDS)
def test_gradcheck(ratio, kl):
    """Away from the clip's corners the loss is smooth; here some tokens lie inside the range and some far outside."""
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    log_ratio = torch.tensor([[0.05, -0.1, 0.6], [0.7, -0.9, -0.02]], dtype=torch.float64)
    logp = (old + log_ratio).requires_grad_()
    ref = (old + 0.3).requires_grad_()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-0.5, -0.5, 0.0]], dtype=torch.float64)
    options = {"denominator": 2.0, "ratio": ratio, "beta": 0.2, "kl": kl}
    assert torch.autograd.gradcheck(
        lambda a, b: policy_loss(a, old, advantages, mask, ref_logp=b, **options)[0], (logp, ref)
    )


# What must hold whatever the numbers.


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("preset", PRESETS)
def test_at_ratio_one_the_derivative_is_minus_the_advantage(preset, ratio):
    """Before the denominator and the 1/|o| weight, at β = 0, whatever the preset: −A for every token."""
    chosen = PRESETS[preset].settings
    for seed in range(20):
        case = random_case(seed, same_advantage=True)
        case = replace(case, old=case.logp)
        _, gradient, _ = torch_loss(
            case,
            divide_by=1.0,
            ratio=ratio,
            surrogate=chosen.surrogate,
            clip_low=chosen.clip_low,
            clip_high=chosen.clip_high,
            cap=chosen.cap,
            gate_up=chosen.gate_up,
            gate_down=chosen.gate_down,
            aggregate=chosen.aggregate,
            beta=0.0,
            kl=chosen.kl,
        )
        for row, advantages in zip(gradient, case.advantages, strict=True):
            undone = [value * len(row) if chosen.aggregate == "sequence" else value for value in row]
            # Only the division by |o| and back (the weight's, the sequence mean's) can round.
            assert undone == pytest.approx([-advantage for advantage in advantages], rel=1e-15, abs=0.0)
            if ratio == "token" and chosen.aggregate != "sequence":
                assert row == [-advantage for advantage in advantages]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(EVERY_KIND), st.randoms(use_true_random=False))
def test_any_split_into_micro_batches_gives_the_same_step(seed, kind, rng):
    case = random_case(seed)
    divide_by = plain_denominator(case.lengths, kind["aggregate"])
    value, gradient, statistics = torch_loss(case, divide_by=divide_by, **kind)
    order = list(range(len(case.lengths)))
    rng.shuffle(order)
    cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, len(order) - 1)))
    parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
    split_value, split_gradient, split_statistics = 0.0, [[] for _ in order], None
    for part in parts:
        part_value, part_gradient, part_statistics = torch_loss(case.rows(part), divide_by=divide_by, **kind)
        split_value += part_value
        for i, row in zip(part, part_gradient, strict=True):
            split_gradient[i] = row
        split_statistics = part_statistics if split_statistics is None else split_statistics + part_statistics
    assert split_value == pytest.approx(value, rel=1e-12, abs=1e-14)
    for found, expected in zip(split_gradient, gradient, strict=True):
        assert found == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert split_statistics.metrics() == pytest.approx(statistics.metrics(), rel=1e-12, abs=1e-14)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(RATIOS), st.sampled_from(CLIP_RANGES), st.sampled_from(AGGREGATES))
def test_a_token_counts_as_clipped_exactly_when_the_clip_took_its_gradient(seed, ratio, clip, aggregate):
    low, high = clip
    case = random_case(seed, same_advantage=True)
    kind = {"ratio": ratio, "clip_low": low, "clip_high": high, "aggregate": aggregate}
    _, gradient, statistics = torch_loss(case, divide_by=1.0, **kind)
    lost = [
        advantage
        for slopes, advantages in zip(gradient, case.advantages, strict=True)
        for slope, advantage in zip(slopes, advantages, strict=True)
        if slope == 0 and advantage != 0
    ]
    assert float(statistics.clip_high) == sum(advantage > 0 for advantage in lost)
    assert float(statistics.clip_low) == sum(advantage < 0 for advantage in lost)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("bound", "advantage"), [(1.2, 1.0), (0.8, -1.0)])
def test_the_count_agrees_with_the_gradient_at_the_very_edge(bound, advantage, dtype):
    """Log-ratios a few floating-point steps around the bound: some ratios are equal to it, some just beyond."""
    near = torch.tensor(math.log(bound), dtype=dtype)
    old, advantages = torch.zeros(1, 1, dtype=dtype), torch.full((1, 1), advantage, dtype=dtype)
    for direction in (-INF, INF):
        value = near.clone()
        for _ in range(12):
            logp = value.reshape(1, 1).clone().requires_grad_()
            loss, statistics = policy_loss(logp, old, advantages, old == 0, denominator=1.0)
            loss.backward()
            counted = float(statistics.clip_low + statistics.clip_high)
            assert counted == float(logp.grad.item() == 0.0)
            value = torch.nextafter(value, torch.tensor(direction, dtype=dtype))


@pytest.mark.parametrize("fill", [NAN, INF, -INF, 1e300, -1e300, 1.0])
@pytest.mark.parametrize("kl", KL_KINDS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_what_stands_in_padding_reaches_nothing(ratio, kl, fill):
    """Each tensor alone, then all, with `fill` where no token is: loss, gradient and statistics stay the same."""
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    clean = {
        "logp": torch.tensor([[-1.0, -0.5, -2.0, 0.0], [-0.7, 0.0, 0.0, 0.0]], dtype=torch.float64),
        "old_logp": torch.tensor([[-1.1, -1.5, -2.0, 0.0], [-0.6, 0.0, 0.0, 0.0]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0, 1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]], dtype=torch.float64),
        "ref_logp": torch.tensor([[-1.3, -0.6, -1.0, 0.0], [-0.9, 0.0, 0.0, 0.0]], dtype=torch.float64),
        "entropy": torch.tensor([[0.5, 0.6, 0.7, 0.0], [0.8, 0.0, 0.0, 0.0]], dtype=torch.float64),
    }

    def outcome(names):
        inputs = {name: x.masked_fill(~mask, fill) if name in names else x for name, x in clean.items()}
        logp = inputs.pop("logp").clone().requires_grad_()
        loss, statistics = policy_loss(logp, mask=mask, denominator=2.0, ratio=ratio, kl=kl, beta=0.1, **inputs)
        loss.backward()
        return loss.item(), logp.grad.tolist(), statistics.metrics()

    expected = outcome(())
    assert expected[1][0][3] == 0.0
    for names in (*((name,) for name in clean), tuple(clean)):
        assert outcome(names) == expected, names


def test_a_row_without_tokens_is_only_padding():
    row = Case([[-1.0, -0.5]], [[-1.1, -0.5]], [[1.0, 1.0]], [[-1.2, -0.6]])
    value, gradient, statistics = torch_loss(row, divide_by=1.0, beta=0.1)
    empty = Case([*row.logp, []], [*row.old, []], [*row.advantages, []], [*row.ref, []])
    found_value, found_gradient, found_statistics = torch_loss(empty, divide_by=1.0, beta=0.1)
    assert (found_value, found_gradient) == (value, [*gradient, []])
    assert found_statistics.metrics() == statistics.metrics()


def test_beta_zero_measures_the_kl_and_leaves_the_loss_alone():
    case = random_case(3)
    value, gradient, statistics = torch_loss(case, divide_by=1.0, beta=0.0)
    away = replace(case, ref=[[value - 1 for value in row] for row in case.ref])
    moved_value, moved_gradient, moved_statistics = torch_loss(away, divide_by=1.0, beta=0.0)
    assert (moved_value, moved_gradient) == (value, gradient)
    assert float(moved_statistics.kl) > float(statistics.kl) > 0


def test_the_core_needs_torch_and_not_transformers():
    code = (
        "import sys, grpo.core; "
        "print([name for name in ('torch', 'transformers', 'tokenizers', 'tyro') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['torch']"


def test_one_advantage_per_completion_serves_all_its_tokens() -> None:
    logp = torch.tensor([[-1.0, -2.0], [-0.5, -0.7]], dtype=torch.float64)
    advantages, mask = torch.tensor([1.5, -0.5], dtype=torch.float64), torch.tensor([[1, 1], [1, 0]]) > 0
    per_completion, _ = policy_loss(logp, logp - 0.1, advantages, mask, denominator=2.0)
    per_token, _ = policy_loss(logp, logp - 0.1, advantages[:, None].expand(2, 2), mask, denominator=2.0)
    assert per_completion.item() == per_token.item()


def test_a_ratio_beyond_float32_stays_finite() -> None:
    logp = torch.tensor([[-1.0]], requires_grad=True)
    for advantage, expected_loss in ((1.0, -1.2), (0.0, 0.0)):
        loss, _ = policy_loss(logp, torch.tensor([[-201.0]]), torch.tensor([[advantage]]), logp < 0, denominator=1.0)
        loss.backward()
        assert loss.item() == pytest.approx(expected_loss)
        assert logp.grad.item() == 0.0
        logp.grad = None
