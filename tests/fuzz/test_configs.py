"""Generated configs, as TOML files, flags and Python objects: each is read and resolved, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from grpo.cli.commands.check import CheckOptions
from grpo.cli.commands.evaluate import EvalOptions
from grpo.cli.commands.export import ExportOptions
from grpo.cli.commands.lab import LabOptions
from grpo.cli.commands.sample import SampleOptions
from grpo.config import Config, SftConfig
from grpo.config import parse as flags
from grpo.config.schema import as_dict, from_dict, parse_sft, parse_train, resolve, to_toml
from helpers.fuzz import Fuzz, budget, odd_text, odd_value

COUNT = budget(3_200)
LEAVES = list(flags.leaves(Config))
SECTIONS = sorted({path.partition(".")[0] for path in LEAVES if "." in path})
TRL_NAMES = ("num_generations", "max_completion_length", "learning_rate", "beta", "epsilon", "use_vllm", "top_p")
WORDS = ("nano", "grpo", "dr_grpo", "ppo", "none", "mean", "arithmetic")
LINES = ("[loss]", "[[loss]]", "[loss", "# é", "loss.beta.x = 1", "steps = 1\nsteps = 2", "[loss]\n[loss]")
TOML_VALUES = (
    *("1", "-1", "0", "0.5", "-0.0", "1e400", "-1e999", "nan", "-inf", "inf", "9223372036854775808", "1_000", "0x10"),
    *(
        "true",
        "false",
        '""',
        '"tiny"',
        "'nano'",
        '"a\\u0000b"',
        '"\\ud800"',
        '"é日本"',
        "[1, 2]",
        "[]",
        "{}",
        "{ a = 1 }",
    ),
    *("2024-01-01", '"""a\nb"""', "12:30:00", "tru", "", "= 1", '"unclosed', "[" * 400, '"none"', '"group_std"', "1."),
    *(".5", "+3", "1e", "00"),
)


def name(rng: Random) -> str:
    """A field's path, often a sound one."""
    path = rng.choice(LEAVES)
    choices: tuple[Callable[[], str], ...] = (
        lambda: path,
        lambda: path,
        lambda: path,
        lambda: path.replace("_", "-"),
        lambda: path.rpartition(".")[2],
        lambda: f"{rng.choice(SECTIONS)}.{path.rpartition('.')[2]}",
        lambda: rng.choice(SECTIONS),
        lambda: path[:-1] + rng.choice("abcé"),
        lambda: rng.choice(TRL_NAMES),
        lambda: odd_text(rng),
        lambda: f"{path}.{odd_text(rng)}",
        lambda: path.upper(),
    )
    return rng.choice(choices)()


def sound(rng: Random, path: str) -> Any:
    """A value near the default of the field."""
    default = flags.leaves(Config)[path].default
    if isinstance(default, bool):
        return rng.random() < 0.5
    if isinstance(default, int):
        return default + rng.choice((0, 0, 1, -1, -5, 7, 2**40))
    if isinstance(default, float):
        return default * rng.choice((1, 1, 0.5, 2, -1, 0, 1e300))
    return default if rng.random() < 0.7 else rng.choice(WORDS)


def value(rng: Random, path: str) -> Any:
    return sound(rng, path) if path in LEAVES and rng.random() < 0.6 else odd_value(rng, depth=2)


def document(rng: Random) -> str:
    """Lines of TOML: assignments, headers, comments, and lines that are none of these."""
    lines = []
    for _ in range(rng.randint(0, 6)):
        path = name(rng)
        section, _, last = path.rpartition(".")
        key = last if rng.random() < 0.7 else path if rng.random() < 0.5 else json.dumps(path)
        text = json.dumps(sound(rng, path)) if path in LEAVES and rng.random() < 0.6 else rng.choice(TOML_VALUES)
        if section and key == last and rng.random() < 0.8:
            lines.append(f"[{section}]")
        lines.append(f"{key} = {text}")
        if rng.random() < 0.1:
            lines.append(rng.choice((*LINES, odd_text(rng))))
    return rng.choice(("\n", "\n", "\r\n")).join(lines)


def arguments(rng: Random, paths: list[str]) -> list[str]:
    found: list[str] = []
    for _ in range(rng.randint(0, 5)):
        path = rng.choice(paths) if rng.random() < 0.6 else name(rng)
        text = str(value(rng, path)) if rng.random() < 0.7 else odd_text(rng)
        flag = rng.choice(("--", "--", "--", "-", "", "--no-", "---")) + path
        found += rng.choice(([flag, text], [f"{flag}={text}"], [flag], [text]))
    return [word for word in found if word not in ("-h", "--help")]


def nested(rng: Random) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(rng.randint(0, 5)):
        path = name(rng)
        section, dot, last = path.partition(".")
        if dot and isinstance(table.setdefault(section, {}), dict):
            table[section][last] = value(rng, path)
        else:
            table[section] = value(rng, path)
    return table


def read_toml(rng: Random) -> None:
    file = Path(rng.choice(("recipe.toml", "recipe.toml", "rezept é.toml")))
    data = document(rng).encode("utf-8", errors="surrogatepass")
    if rng.random() < 0.15:
        place = rng.randint(0, len(data))
        data = data[:place] + rng.choice((b"\xff", b"\x00", b"\xef\xbb\xbf", b"\r", b"[" * 3000)) + data[place:]
    file.write_bytes(data)
    if rng.random() < 0.2:
        parse_sft(["tiny", "rows.jsonl", str(file)])
    else:
        checked(parse_train([str(file)]))


def read_flags(rng: Random) -> None:
    if rng.random() < 0.7:
        checked(parse_train(arguments(rng, LEAVES)))
    elif rng.random() < 0.5:
        parse_sft(arguments(rng, list(flags.leaves(SftConfig))))
    else:
        options = rng.choice((CheckOptions, EvalOptions, ExportOptions, LabOptions, SampleOptions))
        flags.read(options, arguments(rng, list(flags.leaves(options))), prog="grpo")


def read_python(rng: Random) -> None:
    table = nested(rng)
    if rng.random() < 0.5:
        checked(from_dict(Config, table))
    else:
        names = Config.__dataclass_fields__
        checked(Config(**{key: each for key, each in table.items() if key in names}))


def checked(config: Config) -> None:
    """A config that is read resolves or is refused; as TOML and as JSON it is the same."""
    config = resolve(config)
    Path("again.toml").write_text(to_toml(config), encoding="utf-8")
    assert parse_train(["again.toml"]) == config
    assert from_dict(Config, json.loads(json.dumps(as_dict(config)))) == config


def test_every_config_is_read_or_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fuzz = Fuzz("configs", r"^field .|^argument .|^\S.*\.toml(:\d+| \()")
    reads = [read_toml] * 10 + [read_flags] * 3 + [read_python] * 3
    for number, rng in fuzz.inputs(COUNT):
        fuzz.call(number, lambda rng=rng, number=number: reads[number % len(reads)](rng))
    fuzz.report(at_least=COUNT)
