"""Writes docs/api.md from the docstrings of everything in `grpo.__all__` and `grpo.core.__all__`.

python scripts/make_api_page.py          writes the page
python scripts/make_api_page.py --print  prints it
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import grpo
import grpo.core
from grpo.record.reader import RunReader

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
SHOWN_AS = {"Run": RunReader}
"""Methods of `Run` that write are the trainer's: the page shows the class that reads."""
HEAD = """\
# Python API

Generated from the docstrings by `scripts/make_api_page.py`. Edit those, not this page.

Names on this page stay as they are within a major version. All other modules and names are internal and may change.
"""


def page() -> str:
    return "\n".join([HEAD, *_module(grpo, "grpo"), *_module(grpo.core, "grpo.core")]).rstrip() + "\n"


def _module(module: ModuleType, title: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{(inspect.getdoc(module) or '').splitlines()[0]}\n"
    public = {name: SHOWN_AS.get(name) or getattr(module, name) for name in module.__all__}
    for name, value in sorted(public.items(), key=lambda item: inspect.isclass(item[1])):
        yield from _class(f"### class {name}", value) if inspect.isclass(value) else _function(name, value)
    for section, value in _sections(public).items():
        yield from _class(f"#### Section {section}", value)


def _sections(public: dict[str, Any]) -> dict[str, type]:
    """Sections of the configs: fields that are dataclasses of settings."""
    configs = [value for name, value in public.items() if name.endswith("Config")]
    hints = [(name, hint) for config in configs for name, hint in get_type_hints(config).items()]
    return {name: hint for name, hint in hints if is_dataclass(hint)}


def _function(name: str, function: Any) -> Iterator[str]:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    yield f"### {name}\n"
    yield f"```python\n{_signature(name, node)}\n```\n"
    yield _markdown(function)


def _class(heading: str, value: type) -> Iterator[str]:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    assert isinstance(node, ast.ClassDef)
    yield f"{heading}\n"
    yield _markdown(value)
    rows = [*_members(node)]
    if rows:
        yield "| member | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def _members(node: ast.ClassDef) -> Iterator[str]:
    """A row of the table for each public field, property and method."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = f" = {_default(statement.value)}" if statement.value else ""
            if not statement.target.id.startswith("_"):
                yield _row(f"{statement.target.id}: {ast.unparse(statement.annotation)}{default}", _string(after))
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            is_property = any(ast.unparse(decorator) == "property" for decorator in statement.decorator_list)
            name = statement.name if is_property else _signature(statement.name, statement).removeprefix("def ")
            yield _row(name, ast.get_docstring(statement) or "")


def _default(value: ast.expr) -> str:
    """
    >>> _default(ast.parse("field(default_factory=dict)", mode="eval").body)
    'dict()'
    """
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return next(f"{ast.unparse(word.value)}()" for word in value.keywords if word.arg == "default_factory")
    return ast.unparse(value)


def _row(member: str, text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split())
    cell = member.replace("|", "\\|")
    return f"| `{cell}` | {first.replace('|', chr(92) + '|')} |"


def _string(statement: ast.stmt | None) -> str:
    """The text of a string that stands after a field."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return inspect.cleandoc(str(statement.value.value))
    return ""


def _signature(name: str, node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    for first in ("self", "cls"):
        arguments = arguments.removeprefix(f"{first}, ") if arguments != first else ""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {name}({arguments}){result}"


def _markdown(value: Any) -> str:
    """A docstring, its examples as code."""
    blocks = ((value.__doc__ and inspect.getdoc(value)) or "").split("\n\n")
    return "\n\n".join(f"```python\n{block}\n```" if block.startswith(">>>") else block for block in blocks) + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(page(), end="")
    else:
        PAGE.write_text(page(), encoding="utf-8")
