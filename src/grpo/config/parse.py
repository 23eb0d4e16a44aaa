"""Reads flags, TOML files and dictionaries into frozen dataclasses. `[loss] beta = 0.1` in a file is `--loss.beta 0.1`.

Every name and value is checked here, so that a mistake gets one line that names the field and where it was set. Works
on any dataclass and knows no field by name. tyro only prints the help.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from grpo.errors import GrpoError, one_line

T = TypeVar("T")
Json = Annotated[str, "JSON"]
"""A field's kind: the text of a JSON object, or empty. Python and TOML may give a table instead."""

COMMAND_LINE = "command line"
PYTHON = "Python"
NOTHING: Mapping[str, str] = {}
LARGEST_INTEGER = 2**63 - 1  # the largest that SQLite stores
NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*|-inf.*|-nan", re.IGNORECASE | re.DOTALL)
JSON_EXAMPLE = '{"enable_thinking": false}'
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
UNPRINTABLE_IN_LIST = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Without tab and new line."""
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
"""Two characters on the command line, and the one they mean in a list of texts."""
TEXTS = tuple[str, ...]
"""Kind of a field that holds a list of texts: an array in TOML, a flag that may be repeated."""


@dataclass(frozen=True)
class Leaf:
    """One settable field: its annotation (int, float, str, bool, TEXTS, Json, a Literal of texts) and default, or
    MISSING."""

    kind: Any
    default: Any


@dataclass(frozen=True)
class Setting:
    """A checked value and where it was set: "recipe.toml:3" or "command line"."""

    value: Any
    origin: str


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
    if kind is str:
        if not isinstance(value, str):
            return f"expected text{got}{'; write it as file.py:function' if callable(value) else ''}"
        return f"contains a character that cannot be shown{got}" if UNPRINTABLE.search(value) else ""
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


def _misfit_in_list(value: object) -> str:
    """Why this is not a list of texts. One text counts as a list of one."""
    for text in as_texts(value) if isinstance(value, str | list | tuple) else (value,):
        if not isinstance(text, str):
            return f"expected text or a list of texts; got {shown(text)}"
        if not text:
            return "contains an empty text; remove it"
        if UNPRINTABLE_IN_LIST.search(text):
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
    """A flag's text as a number; text that is not a number is returned unchanged, and `misfit` refuses it.

    >>> from_text(int, "12"), from_text(TEXTS, r"end\\n")
    (12, ('end\\n',))
    """
    if kind == TEXTS:
        return (re.sub(r"\\[nt\\]", lambda escape: ESCAPES[escape[0]], text),)  # from left to right
    try:
        return int(text) if kind is int else float(text) if kind is float else text
    except ValueError:
        return text


def read(
    cls: type, argv: Sequence[str], *, prog: str, positionals: Sequence[str] = (), refused: Mapping[str, str] = NOTHING
) -> dict[str, Setting]:
    """Checked settings by path: TOML files from left to right, then flags; the last one wins.

    `positionals` are fields that may also be given by position. `refused` maps names that are not fields to the reason
    that the error gives; the names are lower-case and without separators.
    """
    reader = _Reader(leaves(cls), prog, refused)
    files, strays = [], []
    flags: dict[str, Setting] = {}
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if _is_flag(token):
            path, value = reader.flag(token, rest)
            if reader.leaves[path].kind == TEXTS and path in flags:
                value = (*flags[path].value, *value)
            flags[path] = Setting(value, COMMAND_LINE)
        elif token.endswith(".toml"):
            files.append(token)
        else:
            strays.append(token)
    open_positions = [path for path in positionals if path not in flags]
    if surplus := strays[len(open_positions) :]:
        known = "flags start with --, recipes end in .toml"
        raise GrpoError(f"argument {shown(surplus[0])} ({COMMAND_LINE}): unexpected; {known}; see {prog} --help")
    for path, token in zip(open_positions, strays, strict=False):
        flags[path] = Setting(reader.checked(path, token, COMMAND_LINE), COMMAND_LINE)
    settings: dict[str, Setting] = {}
    for file in files:
        document, lines = _read_toml(file)
        places = {path: f"{one_line(file)}:{line}" for path, line in lines.items()}
        settings |= reader.table(document, places.__getitem__)
    return settings | flags


def build(cls: type[T], settings: Mapping[str, Setting], *, prog: str, default: T | None = None) -> T:
    """Builds the dataclass from checked settings; the other fields come from `default` or the class."""
    for path, leaf in leaves(cls).items():
        if leaf.default is MISSING and path not in settings and default is None:
            raise GrpoError(f"field {path} ({COMMAND_LINE}): missing; write --{path} VALUE, or see {prog} --help")
    built: T = _construct(cls, {path: setting.value for path, setting in settings.items()}, default)
    return built


def _construct(cls: Any, values: Mapping[str, Any], default: Any) -> Any:
    kinds = get_type_hints(cls)
    given: dict[str, Any] = {}
    for each in fields(cls):
        kind, section = kinds[each.name], f"{each.name}."
        if is_dataclass(kind):
            inner = {path.removeprefix(section): value for path, value in values.items() if path.startswith(section)}
            if inner:
                given[each.name] = _construct(kind, inner, getattr(default, each.name, None))
        elif each.name in values:
            value = values[each.name]
            given[each.name] = float(value) if kind is float else as_texts(value) if kind == TEXTS else value
    return cls(**given) if default is None else replace(default, **given)


def from_table(cls: type[T], data: Mapping[str, Any], origin: str, refused: Mapping[str, str] = NOTHING) -> T:
    """Builds the dataclass from nested dictionaries, with the same checks as flags."""
    return build(cls, _Reader(leaves(cls), "grpo", refused).table(data, lambda path: origin), prog="grpo")


def section_from_dict(cls: type, name: str, data: Mapping[str, Any], refused: Mapping[str, str]) -> Any:
    """Builds one section of the dataclass `cls`, given in Python as a dictionary."""
    settings = _Reader(leaves(cls), "grpo", refused).table({name: data}, lambda path: PYTHON)
    values = {path.removeprefix(f"{name}."): setting.value for path, setting in settings.items()}
    return _construct(get_type_hints(cls)[name], values, None)


def show_help(cls: type, prog: str) -> None:
    """Prints every field with its help, and exits with 0."""
    import tyro  # slow to import

    repeated = (tyro.conf.UseAppendAction,)  # --stop A --stop B
    tyro.cli(cls, args=["--help"], prog=prog, use_underscores=False, config=repeated)


@dataclass(frozen=True)
class _Reader:
    leaves: Mapping[str, Leaf]
    prog: str
    refused: Mapping[str, str]

    def flag(self, token: str, rest: list[str]) -> tuple[str, Any]:
        """(path, value) of one flag. A flag without `=` takes its value from the front of `rest`."""
        name, equals, text = token.removeprefix("--").partition("=")
        section, dot, last = name.replace("-", "_").rpartition(".")
        positive = self.path(f"{section}{dot}{last.removeprefix('no_')}")
        negated = last.startswith("no_") and positive in self.leaves and self.leaves[positive].kind is bool
        path = positive if negated else self.known(self.path(name.replace("-", "_")) or name, COMMAND_LINE)
        if self.leaves[path].kind is bool:
            if equals or (rest and rest[0].lower() in {"true", "false", "yes", "no", "on", "off", "1", "0"}):
                instead = f"write --{path} or {_off(path)}"
                raise GrpoError(f"field {path} ({COMMAND_LINE}): a switch takes no value; {instead}")
            return path, not negated
        if not equals:
            if not rest or _is_flag(rest[0]):
                default = self.leaves[path].default
                value = "VALUE" if default in (MISSING, "", ()) else default
                raise GrpoError(f"field {path} ({COMMAND_LINE}): a value is missing; write --{path} {value}")
            text = rest.pop(0)
        return path, self.checked(path, from_text(self.leaves[path].kind, text), COMMAND_LINE)

    def path(self, name: str) -> str:
        """A field's path from its path, or from its name if only one section has that name; empty if none has."""
        inner = [leaf for leaf in self.leaves if leaf.endswith(f".{name}")]
        if name in self.leaves or not inner:
            return name if name in self.leaves else ""
        if len(inner) > 1:
            raise GrpoError(f"field {name}: in several sections; write {' or '.join(f'--{leaf}' for leaf in inner)}")
        return inner[0]

    def table(self, data: Mapping[str, Any], origin: Callable[[str], str]) -> dict[str, Setting]:
        """Checked settings of nested tables, from TOML, JSON or Python; `origin` gives the place of a path."""
        found = {}
        for written, value in flat(data, whole=self.leaves):
            if value == {} and any(leaf.startswith(f"{written}.") for leaf in self.leaves):
                continue  # an empty section
            path = self.known(written, origin(written))
            value = json_text(value) if self.leaves[path].kind == Json else value
            found[path] = Setting(self.checked(path, value, origin(written)), origin(written))
        return found

    def checked(self, path: str, value: object, origin: str) -> object:
        if why := misfit(self.leaves[path], value):
            raise GrpoError(f"field {path} ({origin}): {why}")
        return value

    def known(self, name: str, origin: str) -> str:
        """The path of a field; dashes and underscores are the same. Refuses names that are not fields."""
        path = name.replace("-", "_")
        if path in self.leaves:
            return path
        field = f"field {one_line(name, 60)} ({origin})"
        if reason := self.refused.get(path.rpartition(".")[2].replace("_", "").lower()):
            raise GrpoError(f"{field}: {reason}")
        if inner := [leaf for leaf in self.leaves if leaf.startswith(f"{path}.")]:
            raise GrpoError(f"{field}: is a section; set one of its fields: {', '.join(inner)}")
        raise GrpoError(f"{field}: unknown; {self.suggestion(path, origin)}")

    def suggestion(self, path: str, origin: str) -> str:
        """The field with the most similar name in any section, written as a flag, in TOML or in Python."""
        by_name = {leaf.rpartition(".")[2]: leaf for leaf in reversed(list(self.leaves))}  # the top level wins
        for wanted in (path.rpartition(".")[2], path):
            for match in difflib.get_close_matches(wanted.lower()[:60], by_name, n=1):
                section, _, name = by_name[match].rpartition(".")
                if origin == COMMAND_LINE:
                    return f"did you mean --{by_name[match]}?"
                if origin == PYTHON:
                    return f"did you mean {by_name[match]}?"
                return f"did you mean {name} {f'in [{section}]' if section else 'at the top, above every [section]'}?"
        return f"see {self.prog} --help"


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


