"""Reads flags, TOML files and dictionaries into frozen dataclasses. `[loss] beta = 0.1` in a file is `--loss.beta 0.1`.

Every name and value is checked here, so that a mistake gets one line that names the field and where it was set. Works
on any dataclass and knows no field by name. tyro only prints the help.
"""

import re
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from grpo.config.leaf import TEXTS, Json, Leaf, as_texts, from_text, json_text, leaves, misfit, shown
from grpo.config.unknown import COMMAND_LINE, PYTHON, OtherName, suggestion
from grpo.errors import GrpoError, one_line

T = TypeVar("T")
NOTHING: Mapping[str, OtherName] = {}
NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*|-inf.*|-nan", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """A checked value and where it was set: "recipe.toml:3" or "command line"."""

    value: Any
    origin: str


def read(
    cls: type,
    argv: Sequence[str],
    *,
    prog: str,
    positionals: Sequence[str] = (),
    other_names: Mapping[str, OtherName] = NOTHING,
) -> dict[str, Setting]:
    """Checked settings by path: TOML files from left to right, then flags; the last one wins.

    `positionals` are fields that may also be given by position. `other_names` answer for names that are not fields;
    they are lower-case and without separators.
    """
    reader = _Reader(leaves(cls), prog, other_names)
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


def from_table(cls: type[T], data: Mapping[str, Any], origin: str) -> T:
    """Builds the dataclass from nested dictionaries, with the same checks as flags."""
    return build(cls, _Reader(leaves(cls), "grpo", NOTHING).table(data, lambda path: origin), prog="grpo")


def section_from_dict(cls: type, name: str, data: Mapping[str, Any], other_names: Mapping[str, OtherName]) -> Any:
    """Builds one section of the dataclass `cls`, given in Python as a dictionary."""
    settings = _Reader(leaves(cls), "grpo", other_names).table({name: dict(data)}, lambda path: PYTHON)
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
    other_names: Mapping[str, OtherName]

    def flag(self, token: str, rest: list[str]) -> tuple[str, Any]:
        """(path, value) of one flag. A flag without `=` takes its value from the front of `rest`."""
        name, equals, text = token.removeprefix("--").partition("=")
        section, dot, last = name.replace("-", "_").rpartition(".")
        positive = self.path(f"{section}{dot}{last.removeprefix('no_')}")
        negated = last.startswith("no_") and positive in self.leaves and self.leaves[positive].kind is bool
        typed = text if equals else rest[0] if rest and not _is_flag(rest[0]) else None
        path = positive if negated else self.known(self.path(name.replace("-", "_")) or name, typed, COMMAND_LINE)
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
            path = self.known(written, value, origin(written))
            value = json_text(value) if self.leaves[path].kind == Json else value
            found[path] = Setting(self.checked(path, value, origin(written)), origin(written))
        return found

    def checked(self, path: str, value: object, origin: str) -> object:
        if why := misfit(self.leaves[path], value):
            raise GrpoError(f"field {path} ({origin}): {why}")
        return value

    def known(self, name: str, value: object, origin: str) -> str:
        """The path of a field; dashes and underscores are the same. Refuses names that are not fields; `value` is what
        was written for it."""
        path = name.replace("-", "_")
        if path in self.leaves:
            return path
        field = f"field {one_line(name, 60)} ({origin})"
        other = self.other_names.get(squeezed(path.rpartition(".")[2]))
        if answer := other.answer(value, self.leaves, origin) if other else "":
            raise GrpoError(f"{field}: {answer}")
        if inner := [leaf for leaf in self.leaves if leaf.startswith(f"{path}.")]:
            raise GrpoError(f"{field}: is a section; set one of its fields: {', '.join(inner)}")
        advice = suggestion(path, self.leaves, origin) or f"see {self.prog} --help"
        raise GrpoError(f"{field}: unknown; {advice}")


def squeezed(name: str) -> str:
    """A name in lower case and without separators, as in the keys of `other_names`."""
    return name.replace("_", "").replace("-", "").lower()


def refuse_unknown(cls: type, given: Mapping[str, Any], other_names: Mapping[str, OtherName]) -> None:
    """Refuses arguments of a dataclass that are not its fields, with the same answers as for flags."""
    known = {each.name for each in fields(cls)}
    for name in given:
        if name not in known:
            _Reader(leaves(cls), "grpo", other_names).known(name, given[name], PYTHON)


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
