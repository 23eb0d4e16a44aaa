"""`grpo export`: writes a trained model as a Hugging Face folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo.cli.commands.model import model_of
from grpo.cli.commands.options import parse
from grpo.errors import GrpoError

PROG = "grpo export"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the model of a run's last checkpoint as a Hugging Face folder."""

    run: str
    """The run; also the first argument."""
    folder: str
    """Folder to write; also the second argument."""
    best: bool = False
    """Export the checkpoint with the best held-out accuracy instead of the last."""
    adapter: bool = False
    """Export LoRA adapters as they are, for peft, instead of merging them into the model."""
    runs: str = "runs"
    """Folder that holds the runs."""


def command(arguments: list[str]) -> int:
    options = parse(ExportOptions, arguments, PROG, ("run", "folder"))
    target = Path(options.folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GrpoError(f"field folder: {target} exists and is not empty; name a new one")
    from grpo.model.hub.folder import adapter_base
    from grpo.record.store import Run

    with Run.open(Path(options.runs), options.run, readonly=True) as run:
        model = model_of(run, best=options.best)
        base = adapter_base(model)
        if options.adapter and not base:
            raise GrpoError(f"field adapter: {options.run} has no adapter (it trained the whole model); leave it out")
        if options.adapter and base and adapter_base(Path(base)):
            raise GrpoError(
                f"field adapter: {options.run} was trained on another adapter, {base}; leave it out to merge both"
            )
        if options.adapter:
            shutil.copytree(model, target, dirs_exist_ok=True)
        elif base:
            from grpo.model.files import save_model
            from grpo.model.load import load_policy

            save_model(load_policy(str(model)), target)
        else:
            from grpo.model.files import copy_model

            copy_model(model, target)
    kind = "with peft, on the model it was trained on" if options.adapter else "as any Hugging Face model"
    print(f"{options.run} ({model.parent.name}) is in {target}: load it {kind}")
    return 0
