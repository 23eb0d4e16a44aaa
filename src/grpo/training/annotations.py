"""Per-token values that an update needs from forward passes without gradient.

Log-probabilities under the reference, a critic's values and log-probabilities before the first update need no rewards.
`Annotations.start` launches these forwards before rewards are awaited, so that a GPU computes them while completions
are scored; `finish` puts the results onto the scored groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch

from grpo.config import Config
from grpo.distributed.world import ALONE, World
from grpo.model.critic import Critic
from grpo.model.lora import switched_off
from grpo.model.oom_retry import within_memory
from grpo.model.packing import longest_row, pack
from grpo.model.policy import Policy, logprobs
from grpo.training.dynamic_sampling import replaces_groups
from grpo.training.gradient import contributing
from grpo.types import Batch, Group, changed

Read = Callable[[Batch], torch.Tensor]
"""A forward pass: one value per token of a micro-batch, [N, L]."""


class TokenForward:
    """A forward pass over all completions of some groups; results stay on the device until `add_to` copies them."""

    @torch.no_grad()
    def __init__(self, groups: Sequence[Group], read: Read, *, policy: Policy, token_budget: int):
        def run(tokens_at_once: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            batches = pack(groups, tokens_at_once, policy.device, padded=policy.padded)
            return [(read(batch).float(), batch.mask_NL.sum(dim=1)) for batch in batches]

        self._results = within_memory(policy, token_budget, run, longest=longest_row(groups))

    def add_to(self, groups: Sequence[Group], *fields: str) -> list[Group]:
        """The same completions, in the same order, with their values in these fields."""
        host = ((grid_NL.cpu().numpy(), length_N.tolist()) for grid_NL, length_N in self._results)
        values = (row[:length] for grid, lengths in host for row, length in zip(grid, lengths, strict=True))
        return [
            replace(
                group,
                completions=tuple(changed(done, **dict.fromkeys(fields, next(values))) for done in group.completions),
            )
            for group in groups
        ]


def annotate(groups: Sequence[Group], read: Read, *fields: str, policy: Policy, token_budget: int) -> list[Group]:
    """The groups with the values of one forward pass in these fields of their completions."""
    return TokenForward(groups, read, policy=policy, token_budget=token_budget).add_to(groups, *fields)


@dataclass(eq=False)
class Annotations:
    """The forward passes of one step that need no rewards."""

    policy: Policy
    reference: Policy | None
    config: Config
    critic: Critic | None = None
    launched: dict[str, TokenForward] | None = None
    """By field of `Completion`. None: dynamic sampling may replace groups, so `finish` runs the forwards."""

    @classmethod
    def start(
        cls,
        groups: Sequence[Group],
        policy: Policy,
        reference: Policy | None,
        config: Config,
        critic: Critic | None = None,
    ) -> Self:
        annotations = cls(policy, reference, config, critic)
        if not replaces_groups(config):
            annotations.launched = annotations._launch(groups)
        return annotations

    def finish(self, groups: Sequence[Group]) -> list[Group]:
        """+ reference log-probs where there is a KL term, values where there is a critic, and old log-probs where every
        completion has a gradient."""
        forwards = self._launch(groups) if self.launched is None else self.launched
        for field, forward in forwards.items():
            groups = forward.add_to(groups, field)
        return list(groups)

    def _launch(self, groups: Sequence[Group]) -> dict[str, TokenForward]:
        config, forwards = self.config, {}

        def launch(read: Read) -> TokenForward:
            return TokenForward(groups, read, policy=self.policy, token_budget=config.system.token_budget)

        if self.reference is not None:
            # With LoRA the reference is the policy without its adapter.
            with switched_off(self.policy.model) if self.reference is self.policy else nullcontext():
                forwards["ref_logprobs"] = launch(_logp(self.reference, config))
        if self.critic is not None:
            forwards["values"] = launch(self.critic.values)
        if has_several_updates(config) and (config.loss.beta or config.loss.entropy or self.critic):
            forwards["old_logprobs"] = launch(_logp(self.policy, config))
        return forwards


def add_old_logprobs(groups: Sequence[Group], policy: Policy, config: Config, world: World = ALONE) -> list[Group]:
    """+ log-probs before the first of several updates, for completions with a gradient that lack them."""
    if not has_several_updates(config):
        return list(groups)
    needed = contributing([group for group in groups if group.completions[0].old_logprobs is None], config)
    mine = annotate(
        world.mine(needed),
        _logp(policy, config),
        "old_logprobs",
        policy=policy,
        token_budget=config.system.token_budget,
    )
    found = world.gather(mine)
    before, after = ([done for group in part for done in group.completions] for part in (needed, found))
    replaced = dict(zip(before, after, strict=True))
    return [
        replace(group, completions=tuple(replaced.get(done, done) for done in group.completions)) for group in groups
    ]


def has_several_updates(config: Config) -> bool:
    """Whether a batch gets several updates. With one, the old policy is the policy: its detached log-probs serve."""
    return config.optimizer.epochs * config.optimizer.minibatches > 1


def _logp(policy: Policy, config: Config) -> Read:
    return lambda batch: logprobs(policy, batch, config.temperature)[0]
