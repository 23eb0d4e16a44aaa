"""What the fuzz tests share: odd texts and values, a time limit for each input, and the rule for messages.

Input number i of a kind is made by `random.Random(f"{kind}/{i}")`: a fault names its number, and the number is enough
to make the input again. `make test` takes the first quarter of the inputs; `make faults` (GRPO_FAULTS=all) takes all.
"""

from __future__ import annotations

import random
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grpo.errors import GrpoError
from helpers.faults import ALL

SECONDS = 20.0
"""For one input, in wall-clock time: the machine may be busy."""
TEXTS = (
    *("", " ", "\n", "0", "42", "-1", "1e400", "nan", "true", "null", "{}", "{prompt}", "{answer}", "{{", "}", "{0}"),
    *("\\n", "\\", "'", '"', "\x00", "\x1b[31m", "\u2028", "\r\n", "\t", "\ufeff", "\u202e", "\ud800", "é", "e\u0301"),
    *(
        "日本語",
        "👩\u200d👩\u200d👧",
        "עברית",
        "İ",
        "ß",
        "½",
        "٣",
        "𝟜",
        "Ａ",
        "\U0010ffff",
        "a" * 3000,
        "[" * 300,
        "%s",
    ),
    *("<|endoftext|>", "<script>alert(1)</script>", "../../etc/passwd", "--steps", "-", "--", "C:\\con", "None"),
    *("__class__", "=1+1", "\\boxed{3}"),
)


def budget(inputs: int) -> int:
    return inputs if ALL else inputs // 4


def odd_text(rng: random.Random) -> str:
    """Short text of odd characters; often a plain word."""
    if rng.random() < 0.4:
        return "".join(rng.choices("abcxyz 0123456789", k=rng.randint(1, 12)))
    return "".join(rng.choices(TEXTS, k=rng.choice((1, 1, 1, 2, 3))))


def odd_value(rng: random.Random, depth: int = 3) -> Any:
    """Any value that JSON can hold, NaN and infinity among them."""
    kind = rng.randrange(10 if depth else 7)
    if kind < 3:
        return odd_text(rng)
    if kind < 7:
        numbers = (0, 1, -1, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"))
        return rng.choice((None, True, False, *numbers))
    if kind < 9:
        return [odd_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {odd_text(rng): odd_value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


class HangError(BaseException):
    """The time limit of one input has passed."""


class Fuzz:
    """Counts the inputs of one kind, and collects their faults."""

    def __init__(self, kind: str, place: str):
        """`place`: a pattern of how a message names the field or the place."""
        self.kind, self.place = kind, re.compile(place)
        self.outcomes: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        """One for each cause, with the input's number."""
        self.began = time.process_time()

    def inputs(self, count: int) -> Iterator[tuple[int, random.Random]]:
        for number in range(count):
            yield number, random.Random(f"{self.kind}/{number}")

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        """The function's value; None where it refused its input, or failed."""
        try:
            with self.time_limit(number):
                value = function()
        except GrpoError as error:
            self.outcomes["refused"] += 1
            self.message(number, str(error))
            return None
        except HangError:
            return None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  border: what the tests look for
            where = traceback.extract_tb(error.__traceback__)[-1]
            cause = f"{type(error).__name__} at {where.filename}:{where.lineno}"
            self.fault(number, cause, "".join(traceback.format_exception(error)[-3:]))
            return None
        self.outcomes["accepted"] += 1
        return value

    def message(self, number: int, message: str) -> None:
        """A message is one line that names a field or a place."""
        if len(message.splitlines()) != 1 or not message.strip():
            self.fault(number, f"not one line: {message[:40]!r}", repr(message))
        elif not self.place.search(message):
            self.fault(number, f"names no place: {message[:40]!r}", repr(message))

    def fault(self, number: int, cause: str, detail: str) -> None:
        self.outcomes["fault"] += 1
        self.faults.setdefault(cause, f"{self.kind}/{number}: {cause}\n{detail}")

    @contextmanager
    def time_limit(self, number: int) -> Iterator[None]:
        """Counts a hang even where the code under test catches every exception."""

        def give_up(*_: object) -> None:
            self.fault(number, "hang", "".join(traceback.format_stack(limit=4)))
            raise HangError

        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, SECONDS, 1.0)  # again: the code may go on after the first
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def report(self, at_least: int) -> None:
        """Prints the counts. Fails where there are fewer inputs than promised, or any fault."""
        seconds = time.process_time() - self.began
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        print(f"{sum(self.outcomes.values()):,} {self.kind}: {counts}; {seconds:.1f} s of CPU time")
        assert not self.faults, "\n".join(["", *list(self.faults.values())[:20], f"{len(self.faults)} causes"])
        assert sum(self.outcomes.values()) >= at_least
