"""Advantages against numbers worked out by hand and against a second implementation in plain Python."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.core import group_advantages, parts_advantages

NAN, INF = math.nan, math.inf
BASELINES = ("mean", "leave_one_out", "batch", "length_weighted")
SCALES = ("group_std", "batch_std", "none")
EVERY_KIND = list(itertools.product(BASELINES, SCALES))


def advantages(rewards, valid=None, lengths=None, *, dtype=torch.float64, **kind):
    """Lists in, lists out."""
    return group_advantages(
        torch.tensor(rewards, dtype=dtype),
        None if valid is None else torch.tensor(valid),
        None if lengths is None else torch.tensor(lengths),
        **kind,
    ).tolist()


# The second implementation: one completion at a time, no tensors.


def plain_advantages(rewards, valid, lengths, baseline, scale, std="sample", std_eps=1e-4):
    everywhere = [(p, g) for p, group in enumerate(rewards) for g in range(len(group)) if valid[p][g]]
    batch_equal = len({rewards[p][g] for p, g in everywhere}) <= 1
    centred = {}
    for p, g in everywhere:
        members = [other for q, other in everywhere if q == p]
        values = [rewards[p][other] for other in members]
        own = rewards[p][g]
        if baseline == "mean":
            expected = math.fsum(values) / len(values)
        elif baseline == "leave_one_out":
            others = [rewards[p][other] for other in members if other != g]
            expected = math.fsum(others) / len(others) if others else own
        elif baseline == "batch":
            expected = math.fsum(rewards[q][h] for q, h in everywhere) / len(everywhere)
        else:
            weights = [lengths[p][other] for other in members]
            expected = math.fsum(w * r for w, r in zip(weights, values, strict=True)) / sum(weights)
        group_equal = min(values) == max(values)
        flat = batch_equal or (group_equal and (baseline != "batch" or scale == "group_std"))
        centred[p, g] = 0.0 if flat else own - expected
    result = [[0.0 for _ in group] for group in rewards]
    for (p, g), value in centred.items():
        if scale == "none":
            divisor = 1.0
        elif scale == "group_std":
            divisor = plain_std([rewards[p][other] for q, other in everywhere if q == p], std) + std_eps
        else:
            divisor = plain_std(list(centred.values()), std) + std_eps
        result[p][g] = value / divisor
    return result


def plain_std(values, std):
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - (std == "sample")))


def random_case(seed):
    """A few groups, ragged in who is valid; rewards binary, graded or all alike; NaN where invalid."""
    rng = random.Random(seed)
    P, G = rng.randint(1, 4), rng.randint(1, 6)
    draw = rng.choice([lambda: float(rng.random() < 0.5), lambda: rng.uniform(-2, 2), lambda: rng.choice([0.1, 0.7])])
    rewards = [[draw() for _ in range(G)] for _ in range(P)]
    if rng.random() < 0.3:
        rewards[0] = [0.1] * G
    valid = [[rng.random() < 0.8 for _ in range(G)] for _ in range(P)]
    rewards = [[r if v else NAN for r, v in zip(*row, strict=True)] for row in zip(rewards, valid, strict=True)]
    lengths = [[rng.randint(1, 40) for _ in range(G)] for _ in range(P)]
    return rewards, valid, lengths


# By hand. The sample std of (1, 0, 0, 0) is √((0.75² + 3·0.25²) / 3) = √(0.75 / 3) = 0.5.

ONE_OF_FOUR = [[1.0, 0.0, 0.0, 0.0]]


def test_mean_and_group_std():
    # mean 1/4; 0.75 / 0.5001 and −0.25 / 0.5001
    high, low = 0.75 / 0.5001, -0.25 / 0.5001
    assert advantages(ONE_OF_FOUR) == [pytest.approx([high, low, low, low], rel=1e-15)]


def test_population_std_and_eps():
    # √((0.75² + 3·0.25²) / 4) = √3 / 4
    high, low = 0.75 / (math.sqrt(3) / 4 + 1e-8), -0.25 / (math.sqrt(3) / 4 + 1e-8)
    for scale in ("group_std", "batch_std"):
        found = advantages(ONE_OF_FOUR, scale=scale, std="population", std_eps=1e-8)
        assert found == [pytest.approx([high, low, low, low], rel=1e-14)]
    # eps 0.5 with the sample std 0.5: 0.75 / 1
    assert advantages(ONE_OF_FOUR, std_eps=0.5) == [[0.75, -0.25, -0.25, -0.25]]
    with pytest.raises(ValueError, match="unknown std 'mean': sample or population"):
        advantages(ONE_OF_FOUR, std="mean")


def test_mean_and_no_scale():
    assert advantages(ONE_OF_FOUR, scale="none") == [[0.75, -0.25, -0.25, -0.25]]


def test_leave_one_out():
    # The right one is compared with (0 + 0 + 0) / 3 = 0, a wrong one with (1 + 0 + 0) / 3 = 1/3.
    plain = [1.0, -1 / 3, -1 / 3, -1 / 3]
    assert advantages(ONE_OF_FOUR, baseline="leave_one_out", scale="none") == [pytest.approx(plain, rel=1e-15)]
    # Leaving oneself out is the mean baseline times G / (G − 1) = 4/3.
    mean = advantages(ONE_OF_FOUR, baseline="mean", scale="none")[0]
    assert plain == pytest.approx([4 / 3 * a for a in mean], rel=1e-15)
    # Divided by the group's std + 1e-4 = 0.5001.
    scaled = [a / 0.5001 for a in plain]
    assert advantages(ONE_OF_FOUR, baseline="leave_one_out") == [pytest.approx(scaled, rel=1e-15)]


def test_batch_baseline():
    # Two groups, rewards (1, 0) and (1, 1): mean of all four is 3/4.
    rewards = [[1.0, 0.0], [1.0, 1.0]]
    assert advantages(rewards, baseline="batch", scale="none") == [[0.25, -0.75], [0.25, 0.25]]
    # batch_std: the differences 0.25, −0.75, 0.25, 0.25 have mean 0 and sample std √(0.75 / 3) = 0.5.
    scaled = [[0.25 / 0.5001, -0.75 / 0.5001], [0.25 / 0.5001, 0.25 / 0.5001]]
    found = advantages(rewards, baseline="batch", scale="batch_std")
    assert found == [pytest.approx(row, rel=1e-15) for row in scaled]
    # group_std: the first group's sample std is √((0.5² + 0.5²) / 1) = √0.5; the second has no spread, so exactly 0.
    divisor = math.sqrt(0.5) + 1e-4
    found = advantages(rewards, baseline="batch", scale="group_std")
    assert found == [pytest.approx([0.25 / divisor, -0.75 / divisor], rel=1e-15), [0.0, 0.0]]


def test_length_weighted_baseline():
    # Lengths 1, 3, 4 and rewards 1, 0, 1: baseline (1·1 + 3·0 + 4·1) / 8 = 5/8.
    found = advantages([[1.0, 0.0, 1.0]], lengths=[[1, 3, 4]], baseline="length_weighted", scale="none")
    assert found == [[0.375, -0.625, 0.375]]
    # The std is the plain one: mean 2/3, √((1/9 + 4/9 + 1/9) / 2) = √(1/3).
    divisor = math.sqrt(1 / 3) + 1e-4
    found = advantages([[1.0, 0.0, 1.0]], lengths=[[1, 3, 4]], baseline="length_weighted")
    assert found == [pytest.approx([0.375 / divisor, -0.625 / divisor, 0.375 / divisor], rel=1e-14)]
    # Equal lengths make it the plain mean.
    equal = advantages(ONE_OF_FOUR, lengths=[[7, 7, 7, 7]], baseline="length_weighted")
    assert equal == advantages(ONE_OF_FOUR)


def test_mean_and_batch_std():
    # Centred by group: (2, 0) → (1, −1); (4, 0) → (2, −2). Mean 0, sample std √((1 + 1 + 4 + 4) / 3) = √(10/3).
    divisor = math.sqrt(10 / 3) + 1e-4
    expected = [[1 / divisor, -1 / divisor], [2 / divisor, -2 / divisor]]
    found = advantages([[2.0, 0.0], [4.0, 0.0]], scale="batch_std")
    assert found == [pytest.approx(row, rel=1e-15) for row in expected]
    # A group without spread adds two zeros to the std: √(10/5).
    divisor = math.sqrt(2) + 1e-4
    found = advantages([[2.0, 0.0], [4.0, 0.0], [0.1, 0.1]], scale="batch_std")
    assert found[1] == pytest.approx([2 / divisor, -2 / divisor], rel=1e-15)
    assert found[2] == [0.0, 0.0]


def test_leave_one_out_and_batch_std():
    # (2, 0): each against the other → (2, −2); mean 0, sample std √((4 + 4) / 1) = √8.
    divisor = math.sqrt(8) + 1e-4
    found = advantages([[2.0, 0.0]], baseline="leave_one_out", scale="batch_std")
    assert found == [pytest.approx([2 / divisor, -2 / divisor], rel=1e-15)]


def test_length_weighted_and_batch_std():
    # Centred: (0.375, −0.625, 0.375), mean 1/24; Σ(x − 1/24)² = 2·(1/3)² + (2/3)² = 2/3; std √(1/3).
    divisor = math.sqrt(1 / 3) + 1e-4
    found = advantages([[1.0, 0.0, 1.0]], lengths=[[1, 3, 4]], baseline="length_weighted", scale="batch_std")
    assert found == [pytest.approx([0.375 / divisor, -0.625 / divisor, 0.375 / divisor], rel=1e-14)]


@pytest.mark.parametrize("garbage", [0.0, 1e30, NAN, INF, -INF])
@pytest.mark.parametrize("scale", SCALES)
def test_an_invalid_completion_takes_no_part(garbage, scale):
    """(1, 0, x) with x left out is (1, 0): mean 1/2, std √0.5; and so in every kind, x's advantage being 0."""
    valid, lengths = [[True, True, False], [True, True, True]], [[2, 2, 9], [2, 2, 9]]
    rewards = [[1.0, 0.0, garbage], [0.0, 0.0, 3.0]]
    found = advantages(rewards, valid, baseline="mean", scale=scale)
    divisor = {
        "none": 1.0,
        "group_std": math.sqrt(0.5) + 1e-4,
        # Centred (0.5, −0.5) and (−1, −1, 2): sum of squares 6.5 over 5 − 1.
        "batch_std": math.sqrt(6.5 / 4) + 1e-4,
    }[scale]
    assert found[0] == pytest.approx([0.5 / divisor, -0.5 / divisor, 0.0], rel=1e-15)
    assert found[0][2] == 0.0
    for baseline in BASELINES:
        clean = advantages([[1.0, 0.0, 0.0], rewards[1]], valid, lengths, baseline=baseline, scale=scale)
        assert advantages(rewards, valid, lengths, baseline=baseline, scale=scale) == clean


