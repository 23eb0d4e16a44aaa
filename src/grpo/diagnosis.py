"""What goes wrong in a run, in plain words: each finding names the step, the number and what to try.

`diagnose` is a function of the record alone, so a resumed run finds what it found before, and anybody can ask again.
docs/diagnosis.md lists the findings with their thresholds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from grpo.evaluation import is_right

if TYPE_CHECKING:
    from grpo.store import Run

WINDOW = 10
"""Steps that a finding looks at: the last so many, and for comparison the first."""
EVERY = 10
"""Steps between two looks of a running trainer."""
SAMPLED_STEPS = 3
"""Of the window, the last so many are read completion by completion."""
SOLVED = 0.9
"""Accuracy above which little entropy and a flat reward are no fault."""


@dataclass(frozen=True)
class Finding:
    kind: str
    step: int
    """The last step it looked at."""
    value: float
    """The number that the threshold is for."""
    text: str

    def is_news_after(self, earlier: Finding | None) -> bool:
        """Whether it has changed by more than half since it was last told."""
        return earlier is None or abs(self.value - earlier.value) > 0.5 * abs(earlier.value)


@dataclass(frozen=True)
class Record:
    """What is looked at: rows of metrics by step, evaluations, and the last groups; in order."""

    steps: Sequence[Mapping[str, Any]]
    evals: Sequence[Mapping[str, Any]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    """As `Run.completions` gives them."""
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, up_to: int | None = None) -> Record:
        """The record as it was after step `up_to`; all of it where none is named."""
        rows = [row for row in run.all_metrics() if up_to is None or row["step"] <= up_to]
        last = rows[-1]["step"] if rows else -1
        groups = [group for row in rows[-SAMPLED_STEPS:] for group in run.completions(row["step"])]
        return cls(rows, [row for row in run.evals() if row["step"] <= last + 1], groups, run.config)

    @property
    def step(self) -> int:
        return self.steps[-1]["step"]

    def last(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.steps[-count:] if row.get(metric) is not None]

    def first(self, metric: str, count: int = WINDOW) -> list[float]:
        return [row[metric] for row in self.steps[:count] if row.get(metric) is not None]

    def setting(self, path: str, default: Any) -> Any:
        section, _, name = path.rpartition(".")
        return (self.config.get(section, {}) if section else self.config).get(name, default)

    @property
    def is_solved(self) -> bool:
        return bool(accuracy := self.last("accuracy")) and fmean(accuracy) >= SOLVED

    def found(self, kind: str, value: float, text: str, step: int | None = None) -> Finding:
        at = self.step if step is None else step
        return Finding(kind, self.step, value, f"after {at + 1} steps, {text}")


def diagnose(record: Record | Run) -> list[Finding]:
    """Everything that is to be said of the record as it stands; nothing where there is too little of it."""
    if not isinstance(record, Record):
        record = Record.of(record)
    if len(record.steps) < WINDOW:
        return []
    return [finding for check in CHECKS if (finding := check(record)) is not None]


def news(run: Run, step: int) -> list[Finding]:
    """What is to be told after this step: not what was told already, unless it has changed since."""
    told = {row["kind"]: row["step"] for row in run.findings() if row["step"] is not None and row["step"] <= step}
    fresh = []
    for finding in diagnose(Record.of(run, step)):
        if finding.kind not in told:
            fresh.append(finding)
        elif told[finding.kind] < step:
            before = {each.kind: each for each in diagnose(Record.of(run, told[finding.kind]))}
            if finding.is_news_after(before.get(finding.kind)):
                fresh.append(finding)
    return fresh


def truncated(record: Record) -> Finding | None:
    share = _mean(record.last("truncated"))
    if share < 0.2:
        return None
    limit = record.setting("max_new_tokens", None)
    at = f" ({limit})" if limit else ""
    return record.found(
        "truncated",
        share,
        f"{share:.0%} of the completions are cut at max_new_tokens{at} and cannot finish: raise it, or pay for brevity "
        "(--loss.overlong 0.2)",
    )


def one_sided(record: Record) -> Finding | None:
    """Groups without any right answer, or without any wrong one; where rewards still differ, a group teaches."""
    groups = [[done["reward"] for done in group["completions"]] for group in record.groups]
    if not groups:
        return None
    none = fmean(len(set(rewards)) == 1 and not is_right(rewards[0]) for rewards in groups)
    every = fmean(all(map(is_right, rewards)) for rewards in groups)
    if none >= 0.6:
        return record.found(
            "all_wrong",
            none,
            f"{none:.0%} of the groups have no right answer and teach nothing: ask easier problems, sample more per "
            "group (--group-size), or fine-tune first (grpo sft)",
        )
    if every >= 0.95:
        return record.found(
            "all_right",
            every,
            f"{every:.0%} of the groups are all right and teach nothing: the problems are solved; stop, ask harder "
            "ones, or leave such groups out (--algorithm dapo)",
        )
    return None


def entropy_collapse(record: Record) -> Finding | None:
    before, now = _mean(record.first("entropy")), _mean(record.last("entropy"))
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


def length_collapse(record: Record) -> Finding | None:
    before, now = _mean(record.first("length_mean")), _mean(record.last("length_mean"))
    gained = _mean(record.last("reward_mean")) - _mean(record.first("reward_mean"))
    if not before or gained > 0.05:
        return None
    if now <= 0.5 * before:
        return record.found(
            "length_collapse",
            now,
            f"completions have shrunk from {before:.1f} to {now:.1f} tokens and earn no more: check what the reward "
            "pays for short answers, and compare --loss.aggregate constant",
        )
    if now >= 2 * before:
        return record.found(
            "length_growth",
            now,
            f"completions have grown from {before:.1f} to {now:.1f} tokens and earn no more: padding; compare "
            "--algorithm dr_grpo, which favours no length",
        )
    return None


def kl_running_away(record: Record) -> Finding | None:
    kl = _mean(record.last("kl"))
    if kl <= 0.5:
        return None
    return record.found(
        "kl",
        kl,
        f"the policy is {kl:.2g} nats per token away from the reference: lower lr, raise --loss.beta, or renew the "
        "reference (--loss.refresh 50)",
    )


def clipping(record: Record) -> Finding | None:
    share = _mean(record.last("clip_low")) + _mean(record.last("clip_high"))
    most = 0.5 if record.setting("loss.ratio", "token") == "sequence" else 0.2
    if share <= most:
        return None
    return record.found(
        "clipped",
        share,
        f"{share:.0%} of the tokens are clipped and teach nothing: the policy moves too far within a step; lower lr, "
        "or take fewer updates (--optimizer.epochs, --optimizer.minibatches)",
    )


def duplicates(record: Record) -> Finding | None:
    """Wrong siblings that differ in nothing but case, spacing and punctuation. (Right ones may well be alike.)"""
    different, wrong = 0, 0
    for group in record.groups:
        texts = [done["text"] for done in group["completions"] if not is_right(done["reward"])]
        if len(texts) > len(group["completions"]) / 2:
            different += len({re.sub(r"[\W_]+", " ", text).strip().casefold() for text in texts})
            wrong += len(texts)
    completions = sum(len(group["completions"]) for group in record.groups)
    if not wrong or wrong < completions / 4 or different > wrong / 4:
        return None
    return record.found(
        "duplicates",
        different / wrong,
        f"of the wrong completions in mostly wrong groups, only {different / wrong:.0%} differ from their siblings: "
        "trying again brings nothing new; raise the temperature, or lower lr",
    )


def saturated_part(record: Record) -> Finding | None:
    """A part of the reward that is the same for nearly all completions, beside one that is not."""
    parts: dict[str, list[float]] = {}
    for group in record.groups:
        for done in group["completions"]:
            for name, value in done["parts"].items():
                if value is not None:
                    parts.setdefault(name, []).append(value)
    same = {name: Counter(values).most_common(1)[0] for name, values in parts.items()}
    shares = {name: count / len(parts[name]) for name, (_, count) in same.items()}
    if len(shares) < 2 or min(shares.values()) >= 0.95:
        return None
    name = max(shares, key=lambda part: shares[part])
    if shares[name] < 0.95:
        return None
    return record.found(
        "saturated_part",
        shares[name],
        f"reward part {name} is {same[name][0]:g} for {shares[name]:.0%} of the completions and tells them apart no "
        "longer: lower its weight (--loss.weights), or make it harder to earn",
    )


def reward_hacking(record: Record) -> Finding | None:
    """Held-out accuracy has fallen beyond its interval since its best, and the training reward has not."""
    evals = [row for row in record.evals if row.get("accuracy") is not None]
    if len(evals) < 2:
        return None
    best, latest = max(evals, key=lambda row: row["accuracy"]), evals[-1]
    around = [row["reward_mean"] for row in record.steps if abs(row["step"] - best["step"]) <= WINDOW // 2]
    if best["low"] <= latest["high"] or not around or _mean(record.last("reward_mean")) <= fmean(around):
        return None
    return record.found(
        "reward_hacking",
        latest["accuracy"],
        f"held-out accuracy has fallen from {best['accuracy']:.0%} (after {best['step']} steps) to "
        f"{latest['accuracy']:.0%} while the training reward rose from {fmean(around):.2f} to "
        f"{_mean(record.last('reward_mean')):.2f}: the reward pays for something else than the task; read the groups "
        "with the highest reward, and keep the best checkpoint (grpo export --best)",
    )


def reward_flat(record: Record) -> Finding | None:
    stretch = 20
    if len(record.steps) < 3 * stretch or record.is_solved:
        return None
    before, now = record.first("reward_mean", stretch), record.last("reward_mean", stretch)
    error = ((stdev(before) ** 2 + stdev(now) ** 2) / stretch) ** 0.5
    if abs(fmean(now) - fmean(before)) > 2 * error:
        return None
    return record.found(
        "reward_flat",
        fmean(now),
        f"the reward has not moved, {fmean(before):.3f} then and {fmean(now):.3f} now: raise lr, look whether groups "
        "have unequal rewards (zero_signal_groups), and read a few completions",
    )


def reward_fall(record: Record) -> Finding | None:
    rewards = record.first("reward_mean", len(record.steps))
    if len(rewards) < len(record.steps):
        return None
    means = [fmean(rewards[i : i + WINDOW]) for i in range(len(rewards) - WINDOW + 1)]
    best = max(range(len(means)), key=lambda i: means[i])
    if means[best] <= 0 or means[-1] > 0.5 * means[best]:
        return None
    after = record.steps[best + WINDOW - 1]["step"] + 1
    return record.found(
        "reward_fall",
        means[-1],
        f"the reward is {means[-1]:.2f} and was {means[best]:.2f} after {after} steps: the learning rate is too high; "
        "lower lr and start again from before",
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


CHECKS: tuple[Callable[[Record], Finding | None], ...] = (
    truncated,
    one_sided,
    entropy_collapse,
    length_collapse,
    kl_running_away,
    clipping,
    duplicates,
    saturated_part,
    reward_hacking,
    reward_flat,
    reward_fall,
    spike,
)
KINDS = (
    "truncated",
    "all_wrong",
    "all_right",
    "entropy_collapse",
    "length_collapse",
    "length_growth",
    "kl",
    "clipped",
    "duplicates",
    "saturated_part",
    "reward_hacking",
    "reward_flat",
    "reward_fall",
    "spike",
)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
