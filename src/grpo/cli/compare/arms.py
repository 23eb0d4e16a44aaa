"""What is compared: one arm per preset or recipe, each trained once per seed, under names that never change."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.config import Config
from grpo.config.schema import check_run_name, parse_train
from grpo.errors import GrpoError

OURS = ("run", "resume", "seed", "algorithm", "quiet")
"""Settings of a run that the comparison itself makes."""


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
        return [sys.executable, "-m", "grpo", "train", *self.arguments]

    @property
    def folder(self) -> Path:
        return Path(self.config.system.runs)


def settled_name(name: str, passed_on: Sequence[str]) -> str:
    """The name given, or one that the same settings, in the same words, always get."""
    return name or f"compare-{hashlib.sha256(repr(list(passed_on)).encode()).hexdigest()[:6]}"


def make_jobs(algorithms: Sequence[str], seeds: int, name: str, passed_on: Sequence[str]) -> list[Job]:
    """Arms × seeds, all of them checked. With presets named, recipes are settings they share; else each is an arm.

    Seeds go round before arms do: an early end leaves every arm with as many.
    """
    recipes = [word for word in passed_on if word.endswith(".toml")]
    flags = [word for word in passed_on if not word.endswith(".toml")]
    arms: dict[str, list[str]] = {}
    for algorithm in algorithms:
        arms[algorithm] = [*recipes, *flags, "--algorithm", algorithm]
    if not algorithms:
        arms = {Path(recipe).stem: [recipe, *flags] for recipe in recipes}
    if len(arms) < 2 or len(arms) != len(algorithms or recipes):
        raise GrpoError("field algorithms: name two different ones or more (--algorithms grpo,dr_grpo), or two recipes")
    _refuse_ours(flags)
    jobs = []
    for seed in range(1, seeds + 1):
        for arm, arguments in arms.items():
            run = f"{name}-{re.sub(r'[^A-Za-z0-9._-]', '', arm.replace('+', 'p'))}-s{seed}"
            check_run_name(run, "field name")
            whole = (*arguments, "--seed", str(seed), "--run", run, "--resume", "--quiet")
            jobs.append(Job(arm, seed, run, whole, parse_train(list(whole))))
    return jobs


def _refuse_ours(flags: Sequence[str]) -> None:
    for word in flags:
        setting = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and setting in OURS:
            raise GrpoError(f"field {setting} (command line): each run of a comparison has its own; leave it out")
