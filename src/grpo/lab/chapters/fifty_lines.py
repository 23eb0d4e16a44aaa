"""GRPO's loss from nothing but torch, to read in one go. The page runs it beside the trainer's and shows both."""

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
    # 1. How much better than its siblings did each completion do?
    #    The deviation is the sample one: over G − 1.
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    if rewards.max() == rewards.min():
        advantages = torch.zeros_like(rewards)  # nothing to compare: no lesson, not even rounding noise
    advantages = advantages[:, None]  # every token of a completion gets the same

    # 2. How far has the policy moved on each token since it was sampled?
    #    Before the first update, the ratio is 1.
    ratio = (logp - old_logp).exp()

    # 3. What is gained by moving further, but not beyond the clip.
    #    The smaller counts, so that a ratio which went the wrong way is still pulled back.
    gain = ratio * advantages
    limited = ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = -torch.minimum(gain, limited)

    # 4. What it costs to leave the reference: k3, an estimate that is never negative.
    difference = ref_logp - logp
    loss = loss + beta * (difference.exp() - difference - 1)

    # 5. A mean over the tokens of each completion, then over the completions.
    per_completion = (loss * mask).sum(dim=1) / mask.sum(dim=1)
    return per_completion.mean()
