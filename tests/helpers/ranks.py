"""Ranks of a test: processes of this machine that meet through gloo."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from grpo.config import Scale
from grpo.distributed.world import World, join
from helpers import forks

SECONDS = 300.0
"""After which ranks that still run have failed the test."""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def listening_at(process: int) -> set[str]:
    """The addresses at which a process accepts connections."""
    connections = psutil.Process(process).net_connections("tcp")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def ranks(size: int, work: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """What `work(world, *arguments)` returns on each of `size` ranks. A rank that raises fails the test.

    `work` is a function of a test module; arguments and results are pickled. `timeout`: scale.timeout.
    """
    found = outcomes(size, work, *arguments, timeout=timeout)
    failed = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(found) if not ok]
    assert not failed, "\n".join(failed)
    return [value for _, value in found]


def outcomes(size: int, work: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[tuple[bool, Any]]:
    """(True, what `work` returned) or (False, its traceback) of each rank; ("gone", exit code) of one that died."""
    forks.ensure_running()
    port, started = free_port(), []
    for rank in range(size):
        receiver, sender = forks.context.Pipe(duplex=False)
        environment = {
            **{"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"},
        }
        process = forks.context.Process(target=_run, args=(sender, environment, timeout, work, arguments), daemon=False)
        process.start()
        sender.close()
        started.append((process, receiver))
    found, deadline = [], time.monotonic() + SECONDS
    for process, receiver in started:
        try:
            ended = receiver.poll(max(0.0, deadline - time.monotonic()))
            found.append(receiver.recv() if ended else (False, f"still running after {SECONDS:.0f} s"))
        except EOFError:
            process.join(10)
            found.append((False, f"died with exit code {process.exitcode}"))
    for process, _ in started:
        process.join(max(0.0, deadline - time.monotonic()) + 1)
        process.kill()
    return found


def _run(
    sender: Any, environment: dict[str, Any], timeout: float, work: Callable[..., Any], arguments: Sequence[Any]
) -> None:
    import torch

    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)
    try:
        world: World = join(Scale(timeout=timeout), "cpu")
        sender.send((True, work(world, *arguments)))
    except Exception:  # noqa: BLE001  border: the function under test may raise anything
        sender.send((False, traceback.format_exc()))
        os._exit(1)  # as a process that failed: its connections close
