"""Findings in the policy: where it has gone, and how hard it is pushed."""

from __future__ import annotations

from statistics import median

from grpo.record.diagnosis.record import WINDOW, Finding, Record, mean


def entropy_collapse(record: Record) -> Finding | None:
    before, now = mean(record.first("entropy")), mean(record.last("entropy"))
    if not before or now >= 0.03 * before or record.is_solved:
        return None
    updates = record.setting("optimizer.epochs", 1) * record.setting("optimizer.minibatches", 1)
    clip = ", raise --loss.clip_high," if updates > 1 else ""  # with one update nothing is clipped
    return record.found(
        "entropy_collapse",
        now,
        f"entropy has fallen from {before:.3g} to {now:.3g} nats per token with problems left to solve: the policy no "
        f"longer explores; lower lr{clip} or add --loss.entropy 0.001",
    )


def kl_running_away(record: Record) -> Finding | None:
    kl = mean(record.last("kl"))
    if kl <= 0.5:
        return None
    return record.found(
        "kl",
        kl,
        f"the policy is {kl:.2g} nats per token away from the reference: lower lr, raise --loss.beta, or renew the "
        "reference (--loss.refresh 50)",
    )


def clipping(record: Record) -> Finding | None:
    share = mean(record.last("clip_low")) + mean(record.last("clip_high"))
    most = 0.5 if record.setting("loss.ratio", "token") != "token" else 0.2
    if share <= most:
        return None
    return record.found(
        "clipped",
        share,
        f"{share:.0%} of the tokens are clipped and teach nothing: the policy moves too far within a step; lower lr, "
        "or take fewer updates (--optimizer.epochs, --optimizer.minibatches)",
    )


def wild_ratios(record: Record) -> Finding | None:
    """Tokens that became many times as likely within a batch: the clip bounds a gradient, not a ratio."""
    wild = [row for row in record.steps[-WINDOW:] if (row.get("ratio_max") or 0.0) > 10]
    if len(wild) < 3:
        return None
    largest = max(wild, key=lambda row: row["ratio_max"])
    return record.found(
        "ratios",
        largest["ratio_max"],
        f"in {len(wild)} of the last {WINDOW} steps a token became more than ten times as likely between two updates "
        f"on its batch, up to {largest['ratio_max']:.3g} times: lower lr, or take fewer updates (--optimizer.epochs, "
        "--optimizer.minibatches)",
        largest["step"],
    )


def sampler_gap(record: Record) -> Finding | None:
    gap = mean(record.last("sampler_gap"))
    if gap <= 0.05 or record.setting("loss.correction", "none") != "none":
        return None
    return record.found(
        "sampler_gap",
        gap,
        f"sampler and trainer disagree by {gap:.2g} nats per token, so the ratio compares two models: look for a "
        "difference in precision or weights, or weigh it in (--loss.correction token)",
    )


def spike(record: Record) -> Finding | None:
    """A gradient many times as long as usual."""
    norms = [(row["step"], row["grad_norm"]) for row in record.steps if row.get("grad_norm")]
    usual = [norm for _, norm in norms[:-WINDOW]]
    if len(usual) < WINDOW:
        return None
    step, largest = max(norms[-WINDOW:], key=lambda pair: pair[1])
    if largest < 10 * median(usual):
        return None
    return record.found(
        "spike",
        largest / median(usual),
        f"the gradient's norm jumped to {largest:.3g}, usually {median(usual):.3g}: lower lr or --optimizer.grad_clip",
        step,
    )
