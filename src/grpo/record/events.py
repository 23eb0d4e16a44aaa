"""What happens in a run, as calls: a terminal view and loggers listen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grpo.config.parse import one_line
from grpo.types import Group

if TYPE_CHECKING:
    from grpo.config import Config, SftConfig
    from grpo.record.store import Run


class View:
    """Told everything, shows nothing; the terminal's views build on it."""

    def started(self, run: Run, config: Config | SftConfig, first_step: int) -> None: ...

    def evaluating(self, step: int, problems: int) -> None: ...

    def evaluated(self, step: int, row: Mapping[str, float]) -> None: ...

    def stepped(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None: ...

    def finished(self, run: Run) -> None: ...

    def warned(self, text: str) -> None:
        """What must not go unseen; said even where nothing else is."""
        print(f"grpo: {one_line(text)}", file=sys.stderr)
