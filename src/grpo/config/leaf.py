"""A settable field: its type, its default, and the values it can hold."""

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from os import PathLike
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from grpo.errors import one_line

LARGEST_INTEGER = 2**63 - 1  # the largest that SQLite stores
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
UNPRINTABLE_IN_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Without tab and new line."""
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
"""Two characters on the command line, and the one they mean in a Text or a list of texts."""
JSON_EXAMPLE = '{"enable_thinking": false}'
Json = Annotated[str, "JSON"]
"""Kind of a field that holds the text of a JSON object, or none. Python and TOML may give a table instead."""
Text = Annotated[str, "text"]
"""Kind of a field that holds text for a model, which may have several lines."""
TEXTS = tuple[str, ...]
"""Kind of a field that holds a list of texts: an array in TOML, a flag that may be repeated."""


@dataclass(frozen=True)
class Leaf:
    """One settable field: its annotation (int, float, str, bool, Text, TEXTS, Json, a Literal of texts) and default,
    or MISSING."""

    kind: Any
    default: Any


def leaves(cls: Any) -> dict[str, Leaf]:
    """Every settable field of a dataclass by its path, such as "steps" and "loss.beta"."""
    found: dict[str, Leaf] = {}
    kinds = get_type_hints(cls, include_extras=True)
    for each in fields(cls):
        kind = kinds[each.name]
        if is_dataclass(kind):
            found |= {f"{each.name}.{inner}": leaf for inner, leaf in leaves(kind).items()}
        else:
            found[each.name] = Leaf(kind, each.default)
    return found


def misfit(leaf: Leaf, value: object) -> str:
    """Why the field cannot hold this value; empty if it can."""
    kind, got = leaf.kind, f"; got {shown(value)}"
    such_as = "" if leaf.default is MISSING else f", such as {leaf.default}"
    if get_origin(kind) is Literal:
        choices = [f'"{choice}"' for choice in get_args(kind)]
        return "" if value in get_args(kind) else f"expected one of {', '.join(choices)}{got}{nearest(value, kind)}"
    if kind is bool:
        return "" if isinstance(value, bool) else f"expected true or false{got}"
    if kind is str or kind == Text:
        if not isinstance(value, str):
            return f"expected text{got}{_instead_of(value)}"
        unprintable = UNPRINTABLE if kind is str else UNPRINTABLE_IN_TEXT
        return f"contains a character that cannot be shown{got}" if unprintable.search(value) else ""
    if kind == TEXTS:
        return _misfit_in_list(value)
    if kind == Json:
        return "" if value == "" or _is_json_object(value) else f"expected a JSON object, such as {JSON_EXAMPLE}{got}"
    number = int if kind is int else int | float
    expected = f"expected a {'whole ' if kind is int else ''}number{such_as}{got}"
    if isinstance(value, bool) or not isinstance(value, number):
        unquoted = from_text(kind, value) if isinstance(value, str) else value
        return expected if unquoted is value or misfit(leaf, unquoted) else f"{expected}; remove the quotes"
    if isinstance(value, int):
        return "" if abs(value) <= LARGEST_INTEGER else expected
    return "" if math.isfinite(value) else expected.replace("a number", "a finite number")


def _instead_of(value: object) -> str:
    """How an object is named in a field of text."""
    if hasattr(value, "save_pretrained"):  # a model, as TRL takes it
        return "; save it with save_pretrained, and name the folder"
    if isinstance(value, PathLike):
        return "; write it as text, with str"
    return "; write it as file.py:function" if callable(value) else ""


def _misfit_in_list(value: object) -> str:
    """Why this is not a list of texts. One text counts as a list of one."""
    for text in as_texts(value) if isinstance(value, str | list | tuple) else (value,):
        if not isinstance(text, str):
            return f"expected text or a list of texts; got {shown(text)}"
        if not text:
            return "contains an empty text; remove it"
        if UNPRINTABLE_IN_TEXT.search(text):
            return f"contains a character that cannot be shown; got {shown(text)}"
    return ""


def as_texts(value: Any) -> tuple[Any, ...]:
    """The value of a field of kind TEXTS as a tuple.

    >>> as_texts("</answer>"), as_texts(["a", "b"])
    (('</answer>',), ('a', 'b'))
    """
    return (value,) if isinstance(value, str) else tuple(value)


def json_text(value: object) -> object:
    """A table as the text of a JSON object; other values, and tables that JSON cannot hold, unchanged.

    >>> json_text({"enable_thinking": False})
    '{"enable_thinking": false}'
    """
    try:
        return json.dumps(value) if isinstance(value, Mapping) and value else "" if value == {} else value
    except (TypeError, ValueError, RecursionError):
        return value


def _is_json_object(value: object) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def from_text(kind: object, text: str) -> object:
    """A flag's text as a number, or with its escapes read; text that is not a number is returned unchanged, and
    `misfit` refuses it.

    >>> from_text(int, "12"), from_text(TEXTS, r"end\\n")
    (12, ('end\\n',))
    """
    if kind in (Text, TEXTS):
        read = re.sub(r"\\[nt\\]", lambda escape: ESCAPES[escape[0]], text)  # from left to right
        return (read,) if kind == TEXTS else read
    try:
        return int(text) if kind is int else float(text) if kind is float else text
    except ValueError:
        return text


def nearest(value: object, kind: object) -> str:
    found = difflib.get_close_matches(str(value)[:60], get_args(kind), n=1) if isinstance(value, str) else []
    return f'; did you mean "{found[0]}"?' if found else ""


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{one_line(value, 60)}"'
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST_INTEGER):
        return repr(value)
    names = {list: "an array", dict: "a table", int: "a number above 2**63", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")
