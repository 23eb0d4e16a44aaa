"""Whether the Hugging Face hub can be reached from here."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

SET_OFFLINE = constants.HF_HUB_OFFLINE
"""Whether the environment says so."""


def skip_unreachable_hub() -> None:
    """Make huggingface_hub use only downloaded files while the hub's host has no address: otherwise it tries for 25 s,
    for each file."""
    constants.HF_HUB_OFFLINE = SET_OFFLINE or not (getproxies() or _has_address(urlsplit(constants.ENDPOINT).hostname))


def _has_address(host: str | None) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:  # border: the network
        return False
