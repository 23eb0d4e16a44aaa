"""The objective's settings, and the named algorithms: one row each. Adding an algorithm is adding a row to PRESETS."""

import difflib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from grpo.config.parse import shown
from grpo.errors import GrpoError


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The objective. `Config` takes every field that is not set here from the preset named by `algorithm`: with
    Config(algorithm="dapo", loss=Loss(beta=0.1)) the run has dapo's settings and beta 0.1."""

    baseline: Literal["mean", "leave_one_out", "batch", "length_weighted", "value"] = "mean"
    """What a reward is compared with: its group's mean (plain, of the others only, or by length), the batch's mean, or
    the value a critic expected of every token."""
    scale: Literal["group_std", "batch_std", "none"] = "group_std"
    """What the difference is divided by: the standard deviation of its group, of the batch, or nothing."""
    std: Literal["sample", "population"] = "sample"
    """Standard deviation: sample divides by n - 1, population by n."""
    std_eps: float = 1e-4
    """Added to the standard deviation."""
    credit: Literal["outcome", "process"] = "outcome"
    """Reward for the whole completion, or for each of its steps, as the task marks them."""
    parts: Literal["sum", "normalise"] = "sum"
    """Several rewards: summed, or each normalised in its group first."""
    weights: str = ""
    """Weights of the reward's parts, such as correct=1,format=0.2; a part not named weighs 1."""
    overlong: float = 0.0
    """Last share of max_new_tokens over which a longer completion loses up to 1 of its reward."""
    mask_truncated: bool = False
    """Leave completions that were cut at max_new_tokens out of the loss."""
    dynamic_sampling: float = 1.0
    """Replace groups without signal until dynamic_sampling x prompts_per_step groups were drawn; 1: off."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """Policy ratio of each token, or one for the completion: the geometric mean (sequence) or the product."""
    surrogate: str = "clip"
    """How the ratio counts: clip, weight (of the gradient), gate (fading out), plain; or a function, module:name."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    cap: float = 0.0
    """Largest ratio: of surrogate weight; of surrogate clip where the advantage is negative; 0: no bound."""
    gate_up: float = 1.0
    """Steepness of surrogate gate where the advantage is positive."""
    gate_down: float = 1.05
    """Steepness of surrogate gate where it is negative."""
    aggregate: Literal["sequence", "token", "constant"] = "sequence"
    """Mean over completions of each one's token mean; mean over tokens; or sum / (completions x max_new_tokens)."""
    beta: float = 0.04
    """Weight of the KL divergence from the reference model; 0 loads no reference."""
    kl: Literal["k1", "k2", "k3", "k3_ratio"] = "k3"
    """Which estimate of the KL divergence is used; k3_ratio is k3 times the policy ratio."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL divergence is part of the loss or taken off the reward."""
    refresh: int = 0
    """Steps after which the reference becomes a copy of the policy; 0: it stays the starting model."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    correction: Literal["none", "token", "token_mask", "sequence", "sequence_mask"] = "none"
    """Importance weights for a sampler that differs from the trainer: cut at correction_cap, or 0 beyond it (mask)."""
    correction_cap: float = 2.0
    """Largest importance weight."""

    def __new__(cls, **given: Any) -> "Loss":
        loss = super().__new__(cls)
        object.__setattr__(loss, "_fields_set", frozenset(given))
        return loss

    @property
    def fields_set(self) -> frozenset[str]:
        """Names of the fields that were passed to the constructor. `dataclasses.replace` passes all of them."""
        names: frozenset[str] = self.__dict__["_fields_set"]
        return names

    def over(self, preset: "Loss") -> "Loss":
        """The preset's settings, overridden by the fields set here. `fields_set` stays, so that the same overrides can
        be applied to another preset.

        >>> merged = Loss(beta=0.1).over(PRESETS["dr_grpo"].settings)
        >>> merged.beta, merged.scale, merged.fields_set
        (0.1, 'none', frozenset({'beta'}))
        """
        merged = replace(preset, **{name: getattr(self, name) for name in self.fields_set})
        object.__setattr__(merged, "_fields_set", self.fields_set)
        return merged


SURROGATES = ("clip", "weight", "gate", "plain")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One algorithm: its settings, where it is published, and where we depart from that."""

    settings: Loss
    paper: str
    differences: str

    def __post_init__(self) -> None:
        # Passes every field, so that loss=PRESETS["grpo"].settings means all of them under any algorithm.
        object.__setattr__(self, "settings", replace(self.settings))


_PLAIN_CLIP = Loss(clip_low=0.2, clip_high=0.2, beta=0.0)

PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        settings=Loss(baseline="mean", scale="group_std", aggregate="sequence", beta=0.04, kl="k3"),
        paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
        differences=(
            "The deviation is the sample one, and 1e-4 is added to it. A group whose rewards are all equal has "
            "advantage exactly 0. The clip range is PPO's usual 0.2; the paper names none. The reference stays the "
            "starting model; the paper's outer loop renews it (loss.refresh). Step rewards (loss.credit process) as "
            "there. With one update per batch, as there, the ratio is 1 and never clipped."
        ),
    ),
    "dr_grpo": Preset(
        settings=replace(_PLAIN_CLIP, baseline="mean", scale="none", aggregate="constant"),
        paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv:2503.20783",
        differences=(
            "The paper's formula sums over tokens and divides by the group size alone; we divide by max_new_tokens "
            "as well. The factor is the same for every completion, so no length is favoured."
        ),
    ),
    "dapo": Preset(
        settings=replace(_PLAIN_CLIP, clip_high=0.28, aggregate="token", overlong=0.2, dynamic_sampling=3.0),
        paper="Yu et al. 2025, DAPO, arXiv:2503.14476",
        differences=(
            "A group is replaced when its rewards, length penalty included, are equal; the paper looks at accuracy 0 "
            "or 1 alone. Replacing stops at 3 times the prompts of a step, and the step then trains on the groups it "
            "has; the paper samples until the batch is full. The penalty ramps over the last fifth of "
            "max_new_tokens, the paper's 4,096 of 20,480. Rewards are the task's, 0 or 1 here, where the paper has -1 "
            "and 1. Masking of cut completions, one of its ablations, is loss.mask_truncated."
        ),
    ),
    "gspo": Preset(
        settings=replace(_PLAIN_CLIP, ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregate="sequence"),
        paper="Zheng et al. 2025, Group Sequence Policy Optimization, arXiv:2507.18071",
        differences="The standard deviation is the sample one, and 1e-4 is added to it.",
    ),
    "cispo": Preset(
        settings=replace(_PLAIN_CLIP, surrogate="weight", cap=5.0, aggregate="token"),
        paper="MiniMax 2025, MiniMax-M1, arXiv:2506.13585",
        differences=(
            "The cap is on the ratio itself, 5 as in Khatri et al. 2025, arXiv:2510.13786; MiniMax tunes it and does "
            "not tell. There is no lower bound, as there. Tokens are averaged over the whole batch, not over a group."
        ),
    ),
    "sapo": Preset(
        settings=replace(_PLAIN_CLIP, surrogate="gate", gate_up=1.0, gate_down=1.05, aggregate="sequence"),
        paper="Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv:2511.20347",
        differences="The standard deviation is the sample one, and 1e-4 is added to it.",
    ),
    "rloo": Preset(
        settings=replace(
            _PLAIN_CLIP,
            baseline="leave_one_out",
            scale="none",
            aggregate="constant",
            beta=0.05,
            kl="k1",
            kl_in="reward",
        ),
        paper="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740",
        differences=(
            "The paper's gradient is that of the whole completion's log-probability; the sum over tokens is divided by "
            "the completions and by max_new_tokens, a fixed number. A clip as in PPO holds where there are several "
            "updates per batch; the paper takes one and has none. Beta is 0.05; the paper tries 0.03 and 0.1."
        ),
    ),
    "reinforce": Preset(
        settings=replace(_PLAIN_CLIP, baseline="batch", scale="none", surrogate="plain", aggregate="token"),
        paper="Williams 1992, Machine Learning 8; for language models Ahmadian et al. 2024, arXiv:2402.14740",
        differences=(
            "The baseline is the mean reward of the step itself, not of steps before it, which makes the gradient "
            "smaller by 1/n with n completions. The sum over tokens is divided by their number."
        ),
    ),
    "reinforce++": Preset(
        settings=replace(_PLAIN_CLIP, baseline="mean", scale="batch_std", aggregate="token", beta=0.001, kl="k2"),
        paper="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
        differences=(
            "This is the paper's variant with group baseline, for several completions per prompt: the group's mean is "
            "subtracted, the batch's deviation divides, and k2 is in the loss. Its other variant has one completion "
            "per prompt and k1 in the reward: loss.baseline batch, loss.kl k1, loss.kl_in reward."
        ),
    ),
    "opo": Preset(
        settings=replace(
            _PLAIN_CLIP, baseline="length_weighted", scale="none", surrogate="plain", aggregate="constant"
        ),
        paper="Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585",
        differences=(
            "The baseline is optimal for the gradient of whole completions, so tokens are summed; we divide by the "
            "completions and by max_new_tokens, a fixed number. It is meant for one update per batch, the default."
        ),
    ),
    "ppo": Preset(
        settings=replace(
            _PLAIN_CLIP, baseline="value", scale="batch_std", aggregate="token", beta=0.05, kl="k1", kl_in="reward"
        ),
        paper="Schulman et al. 2017, PPO, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155",
        differences=(
            "The paper takes several epochs over a batch; here optimizer.epochs is 1 unless set. Advantages are "
            "shifted and scaled to mean 0 and deviation 1 over the tokens of a step, as implementations do. The critic "
            "has its own learning rate and starts from the policy's weights with a value head of zeros; "
            "its settings are the section critic. Prompts come in groups, which PPO does not compare."
        ),
    ),
}


def check_preset(name: str, where: str) -> None:
    if name not in PRESETS:
        near = difflib.get_close_matches(name[:60], PRESETS, n=1)
        hint = f' did you mean "{near[0]}"?' if near else ""
        raise GrpoError(f"{where}: unknown preset {shown(name)};{hint} known: {', '.join(PRESETS)}")


def load_surrogate(name: str) -> str | Callable[..., Any]:
    """A name the core knows, as it is; `module:function`, the function. Modules of the working folder count."""
    module, _, function = name.partition(":")
    if not function:
        return name
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the command `grpo` has its own folder there instead
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # border: people's own modules
        raise GrpoError(f"field loss.surrogate: cannot load {name!r}: {error}") from error
    if not callable(found):
        raise GrpoError(f"field loss.surrogate: cannot load {name!r}: it is no function")
    return found


def surrogate_source(name: str) -> bytes:
    """The file that holds people's own surrogate; nothing where there is none."""
    found = load_surrogate(name)
    try:
        return b"" if isinstance(found, str) else Path(inspect.getfile(found)).read_bytes()
    except (TypeError, OSError):  # a function typed at a prompt, or of a compiled module, has no file
        return b""
