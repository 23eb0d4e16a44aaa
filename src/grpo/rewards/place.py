"""The place of people's code, `file.py:name` or `module:name`, and how it is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from grpo.errors import GrpoError

Kind = Literal["reward", "tool", "environment"]
LOADED: dict[Path, tuple[bytes, ModuleType]] = {}
"""Files that this process has loaded, with their content then: an environment and a reward function of one file share
its classes and variables."""
LOADING: set[Path] = set()
"""Files that this process is loading. One that trains when it is imported would load itself again."""
FIELDS: Mapping[Kind, str] = {"reward": "reward", "tool": "episodes.tools", "environment": "episodes.env"}


@dataclass(frozen=True)
class Place:
    """Where a function or class is defined.

    >>> Place.parse("mine.py:search", "tool")
    Place(source='mine.py', name='search', kind='tool')
    """

    source: str
    """A file that ends with .py, or a module."""
    name: str
    kind: Kind

    @classmethod
    def parse(cls, text: str, kind: Kind) -> Place:
        source, _, name = text.strip().rpartition(":")
        if not source or not re.fullmatch(r"[A-Za-z_]\w*", name):
            known = "write file.py:NAME or module:NAME"
            raise GrpoError(f"field {FIELDS[kind]}: {text.strip()!r} is not a valid {kind}; {known}")
        return cls(source, name, kind)

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"

    def load(self) -> Any:
        """The function or class."""
        module = self._module()
        found = getattr(module, self.name, None)
        if not callable(found):
            what, is_one = (
                ("class", inspect.isclass) if self.kind == "environment" else ("function", inspect.isfunction)
            )
            others = ", ".join(key for key, each in vars(module).items() if is_one(each) and key[0] != "_") or "none"
            raise GrpoError(f"{self.kind} {self}: {self.source} has no {what} {self.name}; it has {others}")
        return found

    def _module(self) -> ModuleType:
        try:
            if not self.source.endswith(".py"):
                return importlib.import_module(self.source)
            path = Path(self.source).resolve()
            if not path.is_file():
                raise GrpoError(f"{self.kind} {self}: file {self.source} does not exist")
            content = path.read_bytes()
            if path in LOADED and LOADED[path][0] == content:
                return LOADED[path][1]
            sys.path.insert(0, str(path.parent))  # it may import files beside it
            found = importlib.util.spec_from_file_location(f"{self.kind}_{path.stem}", path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            if path in LOADING:
                raise GrpoError(
                    f"{self.kind} {self}: {self.source} trains when it is imported; put that under "
                    'if __name__ == "__main__":'
                )
            LOADING.add(path)
            try:
                found.loader.exec_module(module)
            finally:
                LOADING.discard(path)
            LOADED[path] = (content, module)
            return module
        except GrpoError:
            raise
        except (Exception, SystemExit) as error:  # border: user code may raise anything
            line = _line(error, self.source)
            raise GrpoError(f"{self.kind} {self}: {line}{type(error).__name__}: {error}") from error


def _line(error: BaseException, source: str) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(source)]
    return f"line {lines[-1]}: " if lines else ""
