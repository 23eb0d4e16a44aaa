"""Findings in the policy: its entropy, its distance to the reference, and the size of its updates."""

from __future__ import annotations

from statistics import median

from grpo.record.diagnosis.history import WINDOW, Finding, History, mean

FEWER_UPDATES = "lower lr, or take fewer updates per step (--optimizer.epochs, --optimizer.minibatches)"
ENTROPY_LEFT = 0.03
"""Share of the first entropy below which the policy has collapsed."""
DESTROYED = 1.0
"""KL divergence to the reference, in nats per token, above which the first updates were too large."""

MISPLACED = 0.1
"""Gap between sampler and trainer, in nats per token, that no precision explains."""


def entropy_collapse(history: History) -> Finding | None:
    before, now = mean(history.first("entropy")), mean(history.last("entropy"))
    if not before or now >= ENTROPY_LEFT * before or history.is_solved:
        return None
    updates = history.setting("optimizer.epochs", 1) * history.setting("optimizer.minibatches", 1)
    clip = ", raise --loss.clip_high," if updates > 1 else ""  # with one update nothing is clipped
    return history.found(
        "entropy_collapse",
        now,
        f"entropy has fallen from {before:.3g} to {now:.3g} nats per token while problems are unsolved (the policy "
        "no longer explores)",
        f"lower lr{clip} or add --loss.entropy 0.001",
    )


def diverged(history: History) -> Finding | None:
    """The first updates destroyed the policy. For the first steps, too few for the other checks."""
    before, now = mean(history.first("entropy", 1)), mean(history.last("entropy", 1))
    distance = mean(history.last("kl", 1))
    if distance > DESTROYED:
        value, what = distance, f"the KL divergence to the reference is {distance:.2g} nats per token"
    elif 0 < now < ENTROPY_LEFT * before and not history.is_solved:
        value, what = now, f"entropy has fallen from {before:.3g} to {now:.3g} nats per token"
    else:
        return None
    return history.found(
        "diverged",
        value,
        f"{what} (the first updates destroyed the policy, probably because lr is too high)",
        "lower lr, and start again",
    )


def kl(history: History) -> Finding | None:
    distance = mean(history.last("kl"))
    if distance <= 0.5:
        return None
    return history.found(
        "kl",
        distance,
        f"the KL divergence to the reference is {distance:.2g} nats per token",
        "lower lr, raise --loss.beta, or renew the reference (--loss.refresh 50)",
    )


def clipped(history: History) -> Finding | None:
    share = mean(history.last("clip_low")) + mean(history.last("clip_high"))
    most = 0.5 if history.setting("loss.ratio", "token") != "token" else 0.2
    if share <= most:
        return None
    return history.found(
        "clipped",
        share,
        f"{share:.0%} of the tokens are clipped and teach nothing (the policy moves too far within a step)",
        FEWER_UPDATES,
    )


def ratios(history: History) -> Finding | None:
    """Tokens that became many times as likely within a batch: the clip bounds a gradient, not a ratio."""
    wild = [row for row in history.last_rows[-WINDOW:] if (row.get("ratio_max") or 0.0) > 10]
    if len(wild) < 3:
        return None
    largest = max(wild, key=lambda row: row["ratio_max"])
    return history.found(
        "ratios",
        largest["ratio_max"],
        f"in {len(wild)} of the last {WINDOW} steps a token became more than ten times as likely between two updates "
        f"on its batch, up to {largest['ratio_max']:.3g} times",
        FEWER_UPDATES,
        at=largest["step"],
    )


def sampler_gap(history: History) -> Finding | None:
    gap = mean(history.last("sampler_gap"))
    if gap <= 0.05 or history.setting("loss.correction", "none") != "none":
        return None
    return history.found(
        "sampler_gap",
        gap,
        f"log-probabilities of sampler and trainer differ by {gap:.2g} nats per token (the ratio compares two models)",
        "look for a difference in precision or weights, or correct for it (--loss.correction token)",
    )


def trained_observations(history: History) -> Finding | None:
    """The first step of a run with observations: sampler and trainer have the same weights, so a large gap means that
    they disagree about which tokens were sampled."""
    [gap], [read] = (history.first(name, 1) or [0.0] for name in ("sampler_gap", "observation_tokens"))
    if not read or gap <= MISPLACED:
        return None
    return history.found(
        "trained_observations",
        gap,
        f"sampler and trainer differ by {gap:.2g} nats per token from the first step on, and completions read "
        f"{read:.3g} tokens between their turns (observed tokens are being trained, or were encoded again)",
        "check that the trainer gets the tokens that the sampler read, in their places",
        at=0,
    )


def spike(history: History) -> Finding | None:
    """A gradient many times as long as usual."""
    norms = [(row["step"], row["grad_norm"]) for row in history.last_rows if row.get("grad_norm")]
    before = [norm for _, norm in norms[:-WINDOW]]
    if len(before) < WINDOW:
        return None
    usual, (step, largest) = median(before), max(norms[-WINDOW:], key=lambda pair: pair[1])
    if largest < 10 * usual:
        return None
    return history.found(
        "spike",
        largest / usual,
        f"the gradient norm jumped to {largest:.3g}; its median before was {usual:.3g}",
        "lower lr or --optimizer.grad_clip",
        at=step,
    )
