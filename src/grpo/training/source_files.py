"""The files that people's code consists of: the file of a reward or a task, and the modules under its folder that it
imports. They are found in the text, so nothing is imported here."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
PACKAGE = Path(__file__).parents[1]


def files_of(source: str) -> dict[str, Path]:
    """By name: the files of a reward's source, `folder/mine.py` or a module. Of an installed module, and of one of
    grpo's own, only its file."""
    if source.endswith(".py"):
        file = Path(source).resolve() if Path(source).is_symlink() else Path(source)
        return {str(file.parent / name): path for name, path in own_files(file).items()}
    spec = _spec(source)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return {}
    file = Path(spec.origin)
    root = file.parents[source.count(".") + (file.name == "__init__.py")]
    if INSTALLED & {*root.parts} or file.is_relative_to(PACKAGE):
        return {source: file}
    return own_files(file, root)


def own_files(file: Path, root: Path | None = None) -> dict[str, Path]:
    """The file and the modules under `root` that it imports, directly or through each other, by their path from there.
    `root`, from which imports start, is the file's folder where none is given; of a symbolic link, its target's."""
    file = file.resolve()
    root, queue, found = root.resolve() if root else file.parent, [file], set[Path]()
    while queue:
        path = queue.pop()
        if path not in found and path.is_file() and path.is_relative_to(root):
            found.add(path)
            queue += _imported(path, root)
    return {str(path.relative_to(root)): path for path in sorted(found)}


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """Where the modules that a file imports would be, if they were under `root`."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):  # border: people's file; loading it reports the error
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            base, names = root, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(file.parents):
            base = file.parents[node.level - 1] if node.level else root
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in names):
            for count in range(1, len(parts) + 1):  # importing a.b imports a too
                place = base.joinpath(*parts[:count])
                yield from (place.with_name(f"{place.name}.py"), place / "__init__.py")


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # loading reports it
        return None