@pytest.mark.parametrize(("baseline", "scale"), EVERY_KIND)
def test_a_group_with_one_or_no_valid_completion(baseline, scale):
    """Alone in its group a completion has nothing to be compared with but the batch."""
    rewards = [[5.0, NAN, NAN], [NAN, NAN, NAN], [2.0, 0.0, 1.0]]
    valid = [[True, False, False], [False, False, False], [True, True, True]]
    found = advantages(rewards, valid, [[4, 4, 4]] * 3, baseline=baseline, scale=scale)
    if baseline == "batch" and scale != "group_std":
        # Mean (5 + 2 + 0 + 1) / 4 = 2, so 3 above it; differences 3, 0, −2, −1: std √(14 / 3).
        divisor = 1.0 if scale == "none" else math.sqrt(14 / 3) + 1e-4
        assert found[0] == [pytest.approx(3 / divisor, rel=1e-15), 0.0, 0.0]
    else:
        assert found[0] == [0.0, 0.0, 0.0]
    assert found[1] == [0.0, 0.0, 0.0]
    # The third group's own numbers do not change when the first two are absent and nothing is batch-wide.
    if baseline != "batch" and scale != "batch_std":
        assert found[2] == advantages(rewards[2:], None, [[4, 4, 4]], baseline=baseline, scale=scale)[0]


