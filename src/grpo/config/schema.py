"""`Config` and `SftConfig`: read from flags and TOML files, checked, stored. Attribute docstrings are the `--help`.

Sections: sections.py. Limits and forbidden combinations: rules.py.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_type_hints

from grpo.config.leaf import TEXTS, as_texts, leaves, misfit, shown
from grpo.config.models import DEFAULT_TASK, check_model_name, recipe
from grpo.config.other_names import OTHER_NAMES, RENAMED, SFT_NAMES, Named
from grpo.config.parse import build, from_table, read, section_from_dict, show_help
from grpo.config.presets import PRESETS, check_preset
from grpo.config.rules import LIMITS, ZERO_OR_MORE, contradictions, of_scale
from grpo.config.sections import (
    Checkpoints,
    Critic,
    Dataset,
    Episodes,
    Evaluation,
    Lora,
    Loss,
    Optimizer,
    Scale,
    Scoring,
    System,
)
from grpo.errors import GrpoError

T = TypeVar("T")

LOGGERS = ("wandb", "tensorboard", "trackio")
"""Values of `system.log`."""


@dataclass(frozen=True, kw_only=True)
class Config(Named):
    """Train a model on problems whose answers can be checked.

    grpo train [recipe.toml ...] [--field value ...]: defaults, then the algorithm's, then files, then flags; the last
    wins. In a file, --loss.beta 0.1 is written beta = 0.1 under [loss]. A flag may leave out its section: --beta 0.1.
    In Python, a section may be a dictionary, as in Config(algorithm="dapo", loss={"beta": 0.1}). The fields of loss
    that are not set come from the preset; dataclasses.replace(config, algorithm="grpo") keeps those that were set and
    takes the others from the new preset.
    """

    model: str = "tiny"
    """tiny, nano, calculator or guess (embedded), smollm2 (fetched once), a Hugging Face folder or id, or a GGUF file.
    The tasks calculator and guess have the models of their names and their settings as defaults."""
    task: str = ""
    """arithmetic, calculator, guess, addition, countdown, code, gsm8k, math, reasoning_gym:NAME, or your own file.py;
    empty: the rows of data, the problems of an environment, or the embedded model's task."""
    data: str = ""
    """Training rows: a JSONL, CSV or Parquet file, or a Hugging Face dataset (id or folder)."""
    reward: str = ""
    """Rewards that replace the task's checker, separated by commas: file.py:function, module:function, model:ID,
    judge:URL, or task (the checker itself); *0.5 after one is its weight."""
    algorithm: str = "grpo"
    """Preset with the defaults of the loss section: grpo, dr_grpo, dapo, gspo, cispo, sapo, rloo, gigpo,
    reinforce, reinforce++, opo or ppo."""
    steps: int = 120
    """Training steps; each samples, scores and updates."""
    prompts_per_step: int = 16
    """Problems per step."""
    group_size: int = 8
    """Completions per problem."""
    max_new_tokens: int = 48
    """Length limit of a completion; a longer one is truncated."""
    stop: tuple[str, ...] = ()
    """Text that ends a completion, which keeps it, such as "</answer>"; repeat the flag for several (\\n is a new line,
    \\\\ a backslash)."""
    temperature: float = 1.0
    """Temperature of the policy, in sampling and in training."""
    lr: float = 3e-5
    """Learning rate after the warm-up."""
    seed: int = 1
    """The same seed gives the same run."""
    run: str = ""
    """Name of the run; empty: a new name."""
    resume: bool = False
    """Resume the run of that name from its last checkpoint; start it if it does not exist."""
    checkpoint_every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    loss: Loss = field(default_factory=Loss)
    lora: Lora = field(default_factory=Lora)
    critic: Critic = field(default_factory=Critic)
    dataset: Dataset = field(default_factory=Dataset)
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    scoring: Scoring = field(default_factory=Scoring)
    episodes: Episodes = field(default_factory=Episodes)
    scale: Scale = field(default_factory=Scale)
    system: System = field(default_factory=System)

    def __new__(cls, **given: Any) -> "Config":
        config = super().__new__(cls, **given)
        defaults = {name: value for name, value in recipe(given).items() if name not in given}
        object.__setattr__(config, "_defaults", defaults)
        return config

    def __post_init__(self) -> None:
        for name, value in self.__dict__.pop("_defaults").items():
            object.__setattr__(self, name, value)
        _build_sections(self)
        if isinstance(self.algorithm, str) and self.algorithm in PRESETS:  # `validate` refuses others
            object.__setattr__(self, "loss", self.loss.over(PRESETS[self.algorithm].settings))


