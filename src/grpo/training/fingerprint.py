"""Fingerprints of everything that decides a run's numbers. A run resumes only where they are the same."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from grpo.config import Config, SftConfig
from grpo.config.presets import surrogate_source
from grpo.model.hub import locate_model
from grpo.model.hub.folder import adapter_base
from grpo.rewards.functions import parse, sources
from grpo.tasks.protocol import Task, fingerprint_of
from grpo.training.bytecode import describe
from grpo.training.inputs import Inputs
from grpo.types import Problem

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("config", "core", "model", "rewards", "rollout", "tasks", "training")
"""Subpackages whose code affects the numbers, in addition to the top-level modules. Record, lab and command line only
show them; only the lab uses core/explain."""


def fingerprints(config: Config, task: Task, inputs: Inputs | None = None) -> dict[str, str]:
    """Hashes of a GRPO run's model, problems and code, and versions of the libraries that compute."""
    surrogate, inputs = config.loss.surrogate, inputs or Inputs()
    functions = [describe(function).encode() for function in inputs.functions.values()]
    return {
        "model": model_fingerprint(config.model),
        **task_fingerprints(task, config.seed),
        **({"task code": _digest([describe(inputs.task).encode()])} if inputs.task is not None else {}),
        **({"reward code": _digest([*sources(parse(config.reward)), *functions])} if config.reward else {}),
        **({"surrogate code": _digest([surrogate_source(surrogate)])} if ":" in surrogate else {}),
        **code_fingerprints(*(("peft",) if config.lora.rank else ())),
    }


def sft_fingerprints(config: SftConfig, task: Task | None, rows: Sequence[Problem]) -> dict[str, str]:
    """The same for supervised fine-tuning, on a task's gold answers or on rows."""
    return {
        "model": model_fingerprint(config.model),
        **({"data": problems_fingerprint(rows)} if task is None else task_fingerprints(task, config.seed)),
        **code_fingerprints(),
    }


def task_fingerprints(task: Task, seed: int) -> dict[str, str]:
    """Of the held-out problems and the first training problems, of all rows where there are rows, and of the code."""
    data = fingerprint_of(task)
    return {
        "problems": problems_fingerprint([*task.heldout(), *task.draw(0, 8, seed)]),
        **({"data": data} if data is not None else {}),
        "task code": _digest([_source(task)]),
    }


def code_fingerprints(*extras: str) -> dict[str, str]:
    """Of grpo's own code, and the versions of Python, torch, transformers, numpy and the `extras`."""
    files = {*PACKAGE.glob("*.py"), *(file for name in PACKAGES for file in (PACKAGE / name).rglob("*.py"))}
    files -= {*(PACKAGE / "core/explain").rglob("*.py"), PACKAGE / "__main__.py"}
    return {
        "grpo code": _digest(file.read_bytes() for file in sorted(files)),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "numpy", *extras)},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the import reports it
        return ""


def model_fingerprint(name: str) -> str:
    """Hash of a folder's weights and settings, and of an adapter's base model; a Hugging Face id stands for itself."""
    folder = Path(locate_model(name))
    if not folder.is_dir():
        return name
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json"))
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    if base := adapter_base(folder):
        digest.update(model_fingerprint(base).encode())
    return digest.hexdigest()[:16]


def problems_fingerprint(problems: Iterable[Problem]) -> str:
    return _digest(json.dumps([problem.id, problem.prompt, problem.answer]).encode() for problem in problems)


def _source(task: Task) -> bytes:
    try:
        return Path(inspect.getfile(type(task))).read_bytes()
    except (TypeError, OSError):  # a class defined at a prompt has no file
        return b""


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
