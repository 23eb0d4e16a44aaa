"""Resolves MODEL on the command line: a run's checkpoint or a model by name, and its task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.config import Dataset, Episodes, Scoring, System
from grpo.config.models import DEFAULT_TASK, check_model_name
from grpo.config.schema import from_dict
from grpo.distributed.world import ALONE, World
from grpo.errors import GrpoError

if TYPE_CHECKING:
    from grpo.cli.commands.options import SamplingOptions
    from grpo.episodes.answers import Replier
    from grpo.model.policy import Policy
    from grpo.record.store import Run
    from grpo.rewards import Scorer
    from grpo.rollout.builtin import Engine


def load(name: str, runs: str, dataset: Dataset, world: World = ALONE) -> tuple[Policy, dict[str, Any]]:
    """The policy and the settings of its run; for a model by name, only the task it was made for."""
    from grpo.model.device import prepare_machine
    from grpo.model.load import load_policy
    from grpo.model.prompt import set_chat_template

    found = find_run(name, runs)
    model, settings = found or (name, {"task": DEFAULT_TASK.get(name, "")})
    system = from_dict(System, settings.get("system", {}))
    policy = load_policy(model, **available_placement(system))
    prepare_machine(system, policy, world.cores)
    set_chat_template(policy.tokenizer, dataset.chat_template)
    policy.chat_template_kwargs = template_kwargs(dataset, settings)
    return policy, settings


def template_kwargs(dataset: Dataset, settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the chat template: those of the command line, or else of the run."""
    return dataset.template_kwargs or from_dict(Dataset, settings.get("dataset", {})).template_kwargs


def available_placement(system: System) -> dict[str, Any]:
    """Device and precision of the run; the CPU in float32 where the run used a GPU and this machine has none."""
    import torch

    from grpo.model.device import placement

    needs_gpu = system.device.startswith("cuda") or system.dtype in ("mixed", "half")
    return {} if needs_gpu and not torch.cuda.is_available() else placement(system)


def find_run(name: str, runs: str) -> tuple[str, dict[str, Any]] | None:
    """Model folder and settings of the run of that name; None for a model. Refuses a name that can be neither."""
    if name in DEFAULT_TASK or Path(name).exists():
        return None
    from grpo.record.reader import recorded_names
    from grpo.record.store import Run

    if not (Path(runs) / name / "run.db").is_file():
        check_model_name(name, runs=recorded_names(Path(runs)))
        return None
    with Run.open(Path(runs), name, readonly=True) as run:
        return str(model_of(run)), run.config


def model_path(name: str, runs: str) -> str:
    """The model folder of the run of that name, or else the name."""
    found = find_run(name, runs)
    return found[0] if found else name


def model_of(run: Run, *, best: bool = False) -> Path:
    from grpo.record.checkpoints import Checkpoints

    checkpoints, best_step = Checkpoints(run.path), run.best_step()
    checkpoint = checkpoints.at(best_step) if best and best_step is not None else checkpoints.newest()
    if checkpoint is None and best:
        raise GrpoError(
            f"run {run.name}: has no checkpoint of its best evaluation (step {best_step}); leave out --best"
        )
    if checkpoint is None:
        raise GrpoError(f"run {run.name}: has no checkpoint yet; wait for one, or train with --checkpoint-every N")
    if damage := checkpoint.damage():
        raise GrpoError(f"run {run.name}: {damage}; resume the run, which uses the checkpoint before it")
    return checkpoint.model


def find_scorer(
    options: SamplingOptions,
    settings: dict[str, Any],
    device: str,
    world: World = ALONE,
    *,
    replier: Replier | None = None,
    evaluation: bool = False,
) -> Scorer | None:
    """The task of the options, or else the one the model was trained on, with its rewards, or those of its evaluations.
    `replier`: who answers by the settings. The caller closes it."""
    from grpo.episodes.environment_replies import EnvironmentReplies
    from grpo.rewards import Scorer
    from grpo.rewards.share import share_of_rank
    from grpo.tasks import load_task

    scoring = share_of_rank(from_dict(Scoring, settings.get("scoring", {})), world)
    environment = replier if isinstance(replier, EnvironmentReplies) else None
    make = partial(Scorer, scoring=scoring, device=device, environment=environment)
    load_with = partial(
        load_task, model=model_path(options.model, options.runs), tools=replier.schemas if replier else ()
    )
    # As in training, an environment makes the problems; a run has recorded its task.
    given = (
        options.task or (options.data and "data") or ("env" if options.episodes.env and "model" not in settings else "")
    )
    if given:
        for name in _unused(options, settings) if world.first else ():
            print(
                f"grpo: dataset.{name} of the run is not used with --data; add it, or name the rows with "
                "--dataset.heldout",
                file=sys.stderr,
            )
        return make(load_with(given, options.data, options.dataset), options.reward)
    if not settings.get("task"):
        return None
    trained_on = settings.get("reward", "")
    measured = (evaluation and settings.get("evaluation", {}).get("reward")) or trained_on
    # Chat templates are the tokenizer's: `load` reads them.
    dataset = replace(dataset_of(options.dataset, settings), chat_template="")
    changed = [name for name in options.dataset.fields_set if not name.startswith("chat_template")]
    task = load_with(settings["task"], settings.get("data", ""), dataset, recorded=not changed)
    return make(task, options.reward or measured)


def episode_settings(options: Episodes, settings: dict[str, Any]) -> Episodes:
    """Those of the run, with what the options change."""
    return replace(from_dict(Episodes, settings.get("episodes", {})), **given_of(options))


def dataset_of(options: Dataset, settings: dict[str, Any]) -> Dataset:
    """That of the run, with what the options change."""
    return replace(from_dict(Dataset, settings.get("dataset", {})), **given_of(options))


def _unused(options: SamplingOptions, settings: dict[str, Any]) -> list[str]:
    """Settings of the run that write its prompts, which the rows of the options do not get."""
    recorded, default = from_dict(Dataset, settings.get("dataset", {})), Dataset()
    written_by = {"template", "system_prompt", "chat"} if options.data else set()
    changed = {name for name in written_by if getattr(recorded, name) != getattr(default, name)}
    return sorted(changed - options.dataset.fields_set)


def given_of(options: Dataset | Episodes) -> dict[str, Any]:
    """The options that were given, which may be the defaults where a run has other values."""
    return {name: getattr(options, name) for name in options.fields_set}


@contextmanager
def engine_for(
    policy: Policy, scorer: Scorer | None, episodes: Episodes, replier: Replier | None = None
) -> Iterator[Engine]:
    """Samples from the policy, and plays episodes where the replier or the task answers."""
    from grpo.episodes import play
    from grpo.episodes.start import start_answers
    from grpo.rollout.builtin import Engine

    task, scoring = (scorer.task, scorer.scoring) if scorer else (None, Scoring())
    answers = start_answers(episodes, scoring, task, replier)
    with answers or nullcontext():
        yield Engine(policy, episodes=play.Episodes(episodes, answers, policy) if answers else None)
