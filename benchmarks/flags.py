"""Flags of the benchmarks: each mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """`description`: the script's docstring, printed as it is."""

    def __init__(self, description: str | None):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        exit_with(message)


def exit_with(line: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
    sys.exit(2)


def positive(text: str) -> int:
    return _at_least(1, text)


def natural(text: str) -> int:
    """0 stands for a default."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}; got {text!r}")
    return int(text)
