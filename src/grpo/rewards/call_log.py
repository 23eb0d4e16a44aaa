"""What a reward function logs in one call, through TRL's `log_extra` and `log_metric`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from statistics import fmean
from typing import Any

from grpo.errors import GrpoError, whole_characters
from grpo.rewards.pool.invoke import as_number

MAX_REPR = 200
"""Characters kept of an object that JSON cannot hold."""


class CallLog:
    """Columns and metrics of one call.

    >>> log = CallLog(count=2)
    >>> log.log_extra("parsed", ["4", None])
    >>> log.log_metric("hits", 1), log.log_metric("hits", 2)
    (None, None)
    >>> log.row(0), log.means()
    ({'parsed': '4'}, {'hits': 1.5})
    """

    def __init__(self, count: int):
        """`count` completions are scored by the call."""
        self.count = count
        self.columns: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Record a value for each completion, in the column of that name."""
        _check_name("log_extra", column)
        if not is_list(values) or len(values) != self.count:
            raise GrpoError(f"log_extra({column!r}, …): got {values!r:.200}; give a list with {self.count} values")
        self.columns[column] = [json_value(value) for value in values]

    def log_metric(self, name: str, value: float) -> None:
        """Record a number, averaged over the step. One that is not finite is left out."""
        _check_name("log_metric", name)
        number = as_number(value, finite=False)
        if number is None:
            raise GrpoError(f"log_metric({name!r}, …): got {value!r:.200}; give a number")
        if math.isfinite(number):
            self.metrics.setdefault(name, []).append(number)

    def row(self, index: int) -> dict[str, Any]:
        """The columns of one completion."""
        return {name: values[index] for name, values in self.columns.items() if index < len(values)}

    def means(self) -> dict[str, float]:
        return {name: fmean(values) for name, values in self.metrics.items()}


def json_value(value: Any) -> Any:
    """The value as JSON holds it: numbers and arrays of numpy and torch as plain ones, NaN as None, other objects as
    their repr.

    >>> json_value((1, float("nan"), {2: {3}}))
    [1, None, {'2': '{3}'}]
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, Mapping):
        return {whole_characters(str(key)): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return json_value(value.tolist()) if hasattr(value, "tolist") else whole_characters(f"{value!r:.{MAX_REPR}}")


def is_list(values: Any) -> bool:
    """Whether it holds values in an order: a list, a tuple or an array.

    >>> is_list([1]), is_list((1,)), is_list({1}), is_list({1: 2}), is_list("1"), is_list(1)
    (True, True, False, False, False, False)
    """
    return hasattr(values, "__len__") and not isinstance(values, str | bytes | Mapping | Set)


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise GrpoError(f"{function}({name!r:.200}, …): the name must be text that is not empty")
    if name != whole_characters(name):
        raise GrpoError(f"{function}({name!r:.200}, …): the name has half of a character (a lone surrogate)")
