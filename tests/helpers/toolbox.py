"""Tools that the model may call, good and bad. Loaded by workers as people's files are."""

import asyncio
import os
import random
import time


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product.
    """
    return a * b


async def later(text: str, seconds: float = 0.0) -> str:
    """
    Says a text after a while.

    Args:
        text: What to say.
        seconds: How long to wait.
    """
    await asyncio.sleep(seconds)
    return text


def behave(how: str) -> str:
    """
    Behaves badly.

    Args:
        how: In which way.
    """
    if how.startswith("note "):
        with open(how.removeprefix("note "), "a") as file:
            file.write("called\n")
        return "noted"
    if how == "sleep":
        time.sleep(3600)
    if how == "exit":
        os._exit(3)
    if how == "quit":
        raise SystemExit(4)
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "print":
        print("x" * 100_000_000)
    if how == "raise":
        raise ValueError("two\nlines")
    if how == "allocate":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))
    found = {"bytes": b"\xffraw", "nothing": None, "dict": {"a": [1, 2.5]}, "long": "y" * 100_000_000, "half": "\ud800"}
    return found.get(how, f"{how} {random.random():.6f}")
