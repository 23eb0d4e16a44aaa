"""A description of Python code that is the same in every process: a resumed run must be handed the same code.

Pickles differ between processes, and the source of a lambda is the whole statement around it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from grpo.training.source_files import INSTALLED, own_files

BY_VALUE = (list, tuple, set, frozenset, Mapping, CodeType, partial, MethodType)
"""Kinds that are written in full at every place, never by number."""


def code_text(value: Any, module: str = "", seen: dict[int, Any] | None = None) -> str:
    """Bytecode and constants of a function or of an object's methods, and the values they refer to. Other modules under
    the folder of the first one are written too; code of any other module is a name. `seen`: objects written before,
    which become numbers.

    >>> code_text(lambda text: len(text) / 10) == code_text(lambda text: len(text) / 10)
    True
    >>> code_text(lambda text: len(text) / 10) == code_text(lambda text: len(text) / 11)
    False
    """
    if isinstance(value, str | bytes | int | float | complex | None):
        return repr(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return f"#{[*seen].index(id(value))}"
    seen[id(value)] = value
    text = _written(value, module, seen)
    if isinstance(value, BY_VALUE):
        # Whether two places share an equal constant differs between processes.
        del seen[id(value)]
    return text


def _written(value: Any, module: str, seen: dict[int, Any]) -> str:
    def inner(*values: Any) -> str:
        # Without a frame of Python for each value: chains of calls are deep.
        return ", ".join(map(partial(code_text, module=module, seen=seen), values))

    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({inner(*value)})"
    if isinstance(value, set | frozenset):
        # In any order: no element may depend on the one before.
        return f"set({', '.join(sorted(code_text(each, module, {**seen}) for each in value))})"
    if isinstance(value, Mapping):
        return f"dict({inner(*(item for pair in value.items() for item in pair))})"
    if isinstance(value, CodeType):
        return f"code({inner(value.co_code, value.co_names, value.co_varnames, value.co_consts)})"
    if isinstance(value, partial):
        return f"partial({inner(value.func, value.args, value.keywords)})"
    if isinstance(value, MethodType):
        return f"method({inner(value.__func__, value.__self__)})"
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    home = getattr(value if isinstance(value, type) else type(value), "__module__", "")
    if isinstance(value, FunctionType):
        module = module or value.__module__
        if not _is_own(value.__module__, module):
            return name
        known = inspect.getclosurevars(value)
        parts = (value.__code__, value.__defaults__, value.__kwdefaults__, known.nonlocals, known.globals)
        return f"function({inner(*parts)})"
    if isinstance(value, ModuleType):
        own = _is_own(value.__name__, module) and value.__file__
        return f"module({inner(*(path.read_bytes() for path in own_files(Path(own)).values()))})" if own else name
    module = module or home
    if not _is_own(home, module):
        return name
    if isinstance(value, type):
        return f"class {name}({inner({key: each for key, each in vars(value).items() if not key.startswith('__')})})"
    return f"object({inner(type(value), getattr(value, '__dict__', None))})"


def _is_own(module: str, first: str) -> bool:
    """Whether a module is the first one, or a file under its folder that is not installed."""
    if module == first:
        return True
    files = [getattr(sys.modules.get(name), "__file__", None) for name in (module, first)]
    if None in files:
        return False
    file, folder = Path(str(files[0])).resolve(), Path(str(files[1])).resolve().parent
    return file.is_relative_to(folder) and not INSTALLED & {*file.parts}
