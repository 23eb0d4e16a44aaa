"""The mathematics of GRPO: tensors in, tensors out, nothing imported but torch."""

from grpo.core.advantage import group_advantages
from grpo.core.kl import kl_estimate
from grpo.core.loss import denominator, policy_loss
from grpo.core.signal import zero_signal_chance
from grpo.core.statistics import LossStatistics, reward_statistics
from grpo.core.tokens import TokenTerms, token_loss, token_terms

__all__ = [
    "LossStatistics",
    "TokenTerms",
    "denominator",
    "group_advantages",
    "kl_estimate",
    "policy_loss",
    "reward_statistics",
    "token_loss",
    "token_terms",
    "zero_signal_chance",
]
