"""The command line. Heavy modules are imported by the command that needs them, so that help answers at once."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo import flags
from grpo.config import Config, Dataset, from_dict, parse_sft, parse_train, resolve, to_toml
from grpo.errors import GrpoError
from grpo.models import OWN_TASK

if TYPE_CHECKING:
    from grpo.policy import Policy
    from grpo.store import Run
    from grpo.tasks import Task

USAGE = """\
grpo: train language models with Group Relative Policy Optimization, and see why every update happened.

  grpo train [recipe.toml ...] [--field value ...]   train; alone, it teaches the embedded model on the CPU
  grpo sft MODEL DATA.jsonl    supervised fine-tuning on prompt/answer rows, or on a --task's gold answers
  grpo check TASK              before training: do the golds pass, does junk fail, what pays that should not
  grpo eval MODEL              held-out accuracy with its 95% interval
  grpo sample MODEL "PROMPT"   a group of completions, scored where the task can score it
  grpo runs [NAME]             what is recorded
  grpo plan MODEL              memory and compute of a step, before anything is loaded
  grpo compare --algorithms A,B --seeds N   several ways, several seeds, and what is beyond luck
  grpo export RUN FOLDER       the trained model as a plain Hugging Face folder
  grpo lab                     look inside every run, live, down to the token (in the browser)

MODEL is tiny or nano (embedded), smollm2 (fetched once), the name of a run, a Hugging Face folder or id, a GGUF file.
`grpo COMMAND --help` lists a command's options.
`--dry-run` prints the config that would train, and stops. `--debug` shows tracebacks.
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Look at a task before training on it. Exits with 1 where a gold fails its own check, or junk passes it."""

    task: str = ""
    """Name or file.py; also the first argument. Empty: to answer the rows of data."""
    data: str = ""
    """Rows: a file or a Hugging Face dataset."""
    problems: int = 0
    """How many are looked at; 0: every row, or 1000 of a task without end."""
    samples: int = 12
    """Completions that are shown."""
    model: str = ""
    """A model or the name of a run, to measure its pass rate; empty: none."""
    model_problems: int = 32
    """How many problems the model is asked."""
    group_size: int = 8
    """Completions of each."""
    max_new_tokens: int = 0
    """0: as in the run, or 48."""
    temperature: float = 1.0
    seed: int = 1
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Ask held-out problems, once sampled and once greedy, and report accuracy with its 95% interval."""

    model: str
    """A model or the name of a run; also the first argument."""
    task: str = ""
    """Empty: the run's or the embedded model's own."""
    data: str = ""
    """Rows to ask instead: a file or a Hugging Face dataset."""
    problems: int = 500
    """How many held-out problems are asked."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    """0: as in the run, or 48."""
    top_k: int = 0
    """Sample among the k likeliest tokens only; 0: all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    seed: int = 1
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Sample a group of completions of one prompt. Where the task can score it, rewards and advantages are shown."""

    model: str
    """A model or the name of a run; also the first argument."""
    prompt: str
    """The prompt; also the second argument."""
    count: int = 8
    """Completions; also -n."""
    task: str = ""
    """Empty: the run's or the embedded model's own."""
    data: str = ""
    """Rows to ask instead: a file or a Hugging Face dataset."""
    temperature: float = 1.0
    """0: greedy."""
    max_new_tokens: int = 0
    """0: as in the run, or 48."""
    top_k: int = 0
    """Sample among the k likeliest tokens only; 0: all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    seed: int = 1
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""
    dataset: Dataset = field(default_factory=Dataset)


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List the runs, or tell about one."""

    name: str = ""
    """The run; also the first argument. Empty: all of them."""
    runs: str = "runs"
    """Folder that holds the runs."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the model of a run's last checkpoint as a plain Hugging Face folder."""

    run: str
    """The run; also the first argument."""
    folder: str
    """Where to write; also the second argument."""
    best: bool = False
    """The checkpoint with the best held-out accuracy, instead of the last."""
    adapter: bool = False
    """Of a run that trained adapters: keep them as they are, for peft, instead of merging them into the model."""
    runs: str = "runs"
    """Folder that holds the runs."""


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """Look inside the runs in the browser: groups, advantages, tokens, while they train and afterwards."""

    runs: str = "runs"
    """Folder that holds the runs."""
    port: int = 8765
    """0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen at; one that other machines can reach needs --token."""
    token: str = ""
    """Secret that a browser must bring once, in the address."""
    open: bool = True
    """Open the browser."""


