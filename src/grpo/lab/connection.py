"""Connections of the lab's web server, with time limits: neither a silent nor a slow client keeps one."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from grpo.errors import GrpoError

SECONDS = 20.0
"""Time limit for a whole request, from the connection or the previous response on, and for reading sent bytes."""


class Connection(H11Protocol):
    """Closes a connection whose request is late. (uvicorn itself limits only the pause between two requests.)"""

    def __init__(self, *arguments: Any, seconds: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seconds = seconds
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        """Runs the clock while the client has to begin or complete a request."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._stop()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def web_server(app: ASGIApp, *, seconds: float = SECONDS) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(Connection, seconds=seconds),  # type: ignore[arg-type]
            ws="none",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )


def listen(address: str, port: int, *, seconds: float = SECONDS) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: closes a connection whose client stops reading
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise GrpoError(
            f"field port: cannot listen at {address}:{port}: {error.strerror}; choose another port"
        ) from error
    listener.listen(128)
    return listener
