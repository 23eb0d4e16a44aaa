"""The mathematics of GRPO and its relatives: tensors in, tensors out, nothing imported but torch."""

from grpo.core.advantage import group_advantages, parts_advantages
from grpo.core.correction import sampler_correction
from grpo.core.gae import gae, value_loss
from grpo.core.kl import kl_estimate
from grpo.core.loss import Limits, denominator, policy_loss
from grpo.core.process import process_advantages
from grpo.core.signal import zero_signal_chance
from grpo.core.statistics import LossStatistics, reward_statistics
from grpo.core.tokens import TokenTerms, token_loss, token_terms

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
    "value_loss",
    "zero_signal_chance",
]