def main(argv: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        return _dispatch(arguments)
    except GrpoError as error:
        if debug:
            raise
        print(f"grpo: {flags.one_line(str(error), 2000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # a border: the reader of our output, `head` for instance, has left
        sys.stderr.close()
        return 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"grpo {version('grpo-lab')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
        raise GrpoError(f"no command {flags.shown(name)}; {hint}")
    return COMMANDS[name](rest)


def _train(arguments: list[str]) -> int:
    dry_run = "--dry-run" in arguments
    config = parse_train([argument for argument in arguments if argument != "--dry-run"])
    if found := _find_run(config.model, config.system.runs):
        config = _with_task_of(replace(config, model=found[0]), found[1])
    if dry_run:
        from grpo.tasks import load_task

        config = resolve(config)
        load_task(config.task, config.data, config.dataset)
        print(to_toml(config), end="")
        return 0
    from grpo.train import train
    from grpo.view import pick_view

    with train(config, pick_view(config.system.quiet)) as run:
        return _exit_code(run)


def _with_task_of(config: Config, settings: dict[str, Any]) -> Config:
    """Where neither task nor data is named: those of the run that gave the model."""
    if config.task or config.data or not settings.get("task"):
        return config
    dataset = from_dict(Dataset, settings.get("dataset", {}))
    return replace(config, task=settings["task"], data=settings.get("data", ""), dataset=dataset)


def _sft(arguments: list[str]) -> int:
    dry_run = "--dry-run" in arguments
    config = parse_sft([argument for argument in arguments if argument != "--dry-run"])
    if found := _find_run(config.model, config.system.runs):
        config = replace(config, model=found[0])
    if dry_run:
        print(to_toml(config), end="")
        return 0
    from grpo.sft import sft
    from grpo.view import pick_view

    with sft(config, pick_view(config.system.quiet)) as run:
        return _exit_code(run)


def _exit_code(run: Run) -> int:
    """Not 0 where the run was asked to stop: whoever waits for it sees that it is not done."""
    return 130 if run.summary()["status"] == "stopped" else 0


def _check(arguments: list[str]) -> int:
    options = _parse(CheckOptions, arguments, "grpo check", ("task",))
    if not options.task and not options.data:
        raise GrpoError("field task: which one? grpo check TASK, or grpo check --data FILE")
    from grpo.check import check_task, check_with_model, lines
    from grpo.tasks import load_task

    task = load_task(options.task or "data", options.data, options.dataset)
    found = check_task(task, problems=options.problems, seed=options.seed, samples=options.samples)
    if options.model:
        policy, settings = _load(options.model, options.runs)
        found.model, sampled = check_with_model(
            task,
            policy,
            problems=options.model_problems,
            group_size=options.group_size,
            max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
            temperature=options.temperature,
            seed=options.seed,
        )
        found.samples = sampled[: options.samples]
    print(json.dumps(found.as_dict()) if options.json else "\n".join(lines(found)))
    return 0 if found.sound else 1


def _eval(arguments: list[str]) -> int:
    options = _parse(EvalOptions, arguments, "grpo eval", ("model",))
    policy, settings = _load(options.model, options.runs)
    from grpo.evaluation import evaluate
    from grpo.rollout.engine import Engine

    task = _task(options, settings)
    if task is None:
        raise GrpoError("field task: name one with --task NAME; only runs and embedded models bring their own")
    problems = task.heldout()[: options.problems]
    row, _ = evaluate(
        Engine(policy),
        task,
        problems,
        max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
        temperature=options.temperature,
        seed=options.seed,
        top_k=options.top_k,
        top_p=options.top_p,
    )
    if options.json:
        print(json.dumps({"model": options.model, "task": task.name, "problems": len(problems), **row}))
        return 0
    for kind, prefix in (("sampled", ""), ("greedy", "greedy_")):
        low, high = row[f"{prefix}low"], row[f"{prefix}high"]
        print(f"{kind:8} {row[f'{prefix}accuracy']:6.1%}   95% interval {low:.1%} to {high:.1%}")
    print(f"mean length {row['length_mean']:.1f} tokens")
    for name in (name for name in row if name.endswith("_share")):
        print(f"{name.removesuffix('_share')} share {row[name]:.1%}")
    return 0


def _sample(arguments: list[str]) -> int:
    arguments = ["--count" if argument == "-n" else argument for argument in arguments]
    options = _parse(SampleOptions, arguments, "grpo sample", ("model", "prompt"))
    policy, settings = _load(options.model, options.runs)
    from grpo.credit import credit
    from grpo.rewards import score
    from grpo.rollout.engine import Engine
    from grpo.types import Problem, chat
    from grpo.view import print_group

    task = _task(options, settings)
    problem = task.recognise(options.prompt) if task is not None and hasattr(task, "recognise") else None
    groups = Engine(policy).sample(
        [problem or Problem("typed", options.prompt, "", messages=chat(options.prompt))],
        options.count,
        seed=options.seed,
        step=0,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens or settings.get("max_new_tokens", 48),
        purpose="sample",
        top_k=options.top_k,
        top_p=options.top_p,
    )
    if task and problem:
        groups, _ = credit(score(task, groups), Config())
    [group] = groups
    if not options.json:
        print_group(group)
        return 0
    rows = [
        {
            "text": c.text,
            "tokens": len(c),
            "finish": c.finish,
            "logprob": float(c.logprobs.sum()),
            "reward": c.reward,
            "advantage": None if c.advantages is None else float(c.advantages[0]),
        }
        for c in group.completions
    ]
    print(json.dumps({"prompt": options.prompt, "answer": problem.answer if problem else None, "completions": rows}))
    return 0


def _runs(arguments: list[str]) -> int:
    options = _parse(RunsOptions, arguments, "grpo runs", ("name",))
    from grpo.store import Run, list_runs
    from grpo.view import print_run, print_runs

    if options.name:
        with Run.open(Path(options.runs), options.name, readonly=True) as run:
            if options.json:
                print(json.dumps(run.summary()))
            else:
                print_run(run)
        return 0
    rows = list_runs(Path(options.runs))
    if options.json:
        print(json.dumps(rows))
    else:
        print_runs(rows, options.runs)
    return 0


def _export(arguments: list[str]) -> int:
    options = _parse(ExportOptions, arguments, "grpo export", ("run", "folder"))
    target = Path(options.folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GrpoError(f"field folder: {target} exists and is not empty; name a new one")
    from grpo.models.folder import adapter_base
    from grpo.store import Run

    with Run.open(Path(options.runs), options.run, readonly=True) as run:
        model = _model_of(run, best=options.best)
        base = adapter_base(model)
        if options.adapter and not base:
            raise GrpoError(f"field adapter: {options.run} trained the whole model and has no adapter; leave it out")
        if options.adapter and base and adapter_base(Path(base)):
            raise GrpoError(
                f"field adapter: {options.run} began from another adapter, {base}; leave it out, to merge both"
            )
        if base and not options.adapter:
            from grpo.loading import load_policy

            load_policy(str(model)).save(target)
        else:
            shutil.copytree(model, target, dirs_exist_ok=True)
    kind = "with peft, on the model it was trained on" if options.adapter else "as any Hugging Face model"
    print(f"{options.run} ({model.parent.name}) is in {target}: load it {kind}")
    return 0


def _plan(arguments: list[str]) -> int:
    from grpo.plan.command import command

    return command(arguments)


def _compare(arguments: list[str]) -> int:
    from grpo.compare.command import command

    return command(arguments)


def _lab(arguments: list[str]) -> int:
    options = _parse(LabOptions, arguments, "grpo lab", ())
    if not 0 <= options.port < 65536:
        raise GrpoError(f"field port (command line): must be 0 to 65535; got {options.port}")
    try:
        from grpo.lab.server import serve
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise GrpoError(f'the lab needs {missing.name}: pip install "grpo-lab[lab]"') from None
    serve(Path(options.runs), address=options.host, port=options.port, token=options.token, open_browser=options.open)
    return 0


def _parse(options: type[Any], arguments: list[str], prog: str, positionals: tuple[str, ...]) -> Any:
    if "--help" in arguments or "-h" in arguments:
        flags.show_help(options, prog)
    settings = flags.read(options, arguments, prog=prog, positionals=positionals)
    parsed = flags.build(options, settings, prog=prog)
    least_problems = 0 if options is CheckOptions else 1
    for name, least in (
        *(("count", 1), ("problems", least_problems), ("temperature", 0), ("max_new_tokens", 0), ("top_k", 0)),
        *(("group_size", 1), ("model_problems", 1), ("samples", 0)),
    ):
        if getattr(parsed, name, least) < least:
            raise GrpoError(f"field {name} (command line): must be at least {least}; got {getattr(parsed, name)}")
    if not 0 < getattr(parsed, "top_p", 1.0) <= 1:
        raise GrpoError(f"field top_p (command line): must be above 0 and at most 1; got {parsed.top_p}")
    return parsed


def _find_run(name: str, runs: str) -> tuple[str, dict[str, Any]] | None:
    """Model folder and settings of the run of that name; None where a model is meant."""
    if name in OWN_TASK or Path(name).exists() or not (Path(runs) / name / "run.db").is_file():
        return None
    from grpo.store import Run

    with Run.open(Path(runs), name, readonly=True) as run:
        return str(_model_of(run)), run.config


def _task(options: Any, settings: dict[str, Any]) -> Task | None:
    """The task that was asked for, or else the one the model was trained on."""
    from grpo.tasks import load_task

    if options.task or options.data:
        return load_task(options.task or "data", options.data, options.dataset)
    if not settings.get("task"):
        return None
    return load_task(settings["task"], settings.get("data", ""), from_dict(Dataset, settings.get("dataset", {})))


def _load(name: str, runs: str) -> tuple[Policy, dict[str, Any]]:
    """The policy, and the settings it was trained with or made for."""
    from grpo.loading import load_policy

    model, settings = _find_run(name, runs) or (name, {"task": OWN_TASK.get(name, "")})
    return load_policy(model), settings


def _model_of(run: Run, *, best: bool = False) -> Path:
    from grpo.checkpoints import Checkpoints

    checkpoints, best_step = Checkpoints(run.path), run.best_step()
    checkpoint = checkpoints.at(best_step) if best and best_step is not None else checkpoints.newest()
    if checkpoint is None and best:
        raise GrpoError(f"run {run.name}: has no checkpoint of its best evaluation (after {best_step} steps)")
    if checkpoint is None:
        raise GrpoError(f"run {run.name}: has no checkpoint yet; wait for one, or train with --checkpoint-every N")
    if damage := checkpoint.damage():
        raise GrpoError(f"run {run.name}: {damage}; resume the run, which falls back to the checkpoint before")
    return checkpoint.model


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "sft": _sft,
    "check": _check,
    "eval": _eval,
    "sample": _sample,
    "runs": _runs,
    "plan": _plan,
    "compare": _compare,
    "export": _export,
    "lab": _lab,
}

if __name__ == "__main__":
    sys.exit(main())
