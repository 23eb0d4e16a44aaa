"""GRPO's loss from nothing but torch, to read in one go. The page runs it beside the engine's and shows both results."""

import torch


def grpo_loss_in_fifty_lines(logp, old_logp, ref_logp, rewards, mask, *, clip=0.2, beta=0.04):
    """Loss of one group.

    logp, old_logp, ref_logp, mask: [G, L], a row per completion, a column per token; mask is 1 where there is a token.
    rewards: [G].
    """
    # 1. How much better than its siblings did each completion do?
    centred = rewards - rewards.mean()
    if rewards.max() == rewards.min():
        advantages = torch.zeros_like(rewards)  # nothing to compare: no lesson, not even rounding noise
    else:
        advantages = centred / (rewards.std() + 1e-4)  # the sample deviation: divided by G − 1
    advantages = advantages[:, None]  # every token of a completion gets the same

    # 2. How far has the policy moved on each token since it was sampled?
    ratio = (logp - old_logp).exp()  # 1 on the first update, and only then

    # 3. What is gained, but not beyond the clip.
    gain = ratio * advantages
    limited = ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = -torch.minimum(gain, limited)  # the smaller: a clip that could only pay too much does not count

    # 4. What it costs to leave the reference: k3, never negative.
    difference = ref_logp - logp
    loss = loss + beta * (difference.exp() - difference - 1)

    # 5. A mean over the tokens of each completion, then over the completions.
    per_completion = (loss * mask).sum(dim=1) / mask.sum(dim=1)
    return per_completion.mean()