@pytest.mark.parametrize(("baseline", "scale"), EVERY_KIND)
def test_a_whole_batch_with_one_or_no_valid_completion(baseline, scale):
    for valid in ([[False, True]], [[False, False]]):
        assert advantages([[NAN, 3.0]], valid, [[1, 1]], baseline=baseline, scale=scale) == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("baseline", "scale"), EVERY_KIND)
def test_no_spread_is_exactly_zero(baseline, scale, dtype):
    """The mean of 0.1 seven times is not 0.1 in floating point; rounding must not look like a signal."""
    for value in (0.1, 0.3, -0.7, 1 / 3, 1e-8, 1e8 + 0.1):
        for size in range(2, 33):
            lengths = [list(range(1, size + 1))] * 2
            found = advantages([[value] * size] * 2, None, lengths, baseline=baseline, scale=scale, dtype=dtype)
            assert found == [[0.0] * size] * 2, (value, size)


@pytest.mark.parametrize(("baseline", "scale"), [kind for kind in EVERY_KIND if "batch" not in kind[0]])
def test_no_spread_in_a_group_is_exactly_zero_beside_one_that_has_spread(baseline, scale):
    for size in range(2, 12):
        rewards = [[0.1] * size, [1.0] + [0.0] * (size - 1)]
        found = advantages(rewards, None, [[3] * size] * 2, baseline=baseline, scale=scale, dtype=torch.float32)
        assert found[0] == [0.0] * size
        assert found[1][0] > 0


