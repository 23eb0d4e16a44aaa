"""Answers to names that are not fields: what to write instead, in the form of the place where the name was written."""

import difflib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo.config.leaf import TEXTS, Leaf, Text, from_text, misfit, shown

COMMAND_LINE = "command line"
PYTHON = "Python"
SIMILAR = 0.7
"""Least similarity of a name that is suggested (difflib's ratio)."""


@dataclass(frozen=True)
class OtherName:
    """What stands here for a name that is not a field: of another library, or a former one of ours.

    >>> Known = {"group_size": Leaf(int, 8), "loss.scale": Leaf(str, "group_std")}
    >>> OtherName("group_size").answer("16", Known, COMMAND_LINE)
    'is group_size here; write --group-size 16'
    >>> OtherName(values={"batch": {"loss.scale": "batch_std"}}).answer("batch", Known, "recipe.toml:3")
    'write scale = "batch_std" in [loss]'
    """

    path: str = ""
    """Field with the same meaning and values."""
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by value in lower case, where values have other names; none: the name can be left out."""
    why: str = ""
    """The answer if grpo, or this command, does not have such a field."""

    def answer(self, value: object, leaves: Mapping[str, Leaf], origin: str) -> str:
        """What to write instead of the name with this value (None: a flag without a value); empty if unknown."""
        settings = self.values.get("true" if value is None else str(value).lower())
        if settings is not None and settings.keys() <= leaves.keys():
            return f"write {written(settings, leaves, origin)}" if settings else "is the default here; remove it"
        last = self.path.rpartition(".")[2]
        path = next((name for name in (self.path, last) if name in leaves), "")
        if path:
            leaf, value = leaves[path], _joined(value)
            if why := "" if value is None else misfit(leaf, _read(leaf, value)):
                return f"is {path} here: {why}"
            return f"is {path} here; write {written({path: value}, leaves, origin)}"
        if self.why:
            return self.why
        choices = {name: each for name, each in self.values.items() if each and each.keys() <= leaves.keys()}
        listed = ", ".join(f"{written(each, leaves, origin)} for {name}" for name, each in choices.items())
        has_none = "" if value is None else f"{shown(value)} has no counterpart; "
        return f"{has_none}write {listed}" if listed else ""


def written(settings: Mapping[str, Any], leaves: Mapping[str, Leaf], origin: str) -> str:
    """The settings as typed on a command line, in Python or in a TOML file."""
    if origin == COMMAND_LINE:
        return " ".join(_flag(path, value, leaves[path]) for path, value in settings.items())
    lines = []
    for path, value in settings.items():
        section, _, name = path.rpartition(".")
        if not isinstance(value, str | int | float | bool):
            lines.append(path)
        elif origin == PYTHON:
            lines.append(f"{section}={{{name!r}: {value!r}}}" if section else f"{name}={value!r}")
        else:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)} {place(section)}")
    return ", ".join(lines)


def _flag(path: str, value: object, leaf: Leaf) -> str:
    dashed = path.replace("_", "-")
    if leaf.kind is not bool:
        return f"--{dashed} {'VALUE' if value is None else shlex.quote(str(value))}"
    section, dot, name = dashed.rpartition(".")
    return f"--{section}{dot}no-{name}" if str(value).lower() in ("false", "no", "0") else f"--{dashed}"


def place(section: str) -> str:
    """Where a field of this section is written in a TOML file."""
    return f"in [{section}]" if section else "at the top, above every [section]"


def _joined(value: object) -> object:
    """Other libraries have lists where fields here are separated by commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def _read(leaf: Leaf, value: object) -> object:
    """The value as the field would get it."""
    if not isinstance(value, str) or leaf.kind in (Text, TEXTS):
        return value
    if leaf.kind is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower(), value)
    return from_text(leaf.kind, value)


def suggestion(path: str, leaves: Mapping[str, Leaf], origin: str) -> str:
    """A question with the most similar field; empty if none is similar.

    The field is of the section that was written, or of one with a similar name. In another section only a field of
    exactly this name is meant.
    """
    section, _, name = path.lower()[:60].rpartition(".")

    def similarity(leaf: str) -> float:
        return difflib.SequenceMatcher(None, name, leaf.rpartition(".")[2]).ratio()

    near = [leaf for leaf in leaves if similarity(leaf) >= SIMILAR]
    if section:
        sections = difflib.get_close_matches(section, {leaf.rpartition(".")[0] for leaf in leaves})
        inside = [leaf for leaf in near if leaf.rpartition(".")[0] in sections]
        near = inside or [leaf for leaf in near if leaf.rpartition(".")[2] == name]
    if not near:
        return ""
    best = max(near, key=lambda leaf: (similarity(leaf), "." not in leaf))
    if origin in (COMMAND_LINE, PYTHON):
        return f"did you mean {'--' if origin == COMMAND_LINE else ''}{best}?"
    within, _, last = best.rpartition(".")
    return f"did you mean {last} {place(within)}?"