@dataclass(frozen=True, kw_only=True)
class SftConfig(Named):
    """Supervised fine-tuning on given answers.

    grpo sft MODEL DATA [recipe.toml ...] [--field value ...]: defaults, then files, then flags; the last wins.
    grpo sft MODEL --task NAME --steps 150: the gold answers of a task, so that GRPO starts from some correct ones.
    """

    model: str
    """tiny, nano, calculator, guess, smollm2, a GGUF file, or a Hugging Face folder or id; also the first argument."""
    data: str = ""
    """Rows with a prompt and a completion or answer, or with messages: a JSONL, CSV or Parquet file, or a Hugging Face
    dataset; also the second argument."""
    task: str = ""
    """Task whose problems and gold answers are trained on, without the held-out ones; data is then the task's data."""
    epochs: float = 1.0
    """Passes over the data, rounded up to whole batches; 0.5 is half a pass."""
    steps: int = 0
    """Updates; 0: as many as epochs needs. Required with a task that generates problems without end."""
    batch_size: int = 64
    """Rows per step; the last step of an epoch has those that are left."""
    lr: float = 1e-3
    """Learning rate after the warm-up."""
    warmup_steps: int = 50
    """Steps over which the learning rate rises from 0; at most a tenth of all steps."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate after the warm-up; linear and cosine fall to 0."""
    weight_decay: float = 0.01
    """Decoupled weight decay; multiplied by the learning rate."""
    grad_clip: float = 1.0
    """Largest gradient norm; a larger gradient is scaled down to it."""
    seed: int = 1
    """The same seed gives the same run."""
    run: str = ""
    """Name of the run; empty: a new name."""
    resume: bool = False
    """Resume the run of that name from its last checkpoint; start it if it does not exist."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: only at the end."""
    lora: Lora = field(default_factory=Lora)
    dataset: Dataset = field(default_factory=Dataset)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    scale: Scale = field(default_factory=Scale)
    system: System = field(default_factory=System)

    def __post_init__(self) -> None:
        _build_sections(self)


def _build_sections(config: Config | SftConfig) -> None:
    """Replaces every section that was given as a dictionary by its dataclass, and lists of texts by tuples."""
    kinds = get_type_hints(type(config))
    for each in dataclasses.fields(config):
        value, kind = getattr(config, each.name), kinds[each.name]
        if kind == TEXTS and isinstance(value, str | list):
            object.__setattr__(config, each.name, as_texts(value))
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(kind):
            section = section_from_dict(type(config), each.name, value, OTHER_NAMES)
            object.__setattr__(config, each.name, section)
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind) and not isinstance(value, kind):
            raise GrpoError(f"field {each.name}: expected {kind.__name__}(…) or a dictionary; got {shown(value)}")


def parse_train(argv: list[str]) -> Config:
    """Defaults, then the preset of `algorithm`, then TOML files from left to right, then flags; the last wins."""
    prog = "grpo train"
    if "--help" in argv or "-h" in argv:
        show_help(Config, prog)
    settings = read(Config, argv, prog=prog, other_names=OTHER_NAMES)
    config = build(Config, settings, prog=prog)
    validate(config, {path: setting.origin for path, setting in settings.items()})
    return config


def parse_sft(argv: list[str]) -> SftConfig:
    """Defaults, then TOML files from left to right, then flags and positional arguments; the last wins."""
    prog = "grpo sft"
    if "--help" in argv or "-h" in argv:
        show_help(SftConfig, prog)
    settings = read(SftConfig, argv, prog=prog, positionals=("model", "data"), other_names=SFT_NAMES)
    config = build(SftConfig, settings, prog=prog)
    validate(config, {path: setting.origin for path, setting in settings.items()})
    return config


