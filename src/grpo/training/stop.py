"""Ctrl-C and SIGTERM: the first asks the run to stop after its step, the second forces it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While the context lasts, `requested` says whether somebody asked the run to stop."""

    def __init__(self, told: Callable[[str], None]):
        self.told = told
        self.requested = False

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python delivers signals to the main thread only; elsewhere the program around us keeps its own ways.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self.told("stopping after this step, with a checkpoint; once more stops at once")
