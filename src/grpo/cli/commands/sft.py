"""`grpo sft`: supervised fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from grpo.cli.commands.model import find_run
from grpo.cli.commands.train import exit_code
from grpo.config.schema import parse_sft, to_toml
from grpo.distributed.launch import launched


def command(arguments: list[str]) -> int:
    dry_run = "--dry-run" in arguments
    config = parse_sft([argument for argument in arguments if argument != "--dry-run"])
    if found := find_run(config.model, config.system.runs):
        config = replace(config, model=found[0])
    if dry_run:
        print(to_toml(config), end="")
        return 0
    if (code := launched(config.scale, config.system.device, ["sft", *arguments])) is not None:
        return code
    from grpo.cli.terminal.live import pick_view
    from grpo.training.sft import sft

    with sft(config, callbacks=[pick_view(config.system.quiet)]) as run:
        return exit_code(run)
