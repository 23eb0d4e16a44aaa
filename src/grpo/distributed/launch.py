"""Starts the ranks of a command: `--gpus N` processes on this host, and the same on each of `--nodes` hosts.

torch's elastic agent does the work (agent.py). Hosts meet at `--join`, the first host's address: it holds the store in
which they agree on ranks, and rank 0. Under torchrun or Slurm this process is itself a rank, and nothing is started.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.distributed.slurm import adopt_slurm
from grpo.distributed.worker import REFUSED, Launcher
from grpo.errors import GrpoError, LostRankError

if TYPE_CHECKING:
    from grpo.config import Scale

LOOPBACK = "127.0.0.1"
ANSWER_SECONDS, STORE_SECONDS = 5.0, 60.0
"""Time limits of the store: until it answers at first, and of one operation."""
KEEP_ALIVE_SECONDS, KEEP_ALIVE_ATTEMPTS = 2, 3
"""A host that is silent for their product has left."""


def launched(scale: Scale, device: str, arguments: Sequence[str]) -> int | None:
    """Run `grpo ARGUMENTS` on all ranks and return its exit code; None where this process runs the command itself."""
    adopt_slurm(scale)
    if scale.gpus * scale.nodes == 1 or is_rank():
        return None
    if scale.nodes > 1 and not scale.join:
        raise GrpoError(
            "field scale.join: missing; write --join HOST:PORT, the same on each host: the first host's address"
        )
    _quiet_torch()
    _check_gpus(scale, device)
    debug = [word for word in sys.argv[1:] if word == "--debug"]
    return launch(scale, python_arguments([*arguments, *debug]))


def python_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments with which Python runs `grpo ARGUMENTS` as this process does: without -P, a file grpo.py in the current
    folder would run instead."""
    searches_folder = sys.path[0] in ("", os.getcwd())
    return [*([] if searches_folder else ["-P"]), "-m", "grpo", *arguments]


def is_rank() -> bool:
    """Whether this process is one of several ranks."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def _check_gpus(scale: Scale, device: str) -> None:
    import torch

    found = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else scale.gpus
    if found < scale.gpus:
        raise GrpoError(
            f"field scale.gpus: this host has {found} GPU{'s' if found > 1 else ''}, not {scale.gpus}; lower it, or "
            "let all ranks share one (--device cuda:0)"
        )


def _quiet_torch() -> None:
    """Before torch is imported: its warnings about lost connections would hide the one line that matters."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def launch(scale: Scale, command: Sequence[str]) -> int:
    """Run Python with the arguments `command` on all ranks, and return its exit code."""
    _quiet_torch()
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted ranks read addresses of the dead ones
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    from grpo.distributed.agent import Agent, Refused, report

    logging.disable(logging.CRITICAL)  # of torch's agent
    if scale.nodes > 1:
        report(f"waiting for {scale.nodes} hosts at {scale.join}")
    with tempfile.TemporaryDirectory(prefix="grpo-ranks-") as folder:
        launcher = Launcher(os.getpid(), Path(folder))
        for restarts in range(scale.restarts, -1, -1):
            place = _meeting_place(scale)
            handler = _handler(scale, place)
            try:
                spec = _spec(scale, command, handler, place, restarts)
                code = Agent(spec, launcher, scale, is_first=place.is_first).exit_code()
                if code == REFUSED and not place.is_first:
                    report("the run has ended with an error; the terminal of the first host shows it")
                return code
            except RendezvousConnectionError:
                if restarts == 0 or place.is_first:
                    break
                report(f"lost the first host, {scale.join}; waiting {scale.join_timeout:g} s for it to return")
            except Refused:
                handler.shutdown()
                return REFUSED
            except BaseException:
                handler.shutdown()  # ends the other hosts
                raise
    raise LostRankError(f"field scale.join: lost the first host, {scale.join}; resume the run with --resume")


@dataclass(frozen=True)
class Place:
    """Where the hosts meet."""

    store: Any
    is_first: bool
    """Whether this host holds the store, and rank 0."""
    host: str
    address: str
    """Of this host, as the others see it."""


