"""Links ES modules into one classic script, which a page from a file can run. No node is needed.

Imports and exports of the lab's modules are regular: each is a statement at the start of a line. Minified vendored
modules have them at the start, at the end, or after a semicolon. Anything else is refused with file and line.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path

from grpo.errors import GrpoError

NAME = r"[A-Za-z_$][\w$]*"
START = r"(?:^|(?<=[;}]))"
"""Where a statement of a minified module begins."""
IMPORT = re.compile(
    rf'import\s*(?:(?P<default>{NAME})|\{{(?P<names>[^}}]*)\}}|\*\s*as\s+(?P<all>{NAME}))\s*from\s*"(?P<path>[^"]+)";?'
)
BARE_IMPORT = re.compile(r'import\s*"(?P<path>[^"]+)";?')
EXPORT_NAMES = re.compile(r'export\s*\{(?P<names>[^}]*)\}(?:\s*from\s*"(?P<path>[^"]+)")?;?')
DECLARATION = re.compile(
    rf"export\s+(?P<kept>(?:async\s+)?function\*?\s*(?P<function>{NAME})|const\s+(?P<const>{NAME})|class\s+(?P<class>{NAME}))"
)
DEFAULT = re.compile(r"export\s+default\s+")
DYNAMIC = re.compile(r"\bimport\(\s*(?:\"(?P<path>[^\"]+)\"|`(?P<pattern>[^`]+)`)\s*\)")
NOT_UNDERSTOOD = re.compile(
    r"(?<!\$)\bimport\s*\(|\bimport\.meta\b|^await\b|^(?:const|let)\b[^\n(]*= await\b", re.MULTILINE
)

RUNTIME = """\
const $modules = {}, $loaded = {};
function $load(name) {
  if (!(name in $loaded)) $modules[name](($loaded[name] = {}), $from(name));
  return $loaded[name];
}
const $from = (name) => async (path) => {
  const target = new URL(path, `lab:///${name}`).pathname.slice(1);
  if (!(target in $modules)) throw new Error(`no module ${target}`);
  return $load(target);
};
const $export = (to, names) => {
  for (const [name, get] of Object.entries(names)) Object.defineProperty(to, name, { get, enumerable: true });
};
"""


@dataclass
class Module:
    """A module as the body of a function of `$exports` and `$import`."""

    name: str
    body: str
    needs: list[str] = field(default_factory=list)
    """Modules imported by statements, in order."""
    later: list[str] = field(default_factory=list)
    """Modules that `import()` may ask for."""


class Linker:
    """Reads modules below a folder; names without a leading dot are looked up in `imports` (an import map)."""

    def __init__(self, folder: Path, imports: dict[str, str]):
        self.folder, self.imports = folder, imports
        self.modules: dict[str, Module] = {}
        """In the order of evaluation."""

    def link(self, entry: str) -> str:
        """One script that runs the module `entry` with all that it imports."""
        self._add(entry, [])
        parts = [
            f"$modules[{json.dumps(module.name)}] = function ($exports, $import) {{\n{module.body}\n}};\n"
            for module in self.modules.values()
        ]
        return f'(() => {{\n"use strict";\n{RUNTIME}{"".join(parts)}$load({json.dumps(entry)});\n}})();\n'

    def _add(self, name: str, importers: list[str]) -> None:
        if name in importers:
            cycle = " -> ".join([*importers[importers.index(name) :], name])
            raise GrpoError(f"lab: the modules import each other in a circle: {cycle}")
        if name in self.modules:
            return
        module = self._read(name)
        for needed in module.needs:
            self._add(needed, [*importers, name])
        self.modules[name] = module
        for wanted in module.later:
            self._add(wanted, [])

    def _read(self, name: str) -> Module:
        file = self.folder / name
        if not file.is_file():
            raise GrpoError(f"lab: no module {name}")
        return _Reader(self, name, file.read_text()).module()

    def resolve(self, path: str, importer: str) -> str:
        if path.startswith("."):
            return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
        if path not in self.imports:
            raise GrpoError(f"lab: {importer} imports {path!r}, which the import map of index.html does not name")
        return self.imports[path]


class _Reader:
    """Turns the statements of one module into those of a function."""

    def __init__(self, linker: Linker, name: str, text: str):
        self.linker, self.name, self.text = linker, name, text
        self.head: list[str] = []
        self.exports: dict[str, str] = {}
        self.result = Module(name, "")

    def module(self) -> Module:
        own = not self.name.startswith("vendor/")
        statement = re.compile(rf"{'^' if own else START}(?:import\s*[\w$\"{{*]|export\b)", re.MULTILINE)
        text, place, kept = self.text, 0, []
        while found := statement.search(text, place):
            kept.append(text[place : found.start()])
            replaced, place = self._statement(found.start())
            # Keeps line numbers, so that an error in the console can be found.
            kept.append(replaced + "\n" * text.count("\n", found.start(), place))
        body = DYNAMIC.sub(self._dynamic, "".join([*kept, text[place:]]))
        self._check(body)
        names = ", ".join(f"{json.dumps(name)}: () => {value}" for name, value in self.exports.items())
        self.result.body = f"{' '.join(self.head)} $export($exports, {{ {names} }});\n{body}"
        return self.result

    def _statement(self, begin: int) -> tuple[str, int]:
        """What replaces the import or export that begins here, and where it ends."""
        if found := IMPORT.match(self.text, begin):
            self._import(found)
            return "", found.end()
        if found := BARE_IMPORT.match(self.text, begin):
            self.head.append(f"{self._load(found['path'])};")
            return "", found.end()
        if found := EXPORT_NAMES.match(self.text, begin):
            source = ""
            if found["path"]:
                self.head.append(f"{self._load(found['path'])};")
                source = f"{self._load(found['path'])}."
            for inner, outer in _pairs(found["names"]):
                self.exports[outer] = source + inner
            return "", found.end()
        if found := DECLARATION.match(self.text, begin):
            name = found["function"] or found["const"] or found["class"]
            self.exports[name] = name
            return found["kept"], found.end()
        if found := DEFAULT.match(self.text, begin):
            self.exports["default"] = "$default"
            return "const $default = ", found.end()
        raise self._refusal(begin, "the linker does not understand this statement")

    def _import(self, found: re.Match[str]) -> None:
        source = self._load(found["path"])
        if found["default"]:
            self.head.append(f"const {found['default']} = {source}.default;")
        elif found["all"]:
            self.head.append(f"const {found['all']} = {source};")
        else:
            names = ", ".join(f"{outer}: {inner}" for outer, inner in _pairs(found["names"]))
            self.head.append(f"const {{ {names} }} = {source};")

    def _load(self, path: str) -> str:
        target = self.linker.resolve(path, self.name)
        if target not in self.result.needs:
            self.result.needs.append(target)
        return f"$load({json.dumps(target)})"

    def _dynamic(self, found: re.Match[str]) -> str:
        """`import("./a.js")`, or every file that a template such as `./chapters/${slug}.js` can name."""
        if found["path"]:
            self.result.later.append(self.linker.resolve(found["path"], self.name))
        else:
            pattern = self.linker.resolve(re.sub(r"\$\{[^}]*\}", "*", found["pattern"]), self.name)
            files = sorted(self.linker.folder.glob(pattern))
            self.result.later += [file.relative_to(self.linker.folder).as_posix() for file in files]
        return "$import" + found[0].removeprefix("import")

    def _check(self, body: str) -> None:
        if left := NOT_UNDERSTOOD.search(body):
            raise GrpoError(f"lab: {self.name}: the linker does not understand {left[0]!r}")

    def _refusal(self, begin: int, why: str) -> GrpoError:
        line = self.text.count("\n", 0, begin) + 1
        return GrpoError(f"lab: {self.name}, line {line}: {why}: {self.text[begin : begin + 60].splitlines()[0]!r}")


def _pairs(names: str) -> list[tuple[str, str]]:
    """The names of `{ a, b as c }`: [("a", "a"), ("b", "c")].

    >>> _pairs(" a, b as c, ")
    [('a', 'a'), ('b', 'c')]
    """
    each = [name.split(" as ") for name in names.replace("\n", " ").split(",") if name.strip()]
    return [(parts[0].strip(), parts[-1].strip()) for parts in each]
