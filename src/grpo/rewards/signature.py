"""How a reward function is called: decided by the names of its parameters, before the first call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo.errors import GrpoError, one_line
from grpo.types import Problem

LISTS = ("prompts", "completions", "completion_ids", "environments")
"""Arguments of TRL's trainer with an entry for each completion. A function with one of them is called as in TRL."""
OF_THE_TRAINER = ("completion_ids", "trainer_state")
"""Arguments that only the trainer knows. A function that reads `environments` is called in another process, beside its
environment."""
TRL = (*LISTS, "trainer_state", "log_extra", "log_metric")
FORMS = "write (problem, text) for one completion at a time, or (completions, **columns) for lists as in TRL"


@dataclass(frozen=True)
class Signature:
    """The parameters of a reward function.

    >>> Signature.of(lambda completions, level, scale=2.0: ..., "f")
    Signature(batched=True, required=('completions', 'level'), names=('completions', 'level', 'scale'), any_name=False)
    >>> Signature.of(lambda text: ..., "f").batched
    False
    """

    batched: bool
    """Called as in TRL, with all completions of a group; otherwise with a problem and one text."""
    required: tuple[str, ...]
    """Parameters without a default."""
    names: tuple[str, ...]
    """Parameters that are passed by name."""
    any_name: bool
    """Whether it takes **keywords."""

    @classmethod
    def of(cls, function: Callable[..., Any], spec: str) -> Signature:
        """Raises GrpoError where the parameters fit no form."""
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:  # border: a builtin, or an object with a strange __signature__
            raise GrpoError(
                f"reward {spec}: its parameters are unknown ({error}); wrap it in a function: {FORMS}"
            ) from None
        plain = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names = tuple(p.name for p in plain if p.kind is not p.POSITIONAL_ONLY)
        required = tuple(p.name for p in plain if p.default is p.empty)
        any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        positional_only = set(required) - set(names)
        as_in_trl = bool(set(LISTS) & set(names)) or (any_name and "text" not in names)
        if as_in_trl and not positional_only:
            return cls(True, required, names, any_name)
        if not as_in_trl and "text" in names and set(required) <= {"problem", "text"} and not positional_only:
            return cls(False, required, names, any_name)
        raise GrpoError(f"reward {spec}: takes {_shown(parameters)}; {FORMS}")

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the arguments that the function takes."""
        return {name: value for name, value in arguments.items() if self.any_name or name in self.names}


def columns_of(problem: Problem) -> dict[str, Any]:
    """The columns that a function of TRL's form gets: those of the row, and the gold answer as `answer` and `solution`
    where the row has no column of that name."""
    gold = {"answer": problem.answer, "solution": problem.answer} if problem.answer else {}
    hidden = (*TRL, "prompt", "completion")
    return {name: value for name, value in {**gold, **problem.columns}.items() if name not in hidden}


def refuse_unknown_columns(title: str, required: Iterable[str], problems: Iterable[Problem]) -> None:
    """Raises GrpoError where a required parameter is neither an argument of TRL nor a column of any problem."""
    known = dict.fromkeys(name for problem in problems for name in columns_of(problem))
    unknown = [name for name in required if name not in known and name not in TRL]
    if unknown:
        columns = f"the columns are {', '.join(known)}" if known else "the data has no columns"
        raise GrpoError(
            f"{title}: takes {unknown[0]!r}, which is neither a column of the data nor an argument of TRL "
            f"({', '.join(TRL)}); {columns}; rename the parameter, or give it a default"
        )


def _shown(parameters: Mapping[str, inspect.Parameter]) -> str:
    bare = [each.replace(annotation=each.empty) for each in parameters.values()]
    return one_line(str(inspect.Signature(bare)), 120)
