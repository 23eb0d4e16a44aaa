"""The mathematics of GRPO: tensors in, tensors out, nothing imported but torch."""

from grpo.core.advantage import group_advantages
from grpo.core.kl import kl_estimate
from grpo.core.loss import denominator, policy_loss
from grpo.core.statistics import LossStatistics, reward_statistics

__all__ = [
    "LossStatistics",
    "denominator",
    "group_advantages",
    "kl_estimate",
    "policy_loss",
    "reward_statistics",
]
