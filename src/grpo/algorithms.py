"""The objective's settings, and the named algorithms: one row each. Adding an algorithm is adding a row to PRESETS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The objective. What is not set on the command line or in a file comes from the preset named by `algorithm`; in
    Python, start from a preset's: dataclasses.replace(PRESETS["dr_grpo"].settings, beta=0.1)."""

    baseline: Literal["mean", "leave_one_out", "batch", "length_weighted"] = "mean"
    """What a reward is compared with: its group's mean (plain, of the others only, or by length), or the batch's."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What the difference is divided by: the standard deviation of its group, of the batch, or nothing."""
    ratio: Literal["token", "sequence"] = "token"
    """Policy ratio of each token, or one for the whole completion (the geometric mean over its tokens)."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    aggregate: Literal["sequence", "token", "constant"] = "sequence"
    """Mean over completions of each one's token mean; mean over tokens; or sum / (completions x max_new_tokens)."""
    beta: float = 0.04
    """Weight of the KL divergence from the reference model; 0 loads no reference."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Which estimate of the KL divergence is used."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One algorithm: its settings, where it is published, and where we depart from that."""

    settings: Loss
    paper: str
    differences: str


PRESETS: Mapping[str, Preset] = {
    "grpo": Preset(
        settings=Loss(
            baseline="mean",
            scale="group_std",
            ratio="token",
            clip_low=0.2,
            clip_high=0.2,
            aggregate="sequence",
            beta=0.04,
            kl="k3",
        ),
        paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
        differences=(
            "The deviation is the sample one, and 1e-4 is added to it. A group whose rewards are all equal has "
            "advantage exactly 0. The clip range is PPO's usual 0.2. The reference stays the starting model; "
            "the paper's outer loop renews it. With one update per batch, as there, the ratio is 1 and never clipped."
        ),
    ),
    "dr_grpo": Preset(
        settings=Loss(
            baseline="mean",
            scale="none",
            ratio="token",
            clip_low=0.2,
            clip_high=0.2,
            aggregate="constant",
            beta=0.0,
            kl="k3",
        ),
        paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv:2503.20783",
        differences=(
            "The paper's formula sums over tokens and divides by the group size alone; we divide by max_new_tokens "
            "as well. The factor is the same for every completion, so no length is favoured."
        ),
    ),
}