def _handler(scale: Scale, place: Place) -> Any:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    return DynamicRendezvousHandler.from_backend(
        run_id="grpo",
        store=place.store,
        backend=C10dRendezvousBackend(place.store, "grpo"),
        min_nodes=scale.nodes,
        max_nodes=scale.nodes,
        # Ranks are given in the order of these names. The address that ranks connect to is WorkerSpec's.
        local_addr=f"{0 if place.is_first else 1} {place.address}",
        timeout=RendezvousTimeout(join=timedelta(seconds=scale.join_timeout)),
        keep_alive_interval=KEEP_ALIVE_SECONDS,
        keep_alive_max_attempt=KEEP_ALIVE_ATTEMPTS,
    )


def _spec(scale: Scale, command: Sequence[str], handler: Any, place: Place, restarts: int) -> Any:
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    return WorkerSpec(
        role="rank",
        local_world_size=scale.gpus,
        entrypoint=sys.executable,
        args=tuple(command),
        rdzv_handler=handler,
        max_restarts=restarts,
        master_addr=place.host,
    )


def _meeting_place(scale: Scale) -> Place:
    """Open the store, or connect to the first host's."""
    if scale.nodes == 1:
        _choose_interface(LOOPBACK)
        listener = socket.create_server((LOOPBACK, 0))  # torch's own would accept connections from other hosts
        store = _store(*listener.getsockname(), is_server=True, master_listen_fd=listener.detach())
        return Place(store, True, LOOPBACK, LOOPBACK)
    host, port = scale.join.rpartition(":")[0].strip("[]"), int(scale.join.rpartition(":")[2])
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:  # border: the network
        raise GrpoError(f"field scale.join: host {host} is not known here: {error.strerror}; check the name") from None
    address = _own_address_towards(str(found))
    _choose_interface(address)
    is_first = str(found) in _own_addresses() or ipaddress.ip_address(found).is_loopback
    if is_first:
        with suppress(RuntimeError):  # border: a program has the port, perhaps another launcher on this host
            return Place(_store(host, port, is_server=True), True, host, address)
    _wait_for_listener(host, port, scale)
    store = _connect(host, port)
    if store is None:
        instead = "another program has that port; choose another one"
        raise GrpoError(f"field scale.join: no launcher of grpo answers at {scale.join}; {instead}")
    return Place(store, False, host, address)


def _store(host: str, port: int, *, is_server: bool, **options: Any) -> Any:
    from torch.distributed import TCPStore

    limit = timedelta(seconds=STORE_SECONDS)
    return TCPStore(host, port, is_master=is_server, wait_for_workers=False, timeout=limit, **options)


def _connect(host: str, port: int) -> Any:
    """The first host's store; None where another program listens, which may never answer."""
    found: list[Any] = []

    def connect() -> None:
        with suppress(RuntimeError):  # border: another program
            found.append(_store(host, port, is_server=False))

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(ANSWER_SECONDS)
    return found[0] if found else None


def _wait_for_listener(host: str, port: int, scale: Scale) -> None:
    """In Python, so that Ctrl-C ends it; the store's own wait cannot be interrupted."""
    deadline = time.monotonic() + scale.join_timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:  # border: the network
            if time.monotonic() > deadline:
                why = error.strerror or "timed out"
                raise GrpoError(
                    f"field scale.join: nobody listens at {scale.join} after {scale.join_timeout:g} s ({why}); start "
                    "the same command on that host, or check the address"
                ) from None
        time.sleep(0.5)


def _own_addresses() -> dict[str, str]:
    """Interfaces by address."""
    import psutil

    found = psutil.net_if_addrs()
    return {each.address.partition("%")[0]: name for name, addresses in found.items() for each in addresses}


def _own_address_towards(address: str) -> str:
    """This host's address on the way to another. A name that means the host itself often is a loopback address, which
    other hosts cannot use; then the address on the way to the internet. Nothing is sent."""
    if ipaddress.ip_address(address).is_loopback and address != LOOPBACK:
        address = "8.8.8.8"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:  # border: no network
            return LOOPBACK
        return str(probe.getsockname()[0])


def _choose_interface(address: str) -> None:
    """Gloo would use the address of the host's name, which may be wrong or unreachable."""
    if name := _own_addresses().get(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
