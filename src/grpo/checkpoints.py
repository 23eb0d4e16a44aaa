"""Checkpoints of a run: folders checkpoints/step-000050 with everything needed to go on from there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.store import Run

if TYPE_CHECKING:
    import torch

CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A folder checkpoints/step-000050: model/ (a plain Hugging Face folder), optimizer.safetensors, state.json."""

    step: int
    """Steps the run had taken."""
    path: Path
    state: dict[str, Any]

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self.path / "optimizer.safetensors")


def save_checkpoint(
    run: Run,
    step: int,
    *,
    save_model: Callable[[Path], None],
    optimizer_tensors: dict[str, torch.Tensor],
    state: dict[str, Any],
) -> None:
    """Write aside, then rename: a folder named step-… is always whole. Keeps the newest CHECKPOINTS_KEPT."""
    from safetensors.torch import save_file

    folder = run.path / "checkpoints"
    for abandoned in folder.glob(".tmp-*"):  # by a run that was killed here
        shutil.rmtree(abandoned)
    final = folder / f"step-{step:06d}"
    aside = folder / f".tmp-{final.name}"
    (aside / "model").mkdir(parents=True)
    save_model(aside / "model")
    save_file(optimizer_tensors, aside / "optimizer.safetensors")
    (aside / "state.json").write_text(json.dumps(state))
    if final.exists():
        _remove(final)
    aside.rename(final)
    for _, old in _folders(run)[:-CHECKPOINTS_KEPT]:
        _remove(old)


def latest_checkpoint(run: Run) -> Checkpoint | None:
    folders = _folders(run)
    if not folders:
        return None
    step, path = folders[-1]
    return Checkpoint(step, path, json.loads((path / "state.json").read_text()))


def forget_later(run: Run, step: int) -> None:
    """Removes checkpoints beyond `step`: their future is about to be made again."""
    for checkpoint_step, path in _folders(run):
        if checkpoint_step > step:
            _remove(path)


def _folders(run: Run) -> list[tuple[int, Path]]:
    """(step, folder), oldest first."""
    found = (run.path / "checkpoints").glob("step-*")
    numbered = ((path.name.removeprefix("step-"), path) for path in found)
    return sorted((int(number), path) for number, path in numbered if number.isdecimal())


def _remove(path: Path) -> None:
    """Rename first: killed halfway, the rest of it is not taken for a checkpoint."""
    shutil.rmtree(path.rename(path.with_name(f".tmp-removed-{path.name}")))
