"""The runs of a comparison: one arm per preset or recipe, trained once per seed, under fixed names."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.cli.commands.train import of_run
from grpo.config import Config
from grpo.config.schema import check_run_name, parse_train
from grpo.distributed.launch import python_arguments
from grpo.errors import GrpoError

OWN_SETTINGS = ("run", "resume", "seed", "algorithm", "quiet")
"""Settings of a run that the comparison sets itself."""


@dataclass(frozen=True)
class Job:
    """One run of an arm."""

    arm: str
    seed: int
    name: str
    arguments: tuple[str, ...]
    config: Config

    @property
    def command(self) -> list[str]:
        return [sys.executable, *python_arguments(["train", *self.arguments])]

    @property
    def folder(self) -> Path:
        return Path(self.config.system.runs)


def default_name(name: str, train_arguments: Sequence[str]) -> str:
    """The given name, or a hash of the arguments: the same command always gets the same name."""
    return name or f"compare-{hashlib.sha256(repr(list(train_arguments)).encode()).hexdigest()[:6]}"


def make_jobs(algorithms: Sequence[str], seeds: int, name: str, train_arguments: Sequence[str]) -> list[Job]:
    """Validated runs of all arms and seeds. With `algorithms`, recipes are shared settings; without, each is an arm.

    All arms of a seed come before the next seed, so that an early end leaves every arm with equally many.
    """
    recipes = [word for word in train_arguments if word.endswith(".toml")]
    flags = [word for word in train_arguments if not word.endswith(".toml")]
    arms: dict[str, list[str]] = {}
    for algorithm in algorithms:
        arms[algorithm] = [*recipes, *flags, "--algorithm", algorithm]
    if not algorithms:
        arms = {Path(recipe).stem: [recipe, *flags] for recipe in recipes}
    if len(arms) < 2 or len(arms) != len(algorithms or recipes):
        raise GrpoError("field algorithms: name at least two different ones (--algorithms A,B), or two recipes")
    _refuse_own_settings(flags)
    jobs = []
    for seed in range(1, seeds + 1):
        for arm, arguments in arms.items():
            run = f"{name}-{re.sub(r'[^A-Za-z0-9._-]', '', arm.replace('+', 'p'))}-s{seed}"
            check_run_name(run, "field name")
            whole = (*arguments, "--seed", str(seed), "--run", run, "--resume", "--quiet")
            config = of_run(parse_train(list(whole)))
            if config.scale.nodes > 1:
                raise GrpoError("field scale.nodes: a comparison trains on one host; leave it out")
            jobs.append(Job(arm, seed, run, whole, config))
    return jobs


def _refuse_own_settings(flags: Sequence[str]) -> None:
    for word in flags:
        setting = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and setting in OWN_SETTINGS:
            raise GrpoError(f"field {setting} (command line): is set by the comparison for each run; leave it out")