@pytest.mark.parametrize(("baseline", "scale"), EVERY_KIND)
def test_agrees_with_plain_python(baseline, scale):
    for seed in range(60):
        rewards, valid, lengths = random_case(seed)
        kind = {"baseline": baseline, "scale": scale} | ({"std": "population", "std_eps": 0.01} if seed % 2 else {})
        found = advantages(rewards, valid, lengths, **kind)
        expected = plain_advantages(rewards, valid, lengths, **kind)
        for found_row, expected_row in zip(found, expected, strict=True):
            assert found_row == pytest.approx(expected_row, rel=1e-9, abs=1e-12), seed


finite = st.floats(-10, 10).map(lambda x: round(x, 3))
groups_of_rewards = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.lists(finite, min_size=size, max_size=size), min_size=1, max_size=4)
)


@settings(max_examples=60, deadline=None)
@given(groups_of_rewards, st.floats(-5, 5))
def test_properties_of_the_group_mean(rewards, shift):
    """Advantages sum to 0 in each group; adding a constant to a group's rewards changes nothing; order carries over."""
    found = advantages(rewards)
    shifted = advantages([[reward + shift for reward in group] for group in rewards])
    for group, row, shifted_row in zip(rewards, found, shifted, strict=True):
        assert math.fsum(row) == pytest.approx(0.0, abs=1e-9)
        if max(group) - min(group) > 1e-9:
            assert shifted_row == pytest.approx(row, abs=1e-8)
        for (reward_a, a), (reward_b, b) in itertools.combinations(zip(group, row, strict=True), 2):
            assert (reward_a < reward_b) <= (a < b)
            assert (reward_a == reward_b) <= (a == b)


@settings(max_examples=40, deadline=None)
@given(groups_of_rewards, st.sampled_from(BASELINES), st.sampled_from(SCALES), st.randoms(use_true_random=False))
def test_the_order_of_completions_does_not_matter(rewards, baseline, scale, rng):
    order = list(range(len(rewards[0])))
    rng.shuffle(order)
    lengths = [[1 + (7 * p + 3 * g) % 11 for g in range(len(order))] for p in range(len(rewards))]

    def reordered(rows):
        return [[row[i] for i in order] for row in rows]

    found = advantages(reordered(rewards), None, reordered(lengths), baseline=baseline, scale=scale)
    expected = reordered(advantages(rewards, None, lengths, baseline=baseline, scale=scale))
    for found_row, expected_row in zip(found, expected, strict=True):
        assert found_row == pytest.approx(expected_row, rel=1e-9, abs=1e-9)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="unknown baseline 'median': mean, leave_one_out, batch or length_weighted"):
        advantages(ONE_OF_FOUR, baseline="median")
    with pytest.raises(ValueError, match="unknown scale 'iqr': group_std, batch_std or none"):
        advantages(ONE_OF_FOUR, scale="iqr")
    with pytest.raises(ValueError, match='baseline "length_weighted" needs lengths_PG'):
        advantages(ONE_OF_FOUR, baseline="length_weighted")


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
def test_rounding_is_no_spread(scale):
    """The same parts summed in another order: 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit."""
    sums = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]
    assert sums[0] != sums[1]
    rewards = torch.tensor([sums, [1.0, 0.0]], dtype=torch.float64)
    assert group_advantages(rewards, scale=scale)[0].tolist() == [0.0, 0.0]
    next_float = torch.tensor(0.6).nextafter(torch.tensor(1.0))
    rewards = torch.tensor([[0.6, next_float], [1.0, 0.0]])
    assert group_advantages(rewards, scale=scale)[0].tolist() == [0.0, 0.0]
    assert group_advantages(torch.tensor([[0.6, 0.60001]]), scale="none").all()


@pytest.mark.parametrize("size", [3, 6, 7, 8, 12])
def test_parts_that_cancel_leave_no_signal(size):
    """Short answers are wrong and right ones are long: what one part gives, the other takes."""
    right = (torch.arange(size) < torch.arange(1, size)[:, None]).float()
    cancelling = torch.stack([right, 1 - right], dim=2)
    assert (parts_advantages(cancelling, torch.ones(2)) == 0).all()
    assert (parts_advantages(cancelling, torch.full((2,), 0.3)) == 0).all()
    # Beside a group in which both parts agree, and with other weights, the formula is unchanged.
    agreeing = torch.stack([right[:1], right[:1]], dim=2)
    advantages = parts_advantages(torch.cat([cancelling, agreeing]), torch.ones(2))
    assert (advantages[:-1] == 0).all()
    assert advantages[-1].all()
    assert parts_advantages(cancelling, torch.tensor([1.0, 0.999])).all()
