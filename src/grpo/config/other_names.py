"""Names that are not settings here and have an answer: TRL's, peft's, launchers', and former names of ours."""

from typing import Any, Self

from grpo.config.launcher_names import LAUNCHER_NAMES
from grpo.config.parse import refuse_unknown, squeezed
from grpo.config.trl_names import SAMPLING, TRL_NAMES
from grpo.config.unknown import OtherName

RENAMED = {
    "loss.refill": "loss.dynamic_sampling",
    "system.recompute": "system.gradient_checkpointing",
    "system.rows_at_once": "system.max_concurrent_completions",
}
"""Fields by a former name. Flags and files are refused with the new name; records of older runs are translated."""

OTHER_NAMES = {
    **{squeezed(name): other for name, other in (LAUNCHER_NAMES | TRL_NAMES).items()},
    **{squeezed(old.rpartition(".")[2]): OtherName(new) for old, new in RENAMED.items()},
}
"""By name in lower case and without separators."""
SFT_NAMES = {name: other for name, other in OTHER_NAMES.items() if other.why not in SAMPLING}
"""The same for supervised fine-tuning, which does not sample."""


class Named:
    """Dataclass whose constructor answers an unknown argument in one line, as the command line does."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        refuse_unknown(cls, given, OTHER_NAMES)
        return super().__new__(cls)
