"""Imports point one way: types <- core, tasks, rewards, rollout, policy, batch, store <- train <- cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grpo
from grpo.cli import COMMANDS, USAGE

SOURCE = Path(grpo.__file__).parent
LEVELS = [
    {"errors", "faults", "models", "lock", "stop"},
    {"types", "core", "flags", "algorithms", "config", "contradictions", "limits", "metrics", "plan", "schedule"},
    {
        "adapter",
        "attention",
        "budget",
        "loading",
        "fused",
        "product",
        "batch",
        "unpacked",
        "policy",
        "tensorfile",
        "optimizer",
        "tasks",
        "rewards",
        "rollout",
        "rows",
        "store",
        "checkpoints",
        "evaluation",
        "fingerprint",
        "data",
        "machine",
        "preflight",
        "provenance",
        "diagnosis",
        "trace",
    },
    {"credit", "critic", "gradient"},
    {"printed", "report", "progress", "view", "loggers"},
    {"session", "recorder", "refill", "resume", "check"},
    {"train", "sft", "compare"},
    {"lab"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
"""A room may import its own level and those above it in this list."""


FOR_LOOKING = ("tabular", "tokens", "signal")
"""Of the core, what no training step runs."""


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
    return module.split(".")[1]


def test_every_room_has_a_level_and_imports_only_upwards() -> None:
    level = {name: i for i, rooms in enumerate(LEVELS) for name in rooms}
    for module, path in FILES.items():
        if module == "grpo":
            continue
        for other in imports(path, at_load=False):
            if other in FILES and other != "grpo":
                assert level[room(other)] <= level[room(module)], f"{module} imports {other}"


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
    light = ("config", "store", "metrics", "algorithms", "tasks", "types", "view", "cli", "plan")
    modules = [*(f"grpo.{module}" for module in light), *COMMANDS.values()]
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert not {"torch", "transformers"} & loaded


def test_help_loads_no_torch() -> None:
    loaded = loaded_by("from grpo.cli import main\nmain(['--help'])")
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
        "batch.py",
        "train.py",
        "policy.py",
        "rollout/engine.py",
        *(f"core/{p.name}" for p in SOURCE.glob("core/*.py") if p.stem not in FOR_LOOKING),
    ]
    assert sum(len((SOURCE / name).read_text().splitlines()) for name in counted) < 1500
