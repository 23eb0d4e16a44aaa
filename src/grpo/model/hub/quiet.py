"""transformers without progress bars and reports."""

from __future__ import annotations

import logging as stdlib_logging
from collections.abc import Iterator
from contextlib import contextmanager

import transformers


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """While active, transformers prints nothing; callers report failures in one line."""
    logging = transformers.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hub = stdlib_logging.getLogger("huggingface_hub")
    hub_level = hub.level
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if shown:
            logging.enable_progress_bar()
