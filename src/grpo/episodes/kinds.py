"""The environments of a run: one, or several, of which the column `environment` of a row names its own, as in TRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo.episodes.environments import Kind, load_environment, part_name
from grpo.errors import GrpoError, one_line
from grpo.types import Problem

Env = str | type | Callable[..., Any]
"""Text such as file.py:Class, a class, or the coroutine function of an agent."""
COLUMN = "environment"


def named(env: Env | Mapping[str, Env]) -> Mapping[str, Env]:
    """Environments by name; the only one has no name.

    >>> named("word=games.py:Word, catch=games.py:Catch")
    {'word': 'games.py:Word', 'catch': 'games.py:Catch'}
    >>> named("games.py:Word")
    {'': 'games.py:Word'}
    """
    if isinstance(env, Mapping):
        return env
    entries = [entry.partition("=") for entry in env.split(",")] if isinstance(env, str) else []
    if len(entries) < 2 and not any(equals for _, equals, _ in entries):
        return {"": env}
    found = {name.strip(): place.strip() for name, equals, place in entries if equals}
    if len(found) < len(entries) or "" in found:
        raise GrpoError(
            f"field episodes.env: {env!r} does not give each environment a name of its own; write "
            "NAME=file.py:Class,NAME=file.py:Class"
        )
    return found


def part_names(env: str) -> list[str]:
    """Names of the rewards that the environments of the field `episodes.env` give.

    >>> part_names("word=games.py:Word, catch=games.py:Catch"), part_names("")
    (['Word', 'Catch'], [])
    """
    return [part_name(str(text)) for text in named(env).values() if text]


class Kinds:
    """The classes of environments of a run, by name, and which of them plays a problem.

    >>> class Word:
    ...     def reset(self): ...
    ...     def step(self, text): ...
    >>> class Catch(Word): ...
    >>> games = Kinds({"word": Word, "catch": Catch})
    >>> games.of(Problem("p", "Play.", "", columns={"environment": "catch"})).name, games.parts
    ('Catch', ('Word', 'Catch'))
    """

    def __init__(self, env: Env | Mapping[str, Env]):
        self.by_name = {name: load_environment(each) for name, each in named(env).items()}
        kinds = [*self.by_name.values()]
        self.title = kinds[0].title if len(kinds) == 1 else f"environments {', '.join(self.by_name)}"
        self.parts = tuple(dict.fromkeys(kind.name for kind in kinds))
        """Names of the rewards that they give."""
        if len({(bool(kind.tools), kind.messages) for kind in kinds}) > 1:
            raise GrpoError(
                f"{self.title}: are of different forms; give all of them methods as tools, all step(text), or make all "
                "of them agents"
            )

    @property
    def by_column(self) -> bool:
        """Whether a column of the row names the environment."""
        return "" not in self.by_name

    def of(self, problem: Problem) -> Kind:
        """The environment of a problem."""
        if not self.by_column:
            return self.by_name[""]
        name, known = problem.columns.get(COLUMN), ", ".join(self.by_name)
        if name is None:
            raise GrpoError(
                f"problem {problem.label}: has no column {COLUMN}, which names one of several; add it to the data; "
                f"known: {known}"
            )
        if not isinstance(name, str) or name not in self.by_name:
            shown = one_line(repr(name), 60)
            raise GrpoError(f"problem {problem.label}: column {COLUMN} names {shown}; known: {known}")
        return self.by_name[name]

    def check_columns(self, problems: Iterable[Problem]) -> None:
        """Raises GrpoError where a problem names none of several, or `reset` takes a column that no problem has."""
        asked: dict[str, list[Problem]] = {}
        for problem in problems:
            asked.setdefault(self.of(problem).title, []).append(problem)
        for kind in self.by_name.values():
            if kind.title in asked or not self.by_column:
                kind.check_columns(asked.get(kind.title, []))

    def check_rewards(self) -> None:
        """Raises GrpoError where one cannot give a reward, and nothing else does."""
        for kind in self.by_name.values():
            kind.check_rewards()
