"""The pages of docs/ against the code: names exist, flags parse, examples run."""

import doctest
import importlib
import inspect
import re
import shlex
from functools import reduce
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml

import grpo
from grpo.cli.main import COMMANDS
from grpo.config import Config, Evaluation, Optimizer, System
from grpo.config import parse as flags
from grpo.config.presets import PRESETS
from grpo.config.schema import parse_train
from grpo.rewards.functions import parse
from grpo.training.loop import loop
from helpers.docs import ALGORITHM, DOCS, table_rows

FROM_TRL = (DOCS / "from-trl.md").read_text()
README = (DOCS.parent / "README.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


# Names: `grpo.core.loss:policy_loss`, as text or as a link to its file.

NAMES = sorted(set(re.findall(r"`(grpo(?:\.\w+)*):([\w.]+)`", ALGORITHM)))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=":".join)
def test_named_functions_exist(module, name):
    found = reduce(getattr, name.split("."), importlib.import_module(module))
    assert callable(found)
    assert found.__module__ == module, "it is only imported there"


def test_links_lead_to_the_file_of_the_function():
    links = re.findall(r"\[`(grpo(?:\.\w+)*):[\w.]+`\]\(([^)]+)\)", ALGORITHM)
    assert len(links) > 20
    for module, target in links:
        file = Path(inspect.getfile(importlib.import_module(module)))
        assert target == f"../src/{file.relative_to(Path(grpo.__file__).parents[1]).as_posix()}"
        assert (DOCS / target).is_file()


def test_the_table_quotes_the_loop():
    section = ALGORITHM.split("## One step, line by line")[1].split("Inside the update")[0]
    quoted = [row[0] for row in table_rows(section)]
    assert len(quoted) == 9
    lines = [line.strip() for line in inspect.getsource(loop).splitlines()]
    places = [lines.index(line.strip("`")) for line in quoted]
    assert places == sorted(places)


def test_settings_named_on_the_page_exist():
    """The first column of the tables headed by a field of the loss: its choices, all of them."""
    for field, choices in (
        ("baseline", {"mean", "leave_one_out", "batch", "length_weighted", "value"}),
        ("scale", {"group_std", "batch_std", "none"}),
        ("ratio", {"token", "sequence", "product"}),
        ("kl", {"k1", "k2", "k3", "k3_ratio"}),
        ("aggregate", {"sequence", "token", "constant"}),
    ):
        table = ALGORITHM.split(f"\n| `{field}` |")[1].split("\n\n")[0]
        assert {row[0].strip("`") for row in table_rows(f"\n{table}")} - {""} == choices
        for choice in choices:
            assert (
                getattr(
                    parse_train(
                        [f"--loss.{field}", choice, "--loss.scale=none"][: 3 if field == "baseline" else 2]
                    ).loss,
                    field,
                )
                == choice
            )


def test_the_examples_of_the_algorithm_page_run():
    found = blocks(ALGORITHM, "pycon")
    assert len(found) == 7
    names: dict[str, object] = {}
    for number, block in enumerate(found):
        test = doctest.DocTestParser().get_doctest(block, names, f"algorithm.md, example {number}", None, 0)
        report: list[str] = []
        runner = doctest.DocTestRunner()
        runner.run(test, out=report.append, clear_globs=False)
        names = test.globs
        assert runner.summarize(verbose=False).failed == 0, "".join(report)


# Flags: every `--name` on the page for people from TRL is ours.

SPANS = sorted(set(re.findall(r"`(--[^`]+)`", FROM_TRL)))


@pytest.mark.parametrize("span", SPANS)
def test_flags_exist_and_take_the_values_shown(span):
    words = shlex.split(span)
    if len(words) == 1:
        assert words[0].removeprefix("--").replace("-", "_") in flags.leaves(Config)
    else:
        parse_train(words)


def test_no_flag_hides_outside_code():
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", FROM_TRL, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"--[a-z][\w.]*", prose) == []


def test_defaults_shown_are_the_defaults():
    """`--lr` [1e-4]: a number or word in brackets right after a flag is its default."""
    shown = re.findall(r"`--([\w.]+)` \[([^\] ]+)\]", FROM_TRL)
    assert len(shown) > 10
    for path, value in shown:
        default = reduce(getattr, path.split("."), Config())
        assert flags.from_text(type(default), value) == default, path


