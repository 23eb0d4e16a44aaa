"""The amount of work of one step, and the models that the algorithm needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo.config import Config, Critic
from grpo.config.schema import Loss


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Models in addition to the policy, and whether the entropy is trained, from the algorithm's settings.

    >>> from grpo.config.presets import PRESETS
    >>> needs(PRESETS["dr_grpo"].settings)
    Needs(reference=False, critic=False, entropy=False)
    """

    reference: bool
    critic: bool
    entropy: bool = False
    """Whether the loss has an entropy bonus: the entropy then needs a gradient."""


def needs(loss: Loss, critic: Critic | None = None) -> Needs:
    """A critic that shares the policy's network adds no model; `critic` None: a separate one."""
    separate = critic is None or critic.model == "separate"
    return Needs(reference=loss.beta > 0, critic=loss.baseline == "value" and separate, entropy=loss.entropy > 0)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One step in numbers; every prompt and completion has the maximal length.

    >>> work = Work(prompts=16, group_size=8, prompt_tokens=8, new_tokens=32)
    >>> work.micro_batch()
    MicroBatch(prompts=16, completions=128, prompt_tokens=8, new_tokens=32, count=1)
    >>> Work(prompts=16, group_size=8, prompt_tokens=8, new_tokens=32, token_budget=1000).micro_batch().count
    6
    """

    prompts: int
    group_size: int
    prompt_tokens: int
    new_tokens: int
    token_budget: int = 16384
    epochs: int = 1
    minibatches: int = 1
    heldout: int = 0
    """Problems of an evaluation, sampled at once."""
    observed_tokens: int | None = None
    """Tokens that an episode reads, which are among `new_tokens`; None: completions have one turn."""
    concurrent: int = 0
    """Most completions that are decoded at once; 0: as many as memory holds."""

    @classmethod
    def of(cls, config: Config, prompt_tokens: int, token_budget: int = 0, *, episodes: bool = False) -> Work:
        """`episodes`: completions may have several turns; how much they will read is not known."""
        return cls(
            prompts=config.prompts_per_step,
            group_size=config.group_size,
            prompt_tokens=prompt_tokens,
            new_tokens=config.max_new_tokens,
            token_budget=token_budget or config.system.token_budget or 16384,
            epochs=config.optimizer.epochs,
            minibatches=config.optimizer.minibatches,
            heldout=config.evaluation.problems,
            observed_tokens=0 if episodes else None,
            concurrent=config.system.max_concurrent_completions,
        )

    @property
    def completions(self) -> int:
        return self.prompts * self.group_size

    @property
    def sampled_tokens(self) -> int:
        """Of a completion."""
        return self.new_tokens - (self.observed_tokens or 0)

    @property
    def at_once(self) -> list[tuple[int, int]]:
        """(prompts, completions) that are decoded at once where memory holds them: in a step, and in an evaluation.

        >>> work = Work(prompts=16, group_size=8, prompt_tokens=8, new_tokens=32, heldout=500)
        >>> work.at_once, replace(work, concurrent=100).at_once
        ([(16, 128), (500, 500)], [(16, 100), (100, 100)])
        """
        sampled = (self.prompts, self.completions), (self.heldout, self.heldout)
        limited = [(prompts, min(rows, self.concurrent or rows)) for prompts, rows in sampled]
        return [(min(prompts, rows), rows) for prompts, rows in limited]

    @property
    def rows_of_a_step(self) -> int:
        """Completions of a step that are decoded at once."""
        return self.at_once[0][1]

    @property
    def rows(self) -> int:
        """Most completions decoded at once, of a step or of an evaluation."""
        return max(rows for _, rows in self.at_once)

    def share(self, ranks: int) -> Work:
        """The work of the busiest rank, which samples whole groups.

        >>> Work(prompts=16, group_size=8, prompt_tokens=8, new_tokens=32).share(3).prompts
        6
        """
        return replace(self, prompts=-(-self.prompts // ranks), heldout=-(-self.heldout // ranks))

    def micro_batch(self) -> MicroBatch:
        """The largest micro-batch of full-length completions, as `model.packing.pack` makes them, and their number."""
        groups = -(-self.prompts // self.minibatches)
        group_tokens = self.prompt_tokens + self.group_size * self.new_tokens
        if group_tokens > self.token_budget:
            # A group that does not fit is split; each piece repeats the prompt.
            piece = max(1, (self.token_budget - self.prompt_tokens) // self.new_tokens)
            pieces = groups * -(-self.group_size // piece)
            return MicroBatch(1, min(piece, self.group_size), self.prompt_tokens, self.new_tokens, pieces)
        together = min(groups, self.token_budget // group_tokens)
        completions = together * self.group_size
        return MicroBatch(together, completions, self.prompt_tokens, self.new_tokens, -(-groups // together))

    def fullest_micro_batch(self) -> MicroBatch:
        """The largest micro-batch of completions of any length. Those that end early fill the token budget, which
        full-length ones may not: it is counted as one completion that does.

        >>> long = Work(prompts=8, group_size=8, prompt_tokens=256, new_tokens=8192)
        >>> long.micro_batch().tokens, long.fullest_micro_batch().tokens
        (8448, 16384)
        """
        even = self.micro_batch()
        if even.count == 1 or even.tokens >= self.token_budget:
            return even
        return MicroBatch(1, 1, self.prompt_tokens, self.token_budget - self.prompt_tokens, even.count)


@dataclass(frozen=True)
class MicroBatch:
    prompts: int
    completions: int
    prompt_tokens: int
    new_tokens: int
    count: int

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt_tokens + self.trained_tokens

    @property
    def trained_tokens(self) -> int:
        return self.completions * self.new_tokens
