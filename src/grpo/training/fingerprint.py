"""Fingerprints of everything that decides a run's numbers. A run resumes only where they are the same.

Hashes are kept by name, such as {"model": {"chat_template.jinja": "5f0c…"}}, so that resume.py can name what changed.
Versions are texts, shown as they are.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from grpo.config import Config, SftConfig
from grpo.config.presets import surrogate_source
from grpo.episodes.kinds import named
from grpo.model.hub import cached_commit, locate_model
from grpo.model.hub.folder import adapter_base
from grpo.model.prompt import template_file
from grpo.rewards.functions import parse
from grpo.tasks.protocol import Task, fingerprint_of
from grpo.tasks.row_hash import canonical, column_hashes
from grpo.training.bytecode import code_text
from grpo.training.inputs import Inputs
from grpo.training.source_files import files_of, own_files
from grpo.types import Problem

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("config", "core", "distributed", "episodes", "model", "rewards", "rollout", "tasks", "training")
"""Subpackages whose code affects the numbers, in addition to the top-level modules. Record, lab and command line only
show them; only the lab uses core/explain."""


MODEL_FILES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".bpe", ".spm")
"""Suffixes of the files in a model folder that decide tokens: weights, settings, chat templates, vocabularies."""

Fingerprints = dict[str, str | Mapping[str, str]]


def is_own_code(name: str) -> bool:
    """Whether a fingerprint is of the user's code: task, rewards, tools, environment or surrogate.

    >>> [is_own_code(name) for name in ("surrogate code", "grpo code", "problems")]
    [True, False, False]
    """
    return name.endswith(" code") and name != "grpo code"


def fingerprints(config: Config, task: Task, inputs: Inputs | None = None) -> Fingerprints:
    """Hashes of a GRPO run's model, problems and code, and versions of the libraries that compute."""
    surrogate, inputs = config.loss.surrogate, inputs or Inputs()
    return {
        "model": model_fingerprint(config.model, config.dataset.chat_template),
        **task_fingerprints(task, config.seed),
        **({"task code": {"task": _digest([code_text(inputs.task).encode()])}} if inputs.task is not None else {}),
        **reward_fingerprints("reward code", config.reward, inputs.functions),
        **reward_fingerprints("evaluation.reward code", config.evaluation.reward, inputs.eval_functions),
        **code_of("tool code", config.episodes.tools.split(","), inputs.tools),
        **code_of("environment code", map(str, named(config.episodes.env).values()), inputs.env),
        **({"surrogate code": {surrogate: _digest([surrogate_source(surrogate)])}} if ":" in surrogate else {}),
        **code_fingerprints(*(("peft",) if config.lora.rank else ())),
    }


def reward_fingerprints(name: str, reward: str, functions: Mapping[str, Any]) -> Fingerprints:
    """Of the files of reward functions and reward models, and of the functions handed over; empty where the reward has
    none of them."""
    files: dict[str, Path] = {}
    models: dict[str, str] = {}
    for spec in parse(reward):
        if spec.source == "model":
            source = spec.name.partition("#")[0]
            models |= {f"{source}/{file}": digest for file, digest in _folder_fingerprint(source).items()}
        elif spec.source not in ("python", "task", "judge"):
            files |= files_of(spec.source)
    found = {**{file: _file_digest(path) for file, path in files.items()}, **models, **_handed_over(functions)}
    return {name: found} if found else {}


def code_of(name: str, places: Iterable[str], given: Mapping[str, Any]) -> Fingerprints:
    """Of the files of `file.py:NAME` or `module:NAME` and of the objects handed over; empty where there are none."""
    sources = {place.strip().rpartition(":")[0] for place in places} - {"", "python"}
    files = [file for source in sorted(sources) for file in files_of(source).items()]
    found = {**{file: _file_digest(path) for file, path in files}, **_handed_over(given)}
    return {name: found} if found else {}


def _handed_over(given: Mapping[str, Any]) -> dict[str, str]:
    return {f"python:{name}": _digest([code_text(each).encode()]) for name, each in given.items()}


def sft_fingerprints(config: SftConfig, task: Task | None, rows: Sequence[Problem]) -> Fingerprints:
    """The same for supervised fine-tuning, on a task's gold answers or on rows."""
    return {
        "model": model_fingerprint(config.model, config.dataset.chat_template),
        **({"data": column_hashes(rows)} if task is None else task_fingerprints(task, config.seed)),
        **code_fingerprints(*(("peft",) if config.lora.rank else ())),
    }


def task_fingerprints(task: Task, seed: int) -> Fingerprints:
    """Of the held-out problems and the first training problems, of all rows where there are rows, and of the code."""
    data = fingerprint_of(task)
    first = {"held-out problems": task.heldout(), "training problems": task.draw(0, 8, seed)}
    problems = {name: problems_fingerprint(some) for name, some in first.items()}
    return {
        # Hashes of columns cover all problems, and name what changed.
        **({} if isinstance(data, Mapping) else {"problems": problems}),
        **({"data": data} if data is not None else {}),
        "task code": _source(task),
    }


def code_fingerprints(*extras: str) -> Fingerprints:
    """Of grpo's own code, and the versions of Python, torch, transformers, numpy and the `extras`."""
    files = {*PACKAGE.glob("*.py"), *(file for name in PACKAGES for file in (PACKAGE / name).rglob("*.py"))}
    files -= {*(PACKAGE / "core/explain").rglob("*.py"), PACKAGE / "__main__.py"}
    return {
        "grpo code": {str(file.relative_to(PACKAGE)): _digest([file.read_bytes()]) for file in sorted(files)},
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "numpy", *extras)},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the import reports it
        return ""


def model_fingerprint(name: str, chat_template: str = "") -> dict[str, str]:
    """Hashes of a folder's files by name, and of its base model's for an adapter; of a Hugging Face id its commit; of
    the chat template that replaces the model's."""
    template = {"dataset.chat_template": _file_digest(template_file(chat_template))} if chat_template else {}
    return {**_folder_fingerprint(locate_model(name)), **template}


def _folder_fingerprint(source: str) -> dict[str, str]:
    folder = Path(source)
    if not folder.is_dir():
        return {"commit": cached_commit(source)}
    inside = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    files = sorted(path for path in inside if path.suffix in MODEL_FILES and path.is_file())
    base = adapter_base(folder)
    return {
        **{str(file.relative_to(folder)): _file_digest(file) for file in files},
        **({f"{base}/{file}": digest for file, digest in model_fingerprint(base).items()} if base else {}),
    }


def problems_fingerprint(problems: Iterable[Problem]) -> str:
    """Hash of everything that a prompt or a reward can show of a problem."""
    return _digest(canonical([p.id, p.prompt, p.answer, p.messages, p.columns], p.label) for p in problems)


def _source(task: Task) -> dict[str, str]:
    try:
        file = Path(inspect.getfile(type(task)))
    except (TypeError, OSError):  # a class defined at a prompt has no file
        return {}
    files = {file.name: file} if file.is_relative_to(PACKAGE) else own_files(file)
    return {name: _file_digest(path) for name, path in files.items()}


def _file_digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
