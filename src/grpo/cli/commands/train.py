"""`grpo train`: trains with a config from recipes and flags."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.cli.commands.model import dataset_of, find_run
from grpo.config import Config
from grpo.config.schema import parse_train, resolve, to_toml
from grpo.distributed.launch import launched

if TYPE_CHECKING:
    from grpo.record.store import Run


def command(arguments: list[str]) -> int:
    dry_run = "--dry-run" in arguments
    config = of_run(parse_train([argument for argument in arguments if argument != "--dry-run"]))
    if dry_run:
        from grpo.tasks import load_task

        config = resolve(config)
        load_task(config.task, config.data, config.dataset, model=config.model)
        print(to_toml(config), end="")
        return 0
    if (code := launched(config.scale, config.system.device, ["train", *arguments])) is not None:
        return code
    from grpo.cli.terminal.live import pick_view
    from grpo.training.loop import train

    with train(config, callbacks=[pick_view(config.system.quiet)]) as run:
        return exit_code(run)


def of_run(config: Config) -> Config:
    """Where the model is the name of a run: with its checkpoint, and with its task and data if none is named."""
    if not (found := find_run(config.model, config.system.runs)):
        return config
    model, settings = found
    config = replace(config, model=model)
    if config.task or config.data or not settings.get("task"):
        return config
    dataset = dataset_of(config.dataset, settings)
    return replace(config, task=settings["task"], data=settings.get("data", ""), dataset=dataset)


def exit_code(run: Run) -> int:
    """130 for a run that was stopped, so that the caller sees that it is not finished."""
    return 130 if run.status == "stopped" else 0