def validate(config: Config | SftConfig, origins: Mapping[str, str] | None = None) -> None:
    """Refuses invalid values and combinations. `origins` holds where each field was set, for the message."""

    def where(path: str) -> str:
        return f"field {path}" if origins is None else f"field {path} ({origins.get(path, 'default')})"

    limits = LIMITS if isinstance(config, Config) else {**LIMITS, "steps": ZERO_OR_MORE}
    for path, leaf in leaves(type(config)).items():
        value = attrgetter(path)(config)
        if why := misfit(leaf, value):
            raise GrpoError(f"{where(path)}: {why}")
        limit = limits.get(path)
        if limit and not limit.holds(value):
            raise GrpoError(f"{where(path)}: must be {limit.words}; got {shown(value)}")
    for name in filter(None, map(str.strip, config.system.log.split(","))):
        if name not in LOGGERS:
            known = ", ".join(LOGGERS)
            raise GrpoError(f"{where('system.log')}: unknown logger {shown(name)}; known: {known}")
    if config.run:
        check_run_name(config.run, where("run"))
    for path, why in of_scale(config.scale):
        raise GrpoError(f"{where(path)}: {why}")
    if isinstance(config, Config):
        check_preset(config.algorithm, where("algorithm"))
        for path, why in contradictions(config):
            raise GrpoError(f"{where(path)}: {why}")
    elif not config.data and not config.task:
        raise GrpoError(f"{where('data')}: missing; write --data FILE or --task NAME")
    elif not config.task and (config.dataset.heldout or config.dataset.heldout_share != Dataset.heldout_share):
        raise GrpoError(f"{where('dataset.heldout')}: has no effect, because all rows are trained on; add --task data")
    elif config.task and not config.steps:
        raise GrpoError(f"{where('steps')}: required with --task; set --steps, such as 150")


def resolve(config: Config) -> Config:
    """The checked config, with its task filled in: the rows of data, the environment's own problems, or the embedded
    model's task."""
    validate(config)
    check_model_name(config.model)
    if config.task:
        return config
    if config.data:
        return dataclasses.replace(config, task="data")
    if config.episodes.env:
        return dataclasses.replace(config, task="env")
    if config.model not in DEFAULT_TASK:
        known = ", ".join(DEFAULT_TASK)
        raise GrpoError(f"field task: missing; write --task NAME or --data FILE (only {known} have a default task)")
    return dataclasses.replace(config, task=DEFAULT_TASK[config.model])


def check_run_name(name: str, where: str = "field run") -> None:
    """Refuses a run name that is not a valid folder name on every system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        allowed = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise GrpoError(f"{where}: {shown(name)} is not a valid run name; use {allowed}, and no folder")


def as_dict(config: Config | SftConfig) -> dict[str, Any]:
    """The config as nested dictionaries, for JSON: lists of texts are lists, as they are when read again.

    >>> as_dict(Config(stop=("</answer>",)))["stop"]
    ['</answer>']
    """
    return dataclasses.asdict(config, dict_factory=_with_lists)


def _with_lists(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `as_dict`."""
    return from_table(cls, data, "stored config")


def with_current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config, its former field names replaced.

    >>> with_current_names({"steps": 3, "system": {"recompute": True}})
    {'steps': 3, 'system': {'gradient_checkpointing': True}}
    """
    renamed = dict(data)
    for old, new in RENAMED.items():
        (section, before), (_, now) = old.split("."), new.split(".")
        if before in renamed.get(section, {}):
            renamed[section] = {now if name == before else name: value for name, value in renamed[section].items()}
    return renamed


def to_toml(config: Config | SftConfig) -> str:
    """A TOML recipe that gives this config."""
    lines, section = [], ""
    for path in leaves(type(config)):
        parent, _, name = path.rpartition(".")
        if parent != section:
            section = parent
            lines += ["", f"[{section}]"]
        value = attrgetter(path)(config)
        # JSON and TOML write numbers, booleans and text alike, except the delete character.
        lines.append(f"{name} = " + json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f"))
    return "\n".join(lines) + "\n"
