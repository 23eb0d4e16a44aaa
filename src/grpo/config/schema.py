"""All options. Attribute docstrings are the `--help`; a TOML file is flags written down. Imports no torch."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeVar

from grpo.config.models import DEFAULT_TASK, check_model_name
from grpo.config.parse import build, from_table, leaves, misfit, read, section_from_dict, show_help, shown
from grpo.config.presets import PRESETS, Loss, check_preset
from grpo.config.rules import LIMITS, ZERO_OR_MORE, contradictions
from grpo.errors import GrpoError

T = TypeVar("T")

LOGGERS = ("wandb", "tensorboard", "trackio")
"""What `system.log` may name."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the weights move: AdamW."""

    epochs: int = 1
    """Passes over the completions of a step."""
    minibatches: int = 1
    """Updates per pass, each on its share of whole groups."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up; linear and cosine fall to 0."""
    weight_decay: float = 0.0
    """Pull of the weights towards 0, times the learning rate."""
    adam_beta1: float = 0.9
    """Memory of the gradient's mean."""
    adam_beta2: float = 0.99
    """Memory of the gradient's square."""
    grad_clip: float = 1.0
    """Longest gradient; a longer one is shortened to this norm."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Adapters: small matrices beside the model's frozen weights, which are then all that is trained. Needs peft."""

    rank: int = 0
    """Their inner width; 0: none, the whole model is trained."""
    alpha: float = 32.0
    """What they add is multiplied by alpha / rank."""
    targets: str = ""
    """Linear layers that get one, such as q_proj,v_proj; empty: all but the output layer."""


@dataclass(frozen=True, kw_only=True)
class Critic:
    """What a reward is expected to be, token by token: trained only where loss.baseline is value (PPO)."""

    model: Literal["separate", "shared"] = "separate"
    """A network of its own, as large as the policy, or one more output of the policy's network."""
    lr: float = 1e-4
    """Learning rate of a separate critic, or of the shared one's output; scheduled like the policy's."""
    warmup_steps: int = 10
    """First steps, in which only the critic learns."""
    clip: float = 0.2
    """How far an update may move a value and still be rewarded for it; 0: as far as it likes."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 0.95
    """Weight of far rewards against the critic's word: 1 trusts rewards alone, 0 the critic's next value."""
    weight: float = 0.5
    """Weight of the shared critic's error in the policy's loss."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How progress is measured, on problems that are never trained on."""

    every: int = 20
    """Steps between evaluations; 0: only before and after the run."""
    problems: int = 500
    """How many held-out problems an evaluation asks."""
    probes: int = 4
    """Pinned problems whose completions are kept at each evaluation, to read side by side."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """How the rows of `data` become problems. For tasks that read rows: data, gsm8k, math, and your own."""

    prompt: str = ""
    """Column of the question; empty: prompt, question, problem, instruction or input, the first there is."""
    answer: str = ""
    """Column of the gold answer; empty: answer, gold, target, label, solution or output, the first there is."""
    template: str = ""
    """What is asked, columns in braces: "Q: {question}\\nA:" (\\n is a new line); empty: the task's own."""
    system_prompt: str = ""
    """System message of the conversation."""
    chat: bool = True
    """Ask as a conversation where the model has a chat template; otherwise as plain text."""
    subset: str = ""
    """Configuration of a Hugging Face dataset, such as main."""
    split: str = "train"
    """Split of a Hugging Face dataset or folder."""
    heldout: str = ""
    """Held-out rows: another split, or another file; empty: a share of the rows, chosen by their hash."""
    heldout_share: float = 0.1
    """How much of the rows that share is."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """What a run can go on from. How often is `checkpoint_every`, at the top."""

    keep: int = 2
    """How many of the newest stay; the one with the best held-out accuracy stays besides."""
    disk_full: Literal["stop", "wait"] = "stop"
    """With no space left, stop with everything so far intact, or wait until there is some."""
    allow_change: bool = False
    """Resume even where settings, model, problems, code or versions are not those the run began with."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How completions are scored. Which rewards is `reward`, at the top."""

    workers: int = 0
    """Processes that score; 0: one per core, at most 16."""
    seconds: float = 10.0
    """Longest one call of a reward may take; the completion that takes longer scores 0."""
    memory_gb: float = 2.0
    """Memory that a call may take; the completion that takes more scores 0."""
    most_failures: float = 0.1
    """Share of the last completions that a reward may fail on, time-outs included, before the run stops."""
    judge_model: str = ""
    """Model that a judge is asked for; empty: whatever its server offers first."""
    judge_prompt: str = ""
    """Text file that asks a judge, with {prompt}, {answer} and {completion} in it; empty: a plain one."""
    judge_seconds: float = 60.0
    """Longest a judge may take to answer."""
    judge_retries: int = 3
    """How often a judge is asked again after an error."""
    judge_budget: int = 100000
    """Requests a run may send to a judge, those asked again included."""


