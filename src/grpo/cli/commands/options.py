"""Parses a command's arguments into its options and checks their ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from grpo.config import Dataset, Episodes
from grpo.config import parse as flags
from grpo.config.other_names import OTHER_NAMES
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.rollout.protocol import Sampling

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options that `grpo eval` and `grpo sample` share: a model, its task, and how tokens are sampled."""

    model: str
    """A model or the name of a run; also the first argument."""
    task: str = ""
    """The task; empty: that of the run or the embedded model."""
    data: str = ""
    """Rows instead of a task: a file or a Hugging Face dataset."""
    reward: str = ""
    """Reward functions, as in grpo train; task: the task's checker. Empty: the run's; with --task or --data, the
    checker."""
    temperature: float = -1.0
    """Sampling temperature; 0: greedy; -1: as in the run, or 1."""
    max_new_tokens: int = 0
    """Longest completion; 0: as in the run, or 48."""
    top_k: int = 0
    """Sample only from the k most likely tokens; 0: from all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    min_p: float = 0.0
    """Sample from the tokens with at least this share of the likeliest token's probability; 0: from all."""
    stop: tuple[str, ...] = ()
    """Text that ends a completion; repeat the flag for several; none: as in the run."""
    seed: int = -1
    """Seed of the sampling noise; -1: as in the run, or 1."""
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)
    episodes: Episodes = field(default_factory=Episodes)

    def sampling(self, settings: Mapping[str, Any], purpose: str) -> Sampling:
        """How the engine samples a model that was trained with these settings."""
        from grpo.rollout.protocol import Sampling

        return Sampling(
            seed=settings.get("seed", 1) if self.seed < 0 else self.seed,
            temperature=settings.get("temperature", 1.0) if self.temperature < 0 else self.temperature,
            max_new_tokens=self.max_new_tokens or settings.get("max_new_tokens", 48),
            purpose=purpose,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            stop=self.stop or tuple(settings.get("stop", ())),
        )


LEAST: Mapping[str, int] = {
    "count": 1,
    "problems": 1,
    "temperature": 0,
    "seed": 0,
    "max_new_tokens": 0,
    "top_k": 0,
    "group_size": 1,
    "model_problems": 1,
    "samples": 0,
    "show": 1,
}
"""Smallest value of an option of this name, in every command that has it. The default is allowed too."""


def parse(
    options: type[T], arguments: list[str], prog: str, positionals: Sequence[str], *, least: Mapping[str, int] = LEAST
) -> T:
    if "--help" in arguments or "-h" in arguments:
        flags.show_help(options, prog)
    settings = flags.read(options, arguments, prog=prog, positionals=positionals, other_names=OTHER_NAMES)
    parsed = flags.build(options, settings, prog=prog)
    for name, bound in least.items():
        if (value := getattr(parsed, name, bound)) < bound and value != getattr(options, name):
            raise GrpoError(f"field {name} (command line): must be at least {bound}; got {value}")
    if not 0 < (top_p := getattr(parsed, "top_p", 1.0)) <= 1:
        raise GrpoError(f"field top_p (command line): must be above 0 and at most 1; got {top_p}")
    if not 0 <= (min_p := getattr(parsed, "min_p", 0.0)) <= 1:
        raise GrpoError(f"field min_p (command line): must be between 0 and 1; got {min_p}")
    return parsed