def test_the_commands_shown_parse():
    commands = re.findall(r"^grpo train (--.+)$", FROM_TRL, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        config = parse_train(shlex.split(command))
        assert [spec.weight for spec in parse(config.reward)] == [0.2, 1.0]


# Algorithms: all named where one is chosen, and how to add one.


def test_the_setting_names_every_algorithm():
    [row] = re.findall(r"^\| `algorithm: str = 'grpo'` \|(.+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert re.findall(r"[\w+]+", row.split(":")[1].replace(" or ", ", ")) == list(PRESETS)


def test_the_algorithm_added_from_outside_trains(tmp_path, monkeypatch):
    [block] = blocks((DOCS / "add-an-algorithm.md").read_text(), "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    (tmp_path / "my_losses.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("my_losses")
        config = Config(
            model="nano",
            algorithm="spring",
            steps=2,
            prompts_per_step=4,
            group_size=4,
            max_new_tokens=32,
            optimizer=Optimizer(epochs=2, warmup_steps=0),
            evaluation=Evaluation(every=0, problems=4, probes=0),
            system=System(runs=str(tmp_path)),
        )
        assert (config.loss.surrogate, config.loss.scale) == ("my_losses:squared", "none")
        rows = grpo.train(config).metrics()
    finally:
        PRESETS.pop("spring", None)
    assert [row["updates"] for row in rows] == [2, 2]
    assert rows[-1]["ratio_max"] > 1


@pytest.mark.parametrize("page", ["lora.md", "loggers.md", "gpu.md", "scale.md", "README.md", "../README.md"])
def test_the_commands_of_a_page_parse(page, monkeypatch):
    monkeypatch.chdir(DOCS.parent)  # for the recipes
    text = (DOCS / page).read_text()
    commands = re.findall(r"^grpo train ([^#\n]+)", text, re.MULTILINE)
    assert commands
    for command in commands:
        parse_train(shlex.split(command))
    fields = re.findall(r"`--(\w+\.\w+)[` ]", text)
    assert set(fields) <= set(flags.leaves(Config))


def test_the_commands_of_the_cluster_examples_parse():
    slurm = (DOCS.parent / "examples/scale/slurm.sbatch").read_text().replace("\\\n", " ")
    [command] = re.findall(r"^srun .*grpo train (.+)$", slurm, re.MULTILINE)
    service, job = yaml.safe_load_all((DOCS.parent / "examples/scale/kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    name, index = job["metadata"]["name"], 0
    assert pod["subdomain"] == service["metadata"]["name"]
    for words in (
        shlex.split(command.replace("$first:$port", "gpu07:21234")),
        pod["containers"][0]["command"][2:],
    ):
        scale = parse_train(words).scale
        assert (scale.gpus, scale.nodes) == (8, 2)
    assert scale.join == f"{name}-{index}.{service['metadata']['name']}:29500"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == scale.nodes


def test_the_index_has_every_command():
    index = (DOCS / "README.md").read_text()
    assert set(re.findall(r"^grpo (\w+)", README + index, re.MULTILINE)) == set(COMMANDS)


def test_the_python_of_the_readme_fits_the_api(monkeypatch):
    """The call binds to the signature of `grpo.train`, and the reward shown is 1 for the answer of its row."""
    signature, calls = inspect.signature(grpo.train), []

    def train(*arguments, **options):
        calls.append(signature.bind(*arguments, **options).arguments)
        return MagicMock(spec=grpo.Run)

    monkeypatch.setattr(grpo, "train", train, raising=False)
    exec("\n".join(blocks(README, "python")), {})
    [handed_over] = calls
    for row in handed_over["data"]:
        assert eval(row["prompt"].rstrip("=")) == int(row["answer"])
    problem = grpo.Problem("p", row["prompt"], row["answer"])
    assert [handed_over["reward"](problem, text) for text in (row["answer"], "junk")] == [1.0, 0.0]


# Files: every path on the pages exists.

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks/results.md", *sorted(DOCS.glob("*.md"))]
READERS_FILES = {
    "counter.py",
    "file.py",
    "games.py",
    "guess.py",
    "helper.py",
    "mine.py",
    "my_losses.py",
    "mytask.py",
    "rewards.py",
    "script.py",
}
READERS_RECIPES = {"recipes/mine.toml", "recipes/other.toml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), f"{target}#{anchor}"


def anchors(page: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_files_named_exist(page: Path) -> None:
    """`recorder.py` or `training/recorder.py`: the end of the path of a file in the repository."""
    folders = ("benchmarks", "docs", "examples", "scripts", "src", "tests")
    files = {f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.py")}
    for name in set(re.findall(r"[\w./-]*\w\.py\b", page.read_text())) - READERS_FILES:
        path = name.removeprefix("../").removeprefix("./")
        assert any(file.endswith(f"/{path}") for file in files), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_paths_named_exist(page: Path) -> None:
    for name in re.findall(r"\b(?:src/grpo|tests|benchmarks|scripts|recipes|examples)/[\w./-]*\w", page.read_text()):
        assert (ROOT / name).exists() or name in READERS_RECIPES, name
