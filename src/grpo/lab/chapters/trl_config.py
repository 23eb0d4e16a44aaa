"""The same objective as a TRL config, so that the two can be compared."""

from __future__ import annotations

from typing import Any

from grpo.config import Config
from grpo.config.presets import PRESETS
from grpo.config.sections import Loss
from grpo.lab.chapters.query import Query, number, whole, word

LOSS_TYPES = {"sequence": "grpo", "token": "dapo", "constant": "dr_grpo"}
SCALES = {"group_std": "group", "batch_std": "batch", "none": "none"}


def trl_equivalent(query: Query) -> dict[str, Any]:
    """A preset with the reader's changes: our command, TRL's config, and settings without counterpart."""
    name = word(query, "algorithm", "grpo", list(PRESETS))
    preset = PRESETS[name].settings
    group_size, updates = whole(query, "g", 8, 2, 64), whole(query, "updates", 1, 1, 8)
    beta = number(query, "beta", preset.beta, 0.0, 2.0)
    flags = {"algorithm": name, "group-size": group_size}
    flags |= {"loss.beta": beta} if beta != preset.beta else {}
    flags |= {"optimizer.epochs": updates} if updates > 1 else {}
    fields, missing = trl_fields(preset, beta)
    fields |= {
        "num_generations": group_size,
        "num_iterations": updates,
        "max_completion_length": Config().max_new_tokens,
    }
    written = ",\n".join(f"    {field}={value!r}" for field, value in fields.items())
    return {
        "command": "grpo train "
        + " ".join(
            f"--{flag} {value:g}" if isinstance(value, float) else f"--{flag} {value}" for flag, value in flags.items()
        ),
        "fields": fields,
        "text": f"from trl import GRPOConfig\n\nGRPOConfig(\n{written},\n)",
        "missing": missing,
    }


def trl_fields(loss: Loss, beta: float) -> tuple[dict[str, Any], list[str]]:
    """(fields of GRPOConfig, settings without counterpart).

    >>> fields, missing = trl_fields(PRESETS["dr_grpo"].settings, 0.0)
    >>> fields["loss_type"], fields["scale_rewards"], missing
    ('dr_grpo', 'none', [])
    """
    fields: dict[str, Any] = {
        "loss_type": {"weight": "cispo", "gate": "sapo"}.get(loss.surrogate, LOSS_TYPES[loss.aggregate]),
        "scale_rewards": SCALES[loss.scale],
        "importance_sampling_level": "sequence" if loss.ratio == "product" else loss.ratio,
        "beta": beta,
    }
    missing = []
    if loss.ratio == "product":
        missing.append("ratio product: TRL takes the geometric mean over a completion's tokens")
    if (loss.std, loss.std_eps) != ("sample", 1e-4):
        missing.append(f"{loss.std} standard deviation plus {loss.std_eps:g}: TRL has the sample one plus 1e-4")
    if loss.surrogate == "clip":
        fields |= {"epsilon": loss.clip_low, "epsilon_high": loss.clip_high}
        fields |= {"delta": loss.cap} if loss.cap else {}
    elif loss.surrogate == "weight":
        fields |= {"epsilon_high": loss.cap}
    elif loss.surrogate == "gate":
        fields |= {"sapo_temperature_pos": loss.gate_up, "sapo_temperature_neg": loss.gate_down}
    else:
        missing.append(f"surrogate {loss.surrogate}: with one update per batch its gradient is the clip's")
    if beta:
        fields["use_bias_correction_kl"] = loss.kl == "k3_ratio"
    if beta and (loss.kl in ("k1", "k2") or loss.kl_in == "reward"):
        missing.append(f"KL {loss.kl} in the {loss.kl_in}: TRL has k3 in the loss")
    if loss.baseline != "mean":
        missing.append(f"baseline {loss.baseline}")
    if loss.turn_weight:
        missing.append(f"turns in the same state compared with each other, with weight {loss.turn_weight:g}")
    if loss.dynamic_sampling > 1:
        missing.append(f"groups without signal drawn again, up to {loss.dynamic_sampling:g} times")
    if loss.overlong:
        missing.append(f"penalty on the last {loss.overlong:.0%} of the length: a reward function there")
    return fields, missing