def _off(path: str) -> str:
    section, dot, name = path.rpartition(".")
    return f"--{section}{dot}no-{name}"


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token.strip("-") != "" and not NEGATIVE_NUMBER.fullmatch(token)


def flat(table: Mapping[str, Any], prefix: str = "", whole: Container[str] = ()) -> Iterator[tuple[str, Any]]:
    """(path, value) of every entry of nested tables; tables at the paths `whole` are values.

    >>> dict(flat({"lr": 0.1, "loss": {"beta": 0.0}}))
    {'lr': 0.1, 'loss.beta': 0.0}
    """
    for key, value in table.items():
        path = f"{prefix}{key}"
        inner = isinstance(value, dict) and value and path.replace("-", "_") not in whole
        if inner and path.count(".") < 2:  # fields are at most one section deep
            yield from flat(value, f"{path}.", whole)
        else:
            yield path, value


def _read_toml(file: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The document, and the line of each path."""
    name = one_line(file)
    try:
        text = Path(file).read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise GrpoError(f"{name} ({COMMAND_LINE}): no such file; check the path") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or one_line(str(error))
        raise GrpoError(f"{name} ({COMMAND_LINE}): cannot be read as text: {why}; check the path") from None
    try:
        return tomllib.loads(text), _lines(text)
    except (ValueError, RecursionError) as error:
        what, place = str(error), re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        line, column = place.groups() if place else (text.count("\n") + 1, len(text) - text.rfind("\n"))
        what = one_line(what.partition(" (at ")[0], 200)
        raise GrpoError(f"{name}:{line}:{column}: not valid TOML: {what}; fix it here") from None


def _lines(text: str) -> dict[str, int]:
    """The line of each path. A statement is the shortest sequence of lines that parses under its [header]."""
    lines: dict[str, int] = {}
    header, start, statement = "", 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        is_header = statement.lstrip().startswith("[")
        try:
            parsed = tomllib.loads(statement if is_header else header + statement)
        except (ValueError, RecursionError):
            continue  # inside an array or a text of several lines
        header = statement if is_header else header
        for path, _ in flat(parsed):
            for dot in re.finditer(r"\.|$", path):  # also of the tables around it
                lines.setdefault(path[: dot.start()], start)
        start, statement = number + 1, ""
    return lines
