"""Tasks: their problems and the checkers of answers. One file each, here or anywhere: `--task mytask.py`."""

from __future__ import annotations

import copyreg
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.config import Dataset
from grpo.errors import GrpoError
from grpo.tasks.handed_over import Rows, refuse_recorded
from grpo.tasks.protocol import REQUIRED, Task
from grpo.tasks.rows import Source

__all__ = ["TASKS", "Task", "load_file", "load_task", "take_task"]


TASKS: dict[str, str | Callable[..., Task]] = {
    "addition": "grpo.tasks.addition:Addition",
    "arithmetic": "grpo.tasks.arithmetic:Arithmetic",
    "calculator": "grpo.tasks.calculator:Calculator",
    "code": "grpo.tasks.code:Code",
    "countdown": "grpo.tasks.countdown:Countdown",
    "data": "grpo.tasks.datasets:DataTask",
    "env": "grpo.tasks.environment:EnvironmentTask",
    "gameable": "grpo.tasks.gameable:Gameable",
    "gsm8k": "grpo.tasks.datasets:Gsm8k",
    "guess": "grpo.tasks.guess:Guess",
    "math": "grpo.tasks.datasets:Math",
    "reasoning_gym": "grpo.tasks.reasoning_gym:ReasoningGym",
}
"""Task name -> its class, or the place of it. The class may take `variant`, the part of the name after the colon
(`arithmetic:easy`), and `source`, the rows of `--data`."""

OF_ROWS = (
    *("prompt", "answer", "template", "system_prompt", "chat", "max_prompt_tokens"),
    *("subset", "split", "heldout", "heldout_share"),
)
"""Settings of `dataset` that do nothing in a task that makes its own problems. The others are of the chat template,
which any prompt with messages is read through."""


def load_task(
    name: str,
    data: str = "",
    dataset: Dataset | None = None,
    rows: Rows | None = None,
    heldout_rows: Rows | None = None,
    model: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    recorded: bool = False,
) -> Task:
    """A task by name, or from a Python file: `mytask.py`, or `mytask.py:Name` where it defines several. `rows` and
    `heldout_rows` are rows handed over in Python, which `data` and `dataset.heldout` only name. `model`
    is the one whose tokenizer counts the tokens of prompts, for `dataset.max_prompt_tokens`; `tools` are the schemas of
    the tools that prompts describe. `recorded`: the settings are those of a run, not of a user."""
    source = Source(data, dataset or Dataset(), rows, heldout_rows, model, tools, recorded)
    refuse_recorded("task", name, "name another with --task")
    base, _, variant = name.partition(":")
    if base.endswith(".py"):
        return _own_task(Path(base), variant, source)
    if base not in TASKS:
        near = difflib.get_close_matches(base, TASKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise GrpoError(f"field task: no task {name!r}; {hint}name one of {', '.join(sorted(TASKS))}, or a file.py")
    maker = TASKS[base]
    if isinstance(maker, str):
        module, _, inner = maker.partition(":")
        maker = getattr(importlib.import_module(module), inner)
    return _made(maker, base, variant, source)


def take_task(task: Any, source: Source) -> Task:
    """A task handed over in Python: an object, or a class that is called like that of a task's file."""
    if isinstance(task, type):
        task = _made(task, task.__name__, "", source)
    else:
        _refuse_rows(source, "the task handed over", "hand over its class")
    return _with_required_methods(task, f"an object of type {type(task).__name__}")


def _made(maker: Any, name: str, variant: str, source: Source) -> Task:
    wanted = inspect.signature(maker).parameters
    # A required parameter of any other name is the variant.
    variants = [each for each in wanted.values() if each.name == "variant" or each.default is each.empty]
    takes_variant = any(each.name != "source" for each in variants)
    if "source" not in wanted:
        _refuse_rows(source, f"the task {name}", "name another task")
    if variant and not takes_variant:
        raise GrpoError(f"field task: {name} has no variants; leave out :{variant}")
    named = {"source": source} if "source" in wanted else {}
    return maker(*[variant] if takes_variant else (), **named)


def _refuse_rows(source: Source, task: str, way_out: str) -> None:
    """Refuse rows, and settings of rows, for a task that makes its own problems."""
    if not source.recorded and (field := _given(source)):
        raise GrpoError(f"field {field}: {task} makes its own problems; leave it out, or {way_out}")


def _given(source: Source) -> str:
    """The field that gives a task rows, or says how to read them; empty: none."""
    if source.data or source.heldout_rows is not None:
        return "data" if source.data else "eval_data"
    settings = source.settings
    if not settings.heldout_share:  # no user can set 0: grpo check does, to hold out no rows
        settings = replace(settings, heldout_share=Dataset.heldout_share)
    return next((f"dataset.{name}" for name in OF_ROWS if getattr(settings, name) != getattr(Dataset, name)), "")


def _own_task(path: Path, name: str, source: Source) -> Task:
    module = load_file(path, "task")
    if name and not hasattr(module, name):
        raise GrpoError(f"field task: {path} does not define {name}")
    found = [getattr(module, name)] if name else _tasks_in(module)
    if len(found) != 1:
        which = "defines none" if not found else f"defines {', '.join(each.__name__ for each in found)}"
        raise GrpoError(
            f"field task: {path} {which}; give it one class with {', '.join(REQUIRED)}, or name it: {path}:NAME"
        )
    [task] = found
    if isinstance(task, type):
        task = _made(task, str(path), "", source)
    else:
        _refuse_rows(source, f"the task object in {path}", "name a class that takes `source`")
    return _with_required_methods(task, f"the task in {path}")


def _with_required_methods(task: Any, what: str) -> Task:
    if missing := [part for part in REQUIRED if not hasattr(task, part)]:
        raise GrpoError(f"field task: {what} lacks {', '.join(missing)}; see docs/tasks.md")
    return task


def _tasks_in(module: Any) -> list[Any]:
    """The object named `task`, or else the classes of the file with `draw` and `score`."""
    if hasattr(module, "task"):
        return [module.task]
    return [each for each in _classes_in(module) if hasattr(each, "draw") and hasattr(each, "score")]


def load_file(path: Path, field: str) -> Any:
    """A Python file of any folder as a module."""
    if not path.is_file():
        raise GrpoError(f"field {field}: no file {path}")
    name = f"grpo_{field}_{path.stem}"
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # fingerprints look up the file of its classes here
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # it may import files beside it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # border: user code may raise anything
        raise GrpoError(f"{_place_of(error, path)}: {type(error).__name__}: {error}") from error
    for each in _classes_in(module):
        # Another process cannot import this module by its name: it loads the file again.
        copyreg.pickle(each, lambda one: (_restored, (path, field, type(one).__qualname__, one.__getstate__())))
    return module


def _restored(path: Path, field: str, name: str, state: Any) -> Any:
    module = sys.modules.get(f"grpo_{field}_{path.stem}") or load_file(path, field)
    made = object.__new__(getattr(module, name))
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        vars(made).update(state or {})
    return made


def _classes_in(module: Any) -> list[type]:
    return [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]


def _place_of(error: Exception, path: Path) -> str:
    """The last line of this file in the error's traceback."""
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}"
    lines, trace = [], error.__traceback__
    while trace:
        lines += [trace.tb_lineno] if trace.tb_frame.f_code.co_filename == str(path) else []
        trace = trace.tb_next
    return f"{path}:{lines[-1]}" if lines else str(path)
