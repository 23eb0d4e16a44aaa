"""Random cases of grpo.core, with the results in float64, to compare another implementation with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch

from grpo import core
from grpo.core import kl as core_kl
from grpo.core.explain import tabular
from grpo.core.loss import policy_ratio

Case = tuple[str, list[Any], Any]
"""The function's name in JavaScript, its arguments, and its result."""

KL_KINDS = ("k1", "k2", "k3", "k3_ratio")
STDS = ("sample", "population")


def tensor(rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask_of(rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def camel(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.split("_")[0] + "".join(map(str.title, name.split("_")[1:])): x for name, x in settings.items()}


def _rewards(draw: random.Random, groups: int, size: int) -> list[list[float]]:
    kinds: list[Callable[[], float]] = [
        lambda: float(draw.random() < 0.4),
        lambda: draw.gauss(0, 3),
        lambda: draw.choice([0.1 + 0.2, 0.3]),
        lambda: draw.choice([0.0, 1.0, math.nan, math.inf, -math.inf]),
    ]
    kind = draw.choices(kinds, weights=(5, 5, 2, 1))[0]
    rows = [[kind() for _ in range(size)] for _ in range(groups)]
    return [[row[0]] * size if draw.random() < 0.2 else row for row in rows]


def advantages(draw: random.Random, count: int) -> Iterator[Case]:
    ways = list(
        product(("mean", "leave_one_out", "batch", "length_weighted"), ("group_std", "batch_std", "none"), STDS)
    )
    for place in range(count):
        baseline, scale, std = ways[place % len(ways)]
        groups, size = draw.randint(1, 4), draw.choice((1, 2, 3, 8))
        rewards = _rewards(draw, groups, size)
        valid = [[draw.random() < 0.9 for _ in range(size)] for _ in range(groups)] if draw.random() < 0.4 else None
        lengths = [[draw.randint(0, 9) for _ in range(size)] for _ in range(groups)]
        settings = {"baseline": baseline, "scale": scale, "std": std, "std_eps": draw.choice((1e-4, 1e-8, 0.1))}
        masked = None if valid is None else mask_of(valid)
        found = core.group_advantages(tensor(rewards), masked, torch.tensor(lengths), **settings)
        yield "groupAdvantages", [rewards, {"valid": valid, "lengths": lengths, **camel(settings)}], found.tolist()


def _loss_settings(draw: random.Random) -> dict[str, Any]:
    return {
        "ratio": draw.choice(("token", "sequence", "product")),
        "surrogate": draw.choice(("clip", "weight", "gate", "plain")),
        "clip_low": draw.choice((0.0, 0.2, 0.1)),
        "clip_high": draw.choice((0.0, 0.2, 0.28)),
        "cap": draw.choice((0.0, 0.0, 1.0, 2.0, 3.0)),
        "gate_up": draw.choice((1.0, 2.0)),
        "aggregate": draw.choice(("sequence", "token", "constant")),
        "beta": draw.choice((0.0, 0.04, 1.0)),
        "kl": draw.choice(KL_KINDS),
    }


def _logps(draw: random.Random, rows: int, length: int) -> tuple[list[list[float]], ...]:
    """(now, before, reference): far apart, near, or equal, which is where a clip range of 0 and a cap of 1 end."""
    size = draw.choice((0.0, 1e-3, 0.3, 2.0, 60.0))
    now = [[-4 * draw.random() for _ in range(length)] for _ in range(rows)]
    return (now, *([[x + draw.gauss(0, size) for x in row] for row in now] for _ in range(2)))


def losses(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        rows, length = draw.randint(1, 4), draw.randint(1, 6)
        now, before, reference = _logps(draw, rows, length)
        mask = [[draw.random() < draw.choice((0.0, 0.8, 1.0)) for _ in range(length)] for _ in range(rows)]
        sampler = [[x + draw.gauss(0, 0.5) for x in row] for row in before]
        entropy = [[draw.random() for _ in row] for row in now]
        settings = _loss_settings(draw) | {"correction_cap": 1.5, "denominator": float(draw.randint(1, 20))}
        settings["correction"] = draw.choice(("none", "token", "token_mask", "sequence", "sequence_mask"))
        settings["entropy_weight"] = draw.choice((0.0, 0.01))
        credit: Any = [draw.choice((0.0, 1.0, draw.gauss(0, 1))) for _ in range(rows)]
        if draw.random() < 0.5:
            credit = [[draw.gauss(0, 1) for _ in range(length)] for _ in range(rows)]
        if draw.random() < 0.1:
            now[0][0], settings["beta"] = -math.inf, 0.0  # a token that has become impossible
        for row, kept in zip(now, mask, strict=True):
            row[:] = [x if inside or draw.random() < 0.7 else math.nan for x, inside in zip(row, kept, strict=True)]
        given = {"ref_logp": reference, "sampler_logp": sampler, "entropy": entropy}
        leaf = tensor(now).requires_grad_()
        args = (leaf, tensor(before), tensor(credit), mask_of(mask))
        loss, statistics = core.policy_loss(*args, **settings, **{name: tensor(x) for name, x in given.items()})
        [gradient] = torch.autograd.grad(loss, leaf)
        found = {"loss": loss.item(), "gradient": gradient.tolist(), "metrics": statistics.metrics()}
        yield "lossAndMetrics", [now, before, credit, mask, camel({**settings, **given})], found


def tokens(draw: random.Random, count: int) -> Iterator[Case]:
    for place in range(count):
        length = draw.randint(1, 6)
        [now], [before], [reference] = _logps(draw, 1, length)
        credit = [draw.choice((0.0, draw.gauss(0, 1))) for _ in range(length)]
        settings = _loss_settings(draw) | {"denominator": float(draw.randint(1, 20))}
        args = (tensor(now), tensor(before), tensor(credit))
        theirs = [now, before, credit, {**camel(settings), "refLogp": reference}]
        if place % 3:
            terms = core.token_terms(*args, ref_logp_L=tensor(reference), **settings)
            yield (
                "tokenTerms",
                theirs,
                {name: getattr(terms, name).tolist() for name in ("ratio", "clip", "kl", "push")},
            )
        else:
            position = draw.randrange(length)
            share = core.token_loss(position, *args, ref_logp_L=tensor(reference), **settings)
            yield "tokenLoss", [position, *theirs], share


def estimates(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        a, b = -5 * draw.random(), -5 * draw.random()
        b = draw.choice((a, b, a + 1e-9))
        kind, ratio = draw.choice(KL_KINDS), 2 * draw.random()
        yield "klTerm", [a, b, ratio, kind], core_kl.kl_term(tensor(a), tensor(b), tensor(ratio), kind).item()


def critics(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        rows, length = draw.randint(1, 3), draw.randint(1, 6)
        rewards, values = (
            [[draw.choice((0.0, draw.gauss(0, 1))) for _ in range(length)] for _ in range(rows)] for _ in range(2)
        )
        mask = [[place < draw.randint(0, length) for place in range(length)] for _ in range(rows)]
        gamma, lam = draw.choice((1.0, 0.9)), draw.choice((0.0, 0.95, 1.0))
        found = core.gae(tensor(rewards), tensor(values), gamma, lam, mask_of(mask))
        args = [rewards, values, gamma, lam, mask]
        yield "gae", args, dict(zip(("advantages", "returns"), (x.tolist() for x in found), strict=True))


def steps(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        size, scale, std = draw.randint(1, 5), draw.choice(("group_std", "none")), draw.choice(STDS)
        rewards = [[draw.choice((0.0, 1.0, draw.random())) for _ in range(draw.randint(0, 4))] for _ in range(size)]
        lengths = [len(row) + draw.randint(0, 6) for row in rewards]
        ends = [sorted(draw.sample(range(n), len(row))) for row, n in zip(rewards, lengths, strict=True)]
        found = core.process_advantages(rewards, ends, lengths, scale=scale, std=std)
        yield "processAdvantages", [rewards, ends, lengths, {"scale": scale, "std": std}], [x.tolist() for x in found]


def sums(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        groups, size = draw.randint(1, 4), draw.randint(1, 6)
        rewards, credit = ([[draw.gauss(0, 1) for _ in range(size)] for _ in range(groups)] for _ in range(2))
        credit = [[0.0] * size if draw.random() < 0.3 else row for row in credit]
        valid = [[draw.random() < draw.choice((0.1, 1.0)) for _ in range(size)] for _ in range(groups)]
        found = core.reward_statistics(tensor(rewards), tensor(credit), mask_of(valid))
        yield "rewardStatistics", [rewards, credit, valid], found
        aggregate, lengths = draw.choice(("sequence", "token", "constant")), [draw.randint(0, 9) for _ in range(size)]
        yield "denominator", [lengths, aggregate, 9], core.denominator(torch.tensor(lengths), aggregate, 9)
        p, n = draw.random(), draw.randint(1, 64)
        yield "zeroSignalChance", [p, n], core.zero_signal_chance(p, n)
        kind = draw.choice(("token", "token_mask", "sequence", "sequence_mask"))
        weights, limited = core.sampler_correction(tensor(rewards), tensor(credit), mask_of(valid), kind, 1.5)
        expected = {"weights": weights.tolist(), "limited": limited.tolist()}
        yield "samplerCorrection", [rewards, credit, valid, kind, 1.5], expected
        ratio = draw.choice(("token", "sequence", "product"))
        found_ratio = policy_ratio(tensor(rewards), tensor(credit), mask_of(valid), ratio).tolist()
        yield "policyRatio", [rewards, credit, valid, ratio], found_ratio


def tables(draw: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        answers = draw.randint(2, 4)
        logits, ref, rewards = ([draw.gauss(0, 1) for _ in range(answers)] for _ in range(3))
        if draw.random() < 0.1:
            rewards = [0.5] * answers
        ours = tensor(logits), tensor(ref), tensor(rewards)
        yield "trueGradient", [logits, rewards], tabular.true_gradient(ours[0], ours[2]).tolist()
        settings = {
            "baseline": draw.choice(("mean", "leave_one_out", "batch")),
            "scale": draw.choice(("none", "group_std")),
        }
        expected = tabular.expected_estimate(ours[0], ours[2], 3, **settings).tolist()
        yield "expectedEstimate", [logits, rewards, 3, settings], expected
        yield "kl", [logits, ref], tabular.kl(ours[0], ours[1]).item()
        kind = draw.choice(KL_KINDS)
        yield "expectedKlGradient", [logits, ref, kind], tabular.expected_kl_gradient(*ours[:2], kind).tolist()
        yield "angle", [logits, ref], tabular.angle(ours[0], ours[1])
        yield "trpoStep", [logits, rewards, 0.01], tabular.trpo_step(ours[0], ours[2], 0.01).tolist()
        yield "dpoGradient", [logits, ref, rewards, 0.3], tabular.dpo_gradient(*ours, 0.3).tolist()


def cases() -> list[Case]:
    """More than 10,000, always the same."""
    draw = random.Random(21)
    kinds = [(advantages, 2400), (losses, 2600), (tokens, 1500), (estimates, 400), (critics, 400)]
    kinds += [(steps, 400), (sums, 300), (tables, 150)]
    return [case for kind, count in kinds for case in kind(draw, count)]
