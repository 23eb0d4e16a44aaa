"""Ctrl-C, SIGTERM and SIGHUP: the first stops the run after its step, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

from grpo.record.events import Callback

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """`requested` says whether a signal, while the context lasts, or a callback asked the run to stop."""

    def __init__(self, callbacks: Callback):
        self.callbacks = callbacks
        self.signalled = False
        self.on_some_rank = False
        """Whether a rank of the run, perhaps another one, was asked to stop."""

    @property
    def requested(self) -> bool:
        return self.signalled or self.on_some_rank or self.callbacks.stop_requested

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {}
        # Python delivers signals to the main thread only. In another thread, the program keeps its own handlers.
        if threading.current_thread() is threading.main_thread():
            # Under nohup SIGHUP is ignored, and stays so.
            numbers = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _drop_closed_terminal()
        # A terminal that closes sends SIGHUP twice, from its shell and from the kernel: a second one is not impatience.
        if self.signalled and number == signal.SIGHUP:
            return
        if self.signalled:
            raise KeyboardInterrupt
        self.signalled = True
        self.callbacks.on_warning("stopping after this step with a checkpoint; a second signal stops at once")


def _drop_closed_terminal() -> None:
    """Send stdout and stderr to /dev/null where their terminal has closed: printing there would raise an error."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
