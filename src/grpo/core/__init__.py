"""The formulas of GRPO and related algorithms: tensors in, tensors out. Imports only torch."""

from grpo.core.advantage import group_advantages, parts_advantages
from grpo.core.correction import sampler_correction
from grpo.core.explain.signal import zero_signal_chance
from grpo.core.explain.tokens import TokenTerms, token_loss, token_terms
from grpo.core.gae import gae, value_loss, whiten
from grpo.core.kl import kl_estimate
from grpo.core.loss import Limits, denominator, policy_loss
from grpo.core.process import process_advantages
from grpo.core.statistics import LossStatistics, reward_statistics
from grpo.core.turns import turn_advantages

__all__ = [
    "Limits",
    "LossStatistics",
    "TokenTerms",
    "denominator",
    "gae",
    "group_advantages",
    "kl_estimate",
    "parts_advantages",
    "policy_loss",
    "process_advantages",
    "reward_statistics",
    "sampler_correction",
    "token_loss",
    "token_terms",
    "turn_advantages",
    "value_loss",
    "whiten",
    "zero_signal_chance",
]
