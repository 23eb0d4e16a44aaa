"""Silent, slow and deaf clients, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from grpo.lab.connection import listen, web_server

LIMIT = 0.3
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


class App:
    """Answers `/` at once, `/late` after three limits, and streams `/endless` until the client is gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        length = [] if scope["path"] == "/endless" else [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        if scope["path"] == "/late":
            await asyncio.sleep(3 * LIMIT)
        if scope["path"] == "/endless":
            await self.stream(receive, send)
        await send({"type": "http.response.body", "body": b"done"})

    async def stream(self, receive: Any, send: Any) -> None:
        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        waiting = asyncio.create_task(until_gone())
        while not waiting.done():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        self.gone.set()


@pytest.fixture(scope="module")
def app() -> App:
    return App()


@pytest.fixture(scope="module")
def port(app: App) -> Iterator[int]:
    listener = listen("127.0.0.1", 0, seconds=LIMIT)
    server = web_server(app, seconds=LIMIT)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def is_closed(client: socket.socket) -> bool:
    """Waits for the server to close the connection, and reads nothing else."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def answered(client: socket.socket) -> None:
    found = b""
    while not found.endswith(b"\r\n\r\ndone"):
        part = client.recv(1000)
        assert part, f"closed after {found!r}"
        found += part


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET[:-2], POST, POST + b"123"], ids=str)
def test_a_request_that_is_not_whole_in_time_closes_the_connection(client: socket.socket, sent: bytes) -> None:
    client.sendall(sent)
    assert is_closed(client)


def test_single_bytes_do_not_move_the_limit(client: socket.socket) -> None:
    client.settimeout(LIMIT / 10)
    for sent in range(1000):
        try:
            client.sendall(b"G" if sent else b"GET / HTTP/1.1\r\nX: ")
            assert client.recv(10) == b""
            break
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            break
    else:
        pytest.fail("still open after 1,000 bytes")


def test_half_of_a_second_request_closes_the_connection(client: socket.socket) -> None:
    client.sendall(GET)
    answered(client)
    client.sendall(GET[:9])
    assert is_closed(client)


def test_half_of_a_pipelined_request_closes_the_connection(client: socket.socket) -> None:
    client.sendall(GET + GET[:9])
    answered(client)
    assert is_closed(client)


def test_a_late_answer_is_delivered(client: socket.socket) -> None:
    for request in (GET, POST + b"12345", GET.replace(b"/ ", b"/late "), GET):
        client.sendall(request)
        answered(client)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux can close it")
def test_a_client_that_does_not_read_is_dropped(client: socket.socket, app: App) -> None:
    client.sendall(GET.replace(b"/ ", b"/endless "))
    assert app.gone.wait(60)
