"""Rewards that misbehave, by what the completion says. Loaded by the workers as people's files are."""

import contextlib
import os
import signal
import time

BOMB = 500
"""Forks that the bomb tries: enough to run into the limit, and bounded should the limit fail."""


class Unprintable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no words")


def unruly(problem, text):
    if text == "raise":
        raise ValueError("no such luck")
    if text == "sleep":
        time.sleep(3600)
    if text == "exit":
        os._exit(3)
    if text == "quit":
        raise SystemExit(4)
    if text == "interrupt":
        raise KeyboardInterrupt("by itself")
    if text == "unprintable":
        raise Unprintable
    if text == "alarm":
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    if text == "wait":
        time.sleep(0.2)
    if text == "fork":
        fork_without_end()
    if text == "allocate":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))
    if text == "print":
        while True:
            print("x" * 1_000_000)
    if text.startswith("orphan"):
        orphan(text.removeprefix("orphan"))
    if text == "leave":
        leave_a_dead_orphan()
    for kind in ("child", "daemon", "zombie"):
        if text.startswith(kind):
            leave(kind, text.removeprefix(kind))
    if text in ("scribble", "forge"):
        write_everywhere(b"hello" if text == "scribble" else (2).to_bytes(4, "big") + b"{}")
    if text == "none":
        return None
    if text == "segfault":
        import ctypes

        ctypes.string_at(0)
    return float(len(text))


def write_everywhere(content):
    """To every open file, the connection to the supervisor among them."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            os.write(descriptor, content)


def fork_without_end():
    for _ in range(BOMB):
        if os.fork() == 0:
            time.sleep(3600)


def orphan(note):
    """A grandchild in a session of its own, whose parent has ended; then the call hangs."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(note, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(3600)
        os._exit(0)
    time.sleep(3600)


def leave(kind, note):
    """A process that goes on after the call: a child, or a grandchild in a session of its own; or a dead child."""
    child = os.fork()
    if child == 0:
        if kind == "daemon":
            os.setsid()
            if os.fork():
                os._exit(0)
            os.setsid()
        with open(f"{note}.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{note}.part", note)
        if kind != "zombie":
            time.sleep(3600)
        os._exit(0)
    if kind == "daemon":
        os.waitpid(child, 0)
    while not os.path.exists(note):
        time.sleep(0.001)


def leave_a_dead_orphan():
    """As bubblewrap does: its own child ends after it, and nobody here can wait for that."""
    child = os.fork()
    if child == 0:
        try:
            os.fork()
        except OSError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def batch(completions, **columns):
    """TRL's way: one bad completion spoils the call for all of them."""
    return [unruly(None, text) for text in completions]


def odd(problem, text):
    strange = {"nan": float("nan"), "inf": float("inf"), "word": "one", "list": [1.0]}
    return {**strange, "1e20": 1e20, "-1e39": -1e39, "1e400": 10**400}.get(text, 0.0)


def short(completions, **columns):
    return [0.0] * (len(completions) - 1)


def unordered(completions, **columns):
    return {float(i) for i in range(len(completions))}


def number(completions, **columns):
    return 1.0


def loud(problem, text):
    print("before the end")
    os._exit(1)


def patricide(problem, text):
    os.kill(os.getppid(), 9)
