"""Tools and environments that a caller hands over as Python objects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.errors import GrpoError
from grpo.tasks.handed_over import PREFIX

Function = Callable[..., Any]
FORMS = "a function, a text such as mine.py:search, or a list of these"


def take_tools(tools: str | Function | Sequence[str | Function]) -> tuple[str, dict[str, Function]]:
    """The field `episodes.tools` that a record stores, and the functions it names with `python:`.

    >>> def search(query: str) -> str: ...
    >>> text, functions = take_tools([search, "mine.py:fetch"])
    >>> text, list(functions)
    ('python:search, mine.py:fetch', ['search'])
    """
    entries: list[str] = []
    functions: dict[str, Function] = {}
    for tool in [tools] if isinstance(tools, str) or callable(tools) else tools:
        if not isinstance(tool, str) and not callable(tool):
            raise GrpoError(f"field episodes.tools: got an object of type {type(tool).__name__}; give {FORMS}")
        name = tool if isinstance(tool, str) else _name(tool)
        if name in functions:
            raise GrpoError(f"field episodes.tools: two functions are called {name}; rename one")
        entries.append(name if isinstance(tool, str) else f"{PREFIX}{name}")
        functions |= {} if isinstance(tool, str) else {name: tool}
    if not entries:
        raise GrpoError(f"field episodes.tools: the list is empty; give {FORMS}")
    return ", ".join(entries), functions


def take_environment(env: str | Function | Mapping[str, str | Function]) -> tuple[str, Mapping[str, Function]]:
    """The field `episodes.env` that a record stores, and the classes or agents it names with `python:`.

    >>> class Word: ...
    >>> take_environment({"word": Word, "catch": "games.py:Catch"})[0]
    'word=python:Word, catch=games.py:Catch'
    """
    if isinstance(env, Mapping):
        if not env:
            raise GrpoError("field episodes.env: the dictionary is empty; give {'NAME': Class, …}")
        for name in env:
            if not isinstance(name, str) or not re.fullmatch(r"[^\s,=][^,=]*", name):
                raise GrpoError(
                    f"field episodes.env: {name!r} is not a valid name of an environment; use a text without , and ="
                )
        taken = {name: take_environment(each) for name, each in env.items()}
        classes: dict[str, Function] = {}
        for _, given in taken.values():
            if any(classes.get(name, each) is not each for name, each in given.items()):
                raise GrpoError(f"field episodes.env: two environments are called {next(iter(given))}; rename one")
            classes |= given
        return ", ".join(f"{name}={text}" for name, (text, _) in taken.items()), classes
    if isinstance(env, str):
        return env, {}
    if not isinstance(env, type) and not inspect.iscoroutinefunction(env):
        kind = type(env).__name__
        raise GrpoError(
            f"field episodes.env: got an object of type {kind}; give its class, as each episode makes its own object, "
            "or an agent (async def)"
        )
    return f"{PREFIX}{env.__name__}", {env.__name__: env}


def _name(function: Function) -> str:
    return re.sub(r"\W", "", getattr(function, "__name__", type(function).__name__)) or "function"