@dataclass(frozen=True, kw_only=True)
class System:
    """The machine. Apart from the number format, nothing here changes what is computed."""

    device: str = "auto"
    """cpu, cuda, cuda:1 and so on; auto takes a GPU where there is one."""
    dtype: Literal["auto", "mixed", "half", "float32", "bfloat16"] = "auto"
    """Number format; mixed: float32 weights that compute in bfloat16; half: in float16, which rounds eight times finer,
    for models whose numbers stay below 65504; auto: mixed on a GPU, float32 on a CPU."""
    threads: int = 0
    """CPU threads; 0: one for a small model, which more would only slow down on a busy machine, else one per core."""
    token_budget: int = 0
    """Tokens per micro-batch; 0: what a GPU's free memory holds, found once and kept, and 16384 on a CPU. Halved where
    memory runs out all the same."""
    gradient_checkpointing: bool = False
    """Keep less for the backward pass and compute it again: a third slower, with far less memory (GPU)."""
    max_concurrent_completions: int = 0
    """Most completions sampled at a time, the rest waits; 0: what free memory holds, found once and kept."""
    runs: str = "runs"
    """Folder that holds the runs."""
    token_groups: int = 1
    """Groups per step whose every token is recorded."""
    deterministic: bool = False
    """On a GPU, use only kernels that give the same bits every time; a CPU's do so anyway."""
    quiet: bool = False
    """Print only warnings and the result."""
    log: str = ""
    """Log to wandb, tensorboard or trackio besides, or to several, with commas between them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Train a model on problems whose answers can be checked.

    grpo train [recipe.toml ...] [--field value ...]: defaults, then the algorithm's, then files, then flags; the last
    wins. In a file, --loss.beta 0.1 is written beta = 0.1 under [loss]. A flag may leave out its section: --beta 0.1.
    In Python, a section may be a dictionary, as in Config(algorithm="dapo", loss={"beta": 0.1}). The fields of loss
    that are not set come from the preset; dataclasses.replace(config, algorithm="grpo") keeps those that were set and
    takes the others from the new preset.
    """

    model: str = "tiny"
    """tiny or nano (embedded), smollm2 (fetched once), a Hugging Face folder or id, or a GGUF file."""
    task: str = ""
    """What to learn: arithmetic, addition, countdown, code, gsm8k, math, reasoning_gym:NAME, or your own file.py;
    empty: to answer the rows of data, or else the embedded model's own task."""
    data: str = ""
    """Rows to learn from: a JSONL, CSV or Parquet file, or a Hugging Face dataset (id or folder)."""
    reward: str = ""
    """What pays instead of the task's own check: file.py:function or module:function, with *0.5 for a weight, model:ID,
    judge:URL, task; several with commas between them."""
    algorithm: str = "grpo"
    """Preset that gives the loss section its defaults: grpo, dr_grpo, dapo, gspo, cispo, sapo, rloo, reinforce,
    reinforce++, opo or ppo."""
    steps: int = 120
    """Rounds of sampling, scoring and updating."""
    prompts_per_step: int = 16
    """Problems asked in a step."""
    group_size: int = 8
    """Completions of each problem, compared with each other."""
    max_new_tokens: int = 48
    """Longest completion; a longer one is cut."""
    temperature: float = 1.0
    """Of the policy, in sampling and in training alike."""
    lr: float = 3e-5
    """Learning rate after the warm-up."""
    seed: int = 1
    """The same seed gives the same run."""
    run: str = ""
    """Name of the run; empty: a fresh one."""
    resume: bool = False
    """Go on with the run of that name from its last checkpoint; start it if it does not exist."""
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
    system: System = field(default_factory=System)

    def __post_init__(self) -> None:
        _build_sections(self)
        if self.algorithm in PRESETS:
            object.__setattr__(self, "loss", self.loss.over(PRESETS[self.algorithm].settings))


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning on written answers.

    grpo sft MODEL DATA [recipe.toml ...] [--field value ...]: defaults, then files, then flags; the last wins.
    grpo sft MODEL --task NAME --steps 150: the gold answers of a task, until GRPO sometimes sees a right one.
    """

    model: str
    """tiny, nano, smollm2, a GGUF file, or a Hugging Face folder or id; also the first argument."""
    data: str = ""
    """Rows with a question and a written answer, or with messages: a JSONL, CSV or Parquet file, or a Hugging Face
    dataset; also the second argument."""
    task: str = ""
    """Instead of rows: a task's problems, without the held-out ones, and their gold answers; data is then its own."""
    epochs: float = 1.0
    """Passes over the data; half a pass is 0.5."""
    steps: int = 0
    """Updates; 0: as many as the epochs make (a task has no end: name them)."""
    batch_size: int = 64
    """Rows per step."""
    lr: float = 1e-3
    """Learning rate after the warm-up."""
    warmup_steps: int = 50
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate goes on after the warm-up; linear and cosine fall to 0."""
    weight_decay: float = 0.01
    """Pull of the weights towards 0, times the learning rate."""
    grad_clip: float = 1.0
    """Longest gradient; a longer one is shortened to this norm."""
    seed: int = 1
    """The same seed gives the same run."""
    run: str = ""
    """Name of the run; empty: a fresh one."""
    resume: bool = False
    """Resume the run of that name from its last checkpoint; start it if it does not exist."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: only at the end."""
    dataset: Dataset = field(default_factory=Dataset)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    system: System = field(default_factory=System)

    def __post_init__(self) -> None:
        _build_sections(self)


