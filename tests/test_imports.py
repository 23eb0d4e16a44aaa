"""Imports point one way, down one table of rooms, which docs/design.md shows."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grpo
from grpo.cli.main import COMMANDS, USAGE

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(grpo.__file__).parent
ROOMS = {
    "root": "`errors`, `types`, `kill_points`: what every room may use",
    "core": "the formulas: advantages, loss, KL, GAE; imports torch and nothing else",
    "config": "all options, presets and rules; reads flags and TOML files; imports no torch",
    "distributed": "the ranks of a run on several GPUs or machines: how they talk, divide the work, and start",
    "model": "the policy, its attention and packing, LoRA, critic, optimizer; memory plans (`plan/`)",
    "tasks": "problems, rows of data, and the checkers of answers",
    "rewards": "scoring completions, in processes that can be killed (`pool/`); reward models, judges",
    "rollout": "sampling groups from the training weights: `cpu/` and `cuda/`",
    "episodes": "conversations of several turns: rounds, tools, environments, chat templates",
    "record": "the run's SQLite record, checkpoints, metrics, loggers, findings (`diagnosis/`)",
    "training": "the loop, credit, gradient, dynamic sampling, evaluation, resume, supervised fine-tuning",
    "lab": "the web app: views of runs, and chapters computed by the trainer",
    "cli": "one file per command (`commands/`), and what a terminal shows (`terminal/`)",
}
"""The rooms of src/grpo, each allowed to import itself and the rooms above it. docs/design.md shows this table."""


def imports(path: Path, *, at_load: bool) -> set[str]:
    """Modules a file imports; `at_load` leaves out imports inside functions. TYPE_CHECKING blocks never count."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def module_name(path: Path) -> str:
    parts = ("grpo", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_name(path): path for path in SOURCE.rglob("*.py")}


def room(module: str) -> str:
    """ "root" for the modules that lie beside the folders.

    >>> room("grpo.types"), room("grpo.core.loss"), room("grpo.cli")
    ('root', 'core', 'cli')
    """
    first = module.split(".")[1]
    return first if (SOURCE / first).is_dir() else "root"


def test_a_room_imports_itself_and_the_rooms_above_it() -> None:
    level = {name: i for i, name in enumerate(ROOMS)}
    for module, path in FILES.items():
        if module in ("grpo", "grpo.__main__"):
            continue
        for other in imports(path, at_load=False):
            if other in FILES and other != "grpo":
                assert level[room(other)] <= level[room(module)], f"{module} imports {other}"


def test_the_root_is_small_and_every_folder_is_a_room() -> None:
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == ROOMS.keys() - {"root"}
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "__main__", "errors", "types", "kill_points"}
    assert (SOURCE / "py.typed").exists()


def test_design_shows_the_rooms() -> None:
    rows = "".join(f"| `{name}/` | {what} |\n" for name, what in ROOMS.items()).replace("`root/`", "root")
    assert f"| room | what is in it |\n|---|---|\n{rows}" in (DOCS / "design.md").read_text()


def test_no_cycles() -> None:
    graph = {
        module: {o for o in imports(path, at_load=True) if o in FILES} - {module} for module, path in FILES.items()
    }
    list(TopologicalSorter(graph).static_order())


def test_core_imports_nothing_but_torch() -> None:
    for module, path in FILES.items():
        if module.startswith("grpo.core"):
            outside = {name.split(".")[0] for name in imports(path, at_load=False)} - sys.stdlib_module_names
            assert outside <= {"torch", "grpo"}, module
            assert all(name.startswith("grpo.core") for name in imports(path, at_load=False) if name.startswith("grpo"))


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_light_modules_load_no_torch() -> None:
    light = (
        "config",
        "record.store",
        "record.metrics",
        "tasks",
        "types",
        "cli.terminal.live",
        "cli.main",
        "model.plan",
    )
    modules = ["grpo.model.plan", *(f"grpo.{module}" for module in light), *COMMANDS.values()]
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert not {"torch", "transformers"} & loaded


def test_help_loads_no_torch() -> None:
    loaded = loaded_by("from grpo.cli.main import main\nmain(['--help'])")
    assert not {"torch", "transformers"} & loaded


def test_every_command_has_a_module_and_a_line_of_help() -> None:
    for name, module in COMMANDS.items():
        assert "command" in {node.name for node in ast.parse(FILES[module].read_text()).body if hasattr(node, "name")}
        assert f"\n  grpo {name} " in USAGE


def test_core_loads_no_transformers() -> None:
    loaded = loaded_by("from grpo.core import group_advantages, policy_loss, kl_estimate")
    assert "torch" in loaded
    assert "transformers" not in loaded


def test_public_names_exist() -> None:
    for name in grpo.__all__:
        assert getattr(grpo, name) is not None
    assert callable(grpo.train)
    assert callable(grpo.sft)


def test_functions_and_files_stay_short() -> None:
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 70, f"{module}.{node.name}"
    counted = [
        "model/packing.py",
        "training/loop.py",
        "model/policy.py",
        "rollout/builtin.py",
        *(f"core/{path.name}" for path in SOURCE.glob("core/*.py")),
    ]
    assert sum(len((SOURCE / name).read_text().splitlines()) for name in counted) < 1600
