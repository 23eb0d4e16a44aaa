"""VESPO (arXiv 2602.10693) as a surrogate of your own, with TRL's constants:

grpo train --algorithm dapo --loss.ratio product --loss.surrogate examples/vespo.py:gamma --optimizer.epochs 2
"""

import torch


def gamma(ratio, logp, advantages, limits):
    """−sg[φ(ρ)]·A·logp with φ(ρ) = ρ^k · exp(λ·(1 − ρ)): 1 at ρ = 1, and small for completions whose probability has
    changed much. ρ is the ratio of the whole completion (`--loss.ratio product`)."""
    ratio = ratio.clamp(1e-8, 5e8)
    k, slope = (torch.where(advantages > 0, up, down) for up, down in ((2.0, 3.0), (3.0, 2.0)))
    return -(ratio**k * torch.exp(slope * (1 - ratio))).detach() * advantages * logp
