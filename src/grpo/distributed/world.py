"""The ranks of a run: one process for each GPU, which compute one step together.

Ranks meet only at stations, between forward and backward passes: groups gathered, gradient reduced, weights published.
Every station begins with `meet`, a small message of each rank to all. A rank that has failed takes part in one more
meeting and sends its error there, so all ranks end with the same error and none waits for another.

Alone (size 1) there is no process group, and every method is the identity.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from grpo.distributed.host import affinity, usable_cores
from grpo.distributed.slurm import adopt_slurm
from grpo.errors import GrpoError, LostRankError, RankError, one_line
from grpo.kill_points import point

if TYPE_CHECKING:
    import torch

    from grpo.config import Scale

T = TypeVar("T")

INLINE = 1024
"""Bytes of a message that travel with its length; the rest follows in a second exchange."""
HEADER = 9
"""Bytes before a message: how its rank has failed, or 0, and the message's length."""
REFUSED, CRASHED = 1, 2
"""How a rank has failed: with an error that the user must fix, or with any other, after which a restart may help."""
LINGER = 2.0
"""Seconds that rank 0, which keeps the table of arrivals, stays after a timeout so that others can read it."""


@dataclass(eq=False)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the ranks of this host."""
    local_size: int = 1
    timeout: float = 1800.0
    """Seconds after which a rank that does not arrive at a station is given up."""
    tensors: Any = None
    """The process group of gradients and weights: NCCL between GPUs, gloo between CPUs or ranks that share a GPU."""
    hosts: Sequence[str] = field(default_factory=lambda: [socket.gethostname()])
    """By rank."""
    cores: int = field(default_factory=usable_cores)
    """For this rank alone."""
    waited: float = 0.0
    """Seconds spent at stations, waiting for other ranks and for the network."""
    stations: int = 0
    _inside: bool = False
    """Whether tensors are being exchanged: an error now cannot be told to the others, whose connections it closes."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which decides and records."""
        return self.rank == 0

    def mine(self, items: Sequence[T]) -> list[T]:
        """This rank's part of the items.

        >>> World(rank=1, size=3).mine("abcdefg")
        ['b', 'e']
        """
        return list(items[self.rank :: self.size])

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all ranks, in the order that `mine` took them from."""
        if self.size == 1:
            return list(items)
        parts = self.meet(list(items))
        point("groups.gathered")
        return [parts[i % self.size][i // self.size] for i in range(sum(map(len, parts)))]

    def share(self, items: Sequence[T], sizes: Sequence[int]) -> list[T]:
        """This rank's part, balanced by size: the largest first, to the rank with the least; in the order of `items`.

        >>> World(rank=0, size=2).share("abcd", [5, 1, 3, 2]), World(rank=1, size=2).share("abcd", [5, 1, 3, 2])
        (['a', 'b'], ['c', 'd'])
        """
        if self.size == 1:
            return list(items)
        loads, mine = [0] * self.size, []
        for place in sorted(range(len(items)), key=lambda place: -sizes[place]):
            rank = loads.index(min(loads))
            loads[rank] += sizes[place]
            if rank == self.rank:
                mine.append(place)
        return [items[place] for place in sorted(mine)]

    def meet(self, value: T) -> list[T]:
        """A value of every rank, by rank. Raises the error of a rank that has failed."""
        if self.size == 1:
            return [value]
        received = self._exchange(pickle.dumps(value, protocol=5))
        return [value if rank == self.rank else pickle.loads(text) for rank, text in enumerate(received)]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return any(self.meet(flag))

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank."""
        return cast(T, self.meet(make() if self.first else None)[0])

    @contextmanager
    def exchanging(self, value: T | None = None) -> Iterator[list[T]]:
        """A station at which tensors are exchanged, through `tensors`; yields a value of every rank, as `meet`."""
        from torch import OutOfMemoryError

        met = self.meet(value)
        start = time.perf_counter()
        self._inside = True
        try:
            yield cast("list[T]", met)
        except OutOfMemoryError:  # a RuntimeError too, but of this rank
            raise
        except RuntimeError as error:  # border: the network, and processes of other hosts
            raise self._lost(error) from error
        self._inside = False
        self.waited += time.perf_counter() - start

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the values of rank 0 into the tensors of all ranks."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with self.exchanging():
            for tensor in tensors:
                dist.broadcast(tensor, group=self.tensors, group_src=0)

    def fail(self, error: BaseException) -> None:
        """Tells the other ranks at their next station that this one ended with this error."""
        told = isinstance(error, RankError | LostRankError)
        if self.size == 1 or self._inside or told or not isinstance(error, Exception):
            return
        crashed = not isinstance(error, GrpoError)
        reason = f"{type(error).__name__}: {error}" if crashed else str(error)
        try:
            self._exchange(one_line(reason).encode(), failed=CRASHED if crashed else REFUSED)
        except GrpoError:
            return  # the others have failed too, or are gone

    def _exchange(self, text: bytes, failed: int = 0) -> list[bytes]:
        """The text of every rank."""
        start = time.perf_counter()
        self.stations += 1
        try:
            _store().set(f"station/{self.rank}", str(self.stations))
            header = bytes([failed]) + len(text).to_bytes(HEADER - 1, "little")
            received = self._all_gather((header + text[:INLINE]).ljust(HEADER + INLINE, b"\0"))
            lengths = [int.from_bytes(each[1:HEADER], "little") for each in received]
            texts = [each[HEADER : HEADER + length] for each, length in zip(received, lengths, strict=True)]
            if max(lengths) > INLINE:
                rest = self._all_gather(text[INLINE:].ljust(max(lengths) - INLINE, b"\0"))
                texts = [a + b[: max(0, n - INLINE)] for a, b, n in zip(texts, rest, lengths, strict=True)]
        except RuntimeError as error:  # border: the network, and processes of other hosts
            raise self._lost(error) from error
        self.waited += time.perf_counter() - start
        for rank, each in enumerate(received):
            if each[0]:
                kind = RankError if each[0] == REFUSED else LostRankError
                raise kind(f"{self.name(rank)}: {texts[rank].decode()}")
        return texts

    def _all_gather(self, text: bytes) -> list[bytes]:
        """One message of equal length from every rank."""
        import torch

        sent = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        received = torch.empty(self.size * len(text), dtype=torch.uint8)
        all_gather(received, sent, None)
        return [row.tobytes() for row in received.view(self.size, -1).numpy()]

    def layout(self, shard: str) -> dict[str, Any]:
        """For the record. `shard`: what ranks divide among them."""
        return {"size": self.size, "hosts": list(self.hosts), "shard": shard}

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _lost(self, error: RuntimeError) -> LostRankError:
        """The error of a rank that is gone, or that did not arrive in time; in that case with its name."""
        if "timed out" not in str(error).lower():
            peer = re.search(r"\[([\da-fA-F.:]+)\]:\d+", str(error))  # its address, as gloo writes it
            other = f"a rank at {peer[1]}" if peer else f"another rank: {one_line(str(error), 200)}"
            return LostRankError(f"{self.name(self.rank)} has lost the connection to {other}")
        try:
            arrivals = [int(_store().get(f"station/{rank}")) for rank in range(self.size)]
        except RuntimeError:  # border: the host of the store is gone
            arrivals = [0]
        missing = [self.name(rank) for rank, station in enumerate(arrivals) if station < self.stations]
        if self.first:
            time.sleep(LINGER)
        # Where all had arrived, the network between them failed. With two ranks it is clear which one is cut off.
        who = ", ".join(missing) or (self.name(1 - self.rank) if self.size == 2 else "a rank")
        return LostRankError(f"field scale.timeout: {who} did not answer within {self.timeout:g} s")


