"""What a run depends on, in short: a resumed run must depend on the same."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from grpo.config import Config
from grpo.config.presets import surrogate_source
from grpo.model.hub import locate_model
from grpo.model.hub.folder import adapter_base
from grpo.rewards.functions import parse, sources
from grpo.tasks.protocol import Task, fingerprint_of


def fingerprints(config: Config, task: Task) -> dict[str, str]:
    """Hashes of model, problems and code, and the versions of what computes."""
    surrogate, data = config.loss.surrogate, fingerprint_of(task)
    computing = ("torch", "transformers", "numpy", *(("peft",) if config.lora.rank else ()))
    versions = {name: _version(name) for name in computing}
    return {
        "model": model_fingerprint(config.model),
        "problems": problems_fingerprint(task, config.seed),
        **({"data": data} if data is not None else {}),
        "task code": _digest([_source(task)]),
        **({"reward code": _digest(sources(parse(config.reward)))} if config.reward else {}),
        **({"surrogate code": _digest([surrogate_source(surrogate)])} if ":" in surrogate else {}),
        "grpo code": _digest(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))),
        "python": platform.python_version(),
        **versions,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # an extra that is not installed, which whoever needs it tells better
        return ""


def model_fingerprint(name: str) -> str:
    """Of a folder's weights and settings, and of the model that an adapter is for; a Hugging Face id stands for
    itself."""
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


def problems_fingerprint(task: Task, seed: int) -> str:
    """Of the held-out problems and the first ones to train on."""
    problems = [*task.heldout(), *task.draw(0, 8, seed)]
    return _digest(json.dumps([problem.id, problem.prompt, problem.answer]).encode() for problem in problems)


def _source(task: Task) -> bytes:
    try:
        return Path(inspect.getfile(type(task))).read_bytes()
    except (TypeError, OSError):  # a class typed at a prompt has no file
        return b""


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]
