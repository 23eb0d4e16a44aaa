"""GRPO's loss with torch only, to read in one go. The page runs it next to the trainer's and shows both."""

from __future__ import annotations

import torch
from torch import Tensor


def grpo_loss_in_fifty_lines(
    logp: Tensor,
    old_logp: Tensor,
    ref_logp: Tensor,
    rewards: Tensor,
    mask: Tensor,
    *,
    clip: float,
    beta: float,
) -> Tensor:
    """Loss of one group.

    logp, old_logp, ref_logp, mask: [G, L], a row per completion, a column per token;
    mask is 1 where there is a token. rewards: [G].
    """
    # 1. Advantage: how much better is each completion than its group?
    #    The standard deviation is over G − 1.
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    if rewards.max() == rewards.min():
        advantages = torch.zeros_like(rewards)  # equal rewards: exactly 0, not rounding noise
    advantages = advantages[:, None]  # the same for every token of a completion

    # 2. Ratio: how much has each token's probability changed since sampling?
    #    Before the first update, the ratio is 1.
    ratio = (logp - old_logp).exp()

    # 3. Surrogate: no gain beyond the clip range.
    #    The minimum keeps the gradient of a ratio that moved the wrong way.
    gain = ratio * advantages
    limited = ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = -torch.minimum(gain, limited)

    # 4. KL penalty: k3, an estimate that is never negative.
    difference = ref_logp - logp
    loss = loss + beta * (difference.exp() - difference - 1)

    # 5. Mean over the tokens of each completion, then over the completions.
    per_completion = (loss * mask).sum(dim=1) / mask.sum(dim=1)
    return per_completion.mean()