def _build_sections(config: Config | SftConfig) -> None:
    """Replaces every section that was given as a dictionary by its dataclass."""
    for each in dataclasses.fields(config):
        if isinstance(value := getattr(config, each.name), Mapping):
            section = section_from_dict(type(config), each.name, value, _REFUSED)
            object.__setattr__(config, each.name, section)


_WHY_FULL_DISTRIBUTION = (
    "not in training: completions would come from a cut-off distribution, so the policy ratio would compare log-probs "
    "of two different distributions; remove it (grpo sample and grpo eval accept it)"
)
RENAMED = {
    "loss.refill": "loss.dynamic_sampling",
    "system.recompute": "system.gradient_checkpointing",
    "system.rows_at_once": "system.max_concurrent_completions",
}
"""Fields by a former name. Flags and files are refused with the new name; records of older runs are translated."""
_MOVED = {old.rpartition(".")[2].replace("_", ""): f"is now {new}" for old, new in RENAMED.items()}
_REFUSED = dict.fromkeys(("topp", "topk", "minp"), _WHY_FULL_DISTRIBUTION) | _MOVED


def parse_train(argv: list[str]) -> Config:
    """Defaults, then the preset of `algorithm`, then TOML files from left to right, then flags; the last wins."""
    prog = "grpo train"
    if "--help" in argv or "-h" in argv:
        show_help(Config, prog)
    settings = read(Config, argv, prog=prog, refused=_REFUSED)
    config = build(Config, settings, prog=prog)
    validate(config, {path: setting.origin for path, setting in settings.items()})
    return config


def parse_sft(argv: list[str]) -> SftConfig:
    """Defaults, then TOML files from left to right, then flags and positional arguments; the last wins."""
    prog = "grpo sft"
    if "--help" in argv or "-h" in argv:
        show_help(SftConfig, prog)
    settings = read(SftConfig, argv, prog=prog, positionals=("model", "data"), refused=_MOVED)
    config = build(SftConfig, settings, prog=prog)
    validate(config, {path: setting.origin for path, setting in settings.items()})
    return config


def validate(config: Config | SftConfig, origins: Mapping[str, str] | None = None) -> None:
    """Refuse values that cannot work, alone or together. `origins` tells where each field was set."""

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
            raise GrpoError(f"{where('system.log')}: no logger {shown(name)}; known: {known}")
    if config.run:
        check_run_name(config.run, where("run"))
    if isinstance(config, Config):
        check_preset(config.algorithm, where("algorithm"))
        for path, why in contradictions(config):
            raise GrpoError(f"{where(path)}: {why}")
    elif not config.data and not config.task:
        raise GrpoError(f"{where('data')}: write --data FILE with rows, or --task NAME")
    elif not config.task and (config.dataset.heldout or config.dataset.heldout_share != Dataset.heldout_share):
        raise GrpoError(f"{where('dataset.heldout')}: all rows are learnt from; to leave some out, add --task data")
    elif config.task and not config.steps:
        raise GrpoError(f"{where('steps')}: a task has no end; say how many, as in --steps 150")


def resolve(config: Config) -> Config:
    """The config that runs: checked, and with a task where none was named: the rows, or the embedded model's own."""
    validate(config)
    check_model_name(config.model)
    if config.task:
        return config
    if config.data:
        return dataclasses.replace(config, task="data")
    if config.model not in DEFAULT_TASK:
        known = ", ".join(DEFAULT_TASK)
        raise GrpoError(f"field task: name one with --task NAME, or give --data; only {known} bring their own")
    return dataclasses.replace(config, task=DEFAULT_TASK[config.model])


def check_run_name(name: str, where: str = "field run") -> None:
    """A run's name is also its folder's: one plain component, the same on every system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        allowed = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise GrpoError(f"{where}: {shown(name)} is not a valid run name; use {allowed}, and no folder")


def as_dict(config: Config | SftConfig) -> dict[str, Any]:
    """Nested plain values, to store as JSON."""
    return dataclasses.asdict(config)


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
    """A recipe that gives this config again."""
    lines, section = [], ""
    for path in leaves(type(config)):
        parent, _, name = path.rpartition(".")
        if parent != section:
            section = parent
            lines += ["", f"[{section}]"]
        value = attrgetter(path)(config)
        # JSON writes numbers, booleans and text as TOML does, but for the delete character.
        lines.append(f"{name} = " + json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f"))
    return "\n".join(lines) + "\n"