def all_gather(whole: torch.Tensor, piece: torch.Tensor, group: Any) -> None:
    """Fills `whole` with the pieces of all ranks, one after another."""
    import torch.distributed as dist

    # torch 2.13 renamed it, and warns of the older name.
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, piece, group=group)


def reduce_scatter(piece: torch.Tensor, whole: torch.Tensor, group: Any) -> None:
    """Fills `piece` with this rank's part of the sum of all `whole`s."""
    import torch.distributed as dist

    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(piece, whole, group=group)


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


ALONE = World()
_joined: World | None = None


def has_joined() -> bool:
    """Whether this process is one of several ranks that have met."""
    return _joined is not None


@contextmanager
def joined(scale: Scale, device: str) -> Iterator[World]:
    """The world of this process while it trains; an error in this context ends all ranks."""
    world = join(scale, device)
    try:
        yield world
    except BaseException as error:
        world.fail(error)
        raise


def join(scale: Scale, device: str) -> World:
    """The world that the environment describes, as torchrun writes it; `ALONE` where it describes none.

    A process joins once. `device`: the setting; with one GPU named for all ranks, they share it and talk through gloo.
    """
    global _joined
    adopt_slurm(scale)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1 and scale.gpus * scale.nodes > 1:
        raise GrpoError(
            f"field scale.gpus: a script has one rank; run it with torchrun --nproc-per-node {scale.gpus} script.py, "
            f"or train with grpo train --gpus {scale.gpus}"
        )
    if size == 1:
        return ALONE
    if _joined is not None:
        return _joined
    import torch
    import torch.distributed as dist

    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise GrpoError(
            f"the environment has WORLD_SIZE={size} without {', '.join(missing)}; start ranks with --gpus {size}, "
            "torchrun or srun, or unset it"
        )
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", 0))
    limit = timedelta(seconds=scale.timeout)
    own_gpu = device in ("auto", "cuda") and torch.cuda.is_available()
    if own_gpu:  # "cuda" now means this rank's GPU. Slurm may show each task only its own.
        torch.cuda.set_device(min(local_rank, torch.cuda.device_count() - 1))
    try:
        store = _loopback_store(rank, size, limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, OSError) as error:  # border: the network, and processes of other hosts
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise LostRankError(f"rank {rank}: the ranks did not meet at {place}: {one_line(str(error), 200)}") from error
    atexit.register(dist.destroy_process_group)
    world = World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        timeout=scale.timeout,
        hosts=[""] * size,
    )
    met = world.meet((socket.gethostname(), affinity()))
    world.hosts = [host for host, _ in met]
    sharing = sum(host == world.hosts[rank] and not cores.isdisjoint(affinity()) for host, cores in met)
    world.cores = usable_cores(sharing, world.local_size)
    _joined = world
    if own_gpu:
        refuse_shared(world, world.meet(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)))
    world.tensors = dist.new_group(backend="nccl" if own_gpu else "gloo", timeout=limit)
    return world


def _loopback_store(rank: int, size: int, limit: timedelta) -> Any:
    """Where ranks on one host find each other: rank 0 listens to that host only, while torch's own store would accept
    connections from all. None where the address is another, or where torchrun has a store: torch finds it."""
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if host != "127.0.0.1" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    listener = socket.create_server((host, port)).detach() if rank == 0 else None
    return TCPStore(host, port, size, rank == 0, limit, master_listen_fd=listener)


def refuse_shared(world: World, gpus: Sequence[str]) -> None:
    """Refuse ranks that have the same GPU, by its name: NCCL cannot connect them.

    >>> refuse_shared(World(size=3, hosts=["a", "a", "a"]), ["GPU-1", "GPU-2", "GPU-1"])
    Traceback (most recent call last):
    grpo.errors.GrpoError: field scale.gpus: rank 2 on a has the GPU of rank 0; drop it, or share one (--device cuda:0)
    """
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) != rank:
            raise GrpoError(
                f"field scale.gpus: {world.name(rank)} has the GPU of rank {first}; drop it, or share one "
                "(--device cuda:0)"
            )
