"""The presets: one row of PRESETS per algorithm. The fields of `Loss`: sections.py."""

import difflib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.config.leaf import shown
from grpo.config.sections import Loss
from grpo.errors import GrpoError

SURROGATES = ("clip", "weight", "gate", "plain")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One algorithm: its settings, its paper, and every difference from the paper."""

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
            "The standard deviation is the sample one plus 1e-4 (loss.std, loss.std_eps). A group whose rewards are "
            "all equal has advantage exactly 0. The clip range is PPO's usual 0.2; the paper gives none. The reference "
            "stays the starting model; the paper's outer loop refreshes it (loss.refresh). Step rewards are "
            "loss.credit process, as in the paper. With one update per batch, also as in the paper, the ratio is 1 and "
            "never clipped."
        ),
    ),
    "dr_grpo": Preset(
        settings=replace(_PLAIN_CLIP, baseline="mean", scale="none", aggregate="constant"),
        paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv:2503.20783",
        differences=(
            "The paper's formula sums over tokens and divides by the group size; we divide by max_new_tokens as "
            "well. The factor is the same for every completion, so no length is favoured."
        ),
    ),
    "dapo": Preset(
        settings=replace(_PLAIN_CLIP, clip_high=0.28, aggregate="token", overlong=0.2, dynamic_sampling=3.0),
        paper="Yu et al. 2025, DAPO, arXiv:2503.14476",
        differences=(
            "A group is replaced when its rewards, length penalty included, are equal; the paper replaces groups "
            "with accuracy 0 or 1. At most 3 times the prompts of a step are drawn, and the step trains on the groups "
            "it has; the paper samples until the batch is full. The penalty rises over the last fifth of "
            "max_new_tokens, as over the last 4,096 of 20,480 in the paper. Rewards are the task's, such as 0 and 1; "
            "the paper has -1 and 1. Masking truncated completions, one of its ablations, is loss.mask_truncated."
        ),
    ),
    "gspo": Preset(
        settings=replace(_PLAIN_CLIP, ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregate="sequence"),
        paper="Zheng et al. 2025, Group Sequence Policy Optimization, arXiv:2507.18071",
        differences="The standard deviation is the sample one plus 1e-4 (loss.std, loss.std_eps).",
    ),
    "cispo": Preset(
        settings=replace(_PLAIN_CLIP, surrogate="weight", cap=5.0, aggregate="token"),
        paper="MiniMax 2025, MiniMax-M1, arXiv:2506.13585",
        differences=(
            "The cap is on the ratio itself, 5 as in Khatri et al. 2025, arXiv:2510.13786; MiniMax does "
            "not give its value. There is no lower bound, as in the paper. Tokens are averaged over the whole batch, "
            "not over a group."
        ),
    ),
    "sapo": Preset(
        settings=replace(_PLAIN_CLIP, surrogate="gate", gate_up=1.0, gate_down=1.05, aggregate="sequence"),
        paper="Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv:2511.20347",
        differences="The standard deviation is the sample one plus 1e-4 (loss.std, loss.std_eps).",
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
            "the completions and by max_new_tokens, a fixed number. With several updates per batch there is a "
            "clip as in PPO; the paper takes one and has none. Beta is 0.05; the paper tries 0.03 and 0.1."
        ),
    ),
    "gigpo": Preset(
        settings=replace(_PLAIN_CLIP, turn_weight=1.0, turn_gamma=0.95, aggregate="token", beta=0.01),
        paper="Feng et al. 2025, Group-in-Group Policy Optimization, arXiv:2505.10978",
        differences=(
            "A turn's state is the prompt and every text that the episode has read since; the paper compares states of "
            "the environment, so there a state may be met on two paths, or twice in one episode. An episode counts "
            "once in its group's mean; the authors' code counts it once per turn. Tokens are averaged over the batch, "
            "as in that code. The standard deviation is the sample one plus 1e-4 (loss.std, loss.std_eps); the "
            "paper's variant without it is loss.scale none. A completion of one turn gets twice GRPO's advantage."
        ),
    ),
    "reinforce": Preset(
        settings=replace(_PLAIN_CLIP, baseline="batch", scale="none", surrogate="plain", aggregate="token"),
        paper="Williams 1992, Machine Learning 8; for language models Ahmadian et al. 2024, arXiv:2402.14740",
        differences=(
            "The baseline is the mean reward of the same step, not of earlier ones, which makes the gradient smaller "
            "by 1/n with n completions. The sum over tokens is divided by their number."
        ),
    ),
    "reinforce++": Preset(
        settings=replace(_PLAIN_CLIP, baseline="mean", scale="batch_std", aggregate="token", beta=0.001, kl="k2"),
        paper="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
        differences=(
            "This is the paper's variant with group baseline, for several completions per prompt: subtract the group's "
            "mean, divide by the batch's standard deviation, k2 in the loss. Its other variant has one completion "
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
            "whitened over the tokens of a step, as in common implementations. The critic has its own learning "
            "rate and starts from the policy's weights with a value head of zeros; its settings are the section "
            "critic. Prompts come in groups, which PPO does not compare."
        ),
    ),
}


def check_preset(name: str, where: str) -> None:
    if name not in PRESETS:
        near = difflib.get_close_matches(name[:60], PRESETS, n=1)
        hint = f' did you mean "{near[0]}"?' if near else ""
        raise GrpoError(f"{where}: unknown preset {shown(name)};{hint} known: {', '.join(PRESETS)}")


def load_surrogate(name: str) -> str | Callable[..., Any]:
    """The function of `file.py:function` or `module:function`, also from modules in the working folder; a name of
    SURROGATES as it is."""
    place, _, function = name.rpartition(":")
    if not place:
        return name
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the command `grpo` has its own folder in sys.path, not this one
    try:
        file = Path(place).resolve()
        if place.endswith(".py") and str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # it may import files beside it
        module = _module_of(file, file.read_bytes()) if place.endswith(".py") else import_module(place)
        found = getattr(module, function)
    except Exception as error:  # border: user code may raise anything
        raise GrpoError(f"field loss.surrogate: cannot load {name!r}: {error}") from error
    if not callable(found):
        raise GrpoError(f"field loss.surrogate: cannot load {name!r}: it is not a function")
    return found


@cache
def _module_of(file: Path, code: bytes) -> ModuleType:
    """The module in a file with this code."""
    module = ModuleType(f"surrogate_{file.stem}")
    sys.modules[module.__name__] = module
    module.__file__ = str(file)
    exec(compile(code, file, "exec"), vars(module))
    return module


def surrogate_source(name: str) -> bytes:
    """Source file of a user's surrogate; empty for built-in ones and functions without a file."""
    found = load_surrogate(name)
    try:
        return b"" if isinstance(found, str) else Path(inspect.getfile(found)).read_bytes()
    except (TypeError, OSError):  # typed at a prompt, or compiled
        return b""
