"""Presets, limits, combinations and storing of options. Reading them: test_parse.py."""

import copy
import dataclasses
import json
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.config import Config, Critic, Dataset, Evaluation, Lora, Optimizer, SftConfig, System
from grpo.config import parse as flags
from grpo.config.presets import PRESETS, SURROGATES
from grpo.config.rules import LIMITS, warnings
from grpo.config.schema import (
    LOGGERS,
    RENAMED,
    Loss,
    as_dict,
    check_run_name,
    from_dict,
    parse_sft,
    parse_train,
    to_toml,
    validate,
)
from grpo.core import loss as core_loss
from grpo.errors import GrpoError
from grpo.record import loggers
from grpo.record.store import Run
from helpers.refusals import refusal

LEAVES = flags.leaves(Config)


def test_names_repeated_here_to_load_no_torch_are_those_of_their_tables():
    assert tuple(core_loss.SURROGATES) == SURROGATES
    assert tuple(loggers.LOGGERS) == LOGGERS


# --- defaults, presets, files, flags ----------------------------------------------------------------------------------


def test_nothing_gives_the_defaults():
    assert parse_train([]) == Config()
    assert PRESETS["grpo"].settings == Loss(), "so that Config() in Python is what `grpo train` runs"


def test_precedence_defaults_preset_files_flags(recipe):
    first = recipe('steps = 5\nlr = 1\nalgorithm = "dr_grpo"\n[loss]\nclip_high = 0.3', "first.toml")
    second = recipe("lr = 2.0\n[loss]\nbeta = 0.5\nclip_low = 0.1", "second.toml")
    dr_grpo = PRESETS["dr_grpo"].settings
    assert parse_train(["--algorithm", "dr_grpo"]) == Config(algorithm="dr_grpo", loss=dr_grpo)
    assert parse_train(["--algorithm", "dr_grpo", "--loss.beta", "0.2"]).loss == dataclasses.replace(dr_grpo, beta=0.2)
    both = dataclasses.replace(dr_grpo, clip_high=0.3, clip_low=0.1, beta=0.5)
    assert parse_train([first, second]) == Config(steps=5, lr=2.0, algorithm="dr_grpo", loss=both)
    assert parse_train([second, first]).lr == 1.0
    assert parse_train(["--lr", "3", first, "--loss.beta=0", second]).loss.beta == 0.0
    assert parse_train([first, "--algorithm=grpo"]).loss == Loss(clip_high=0.3)


@pytest.mark.parametrize("given", [Loss(beta=0.1), {"beta": 0.1}])
@pytest.mark.parametrize("algorithm", PRESETS)
def test_in_python_a_preset_keeps_what_is_not_set(algorithm, given):
    config = Config(algorithm=algorithm, loss=given)
    assert config.loss == dataclasses.replace(PRESETS[algorithm].settings, beta=0.1)
    assert config == parse_train(["--algorithm", algorithm, "--beta", "0.1"])
    for stored in (json.loads(json.dumps(as_dict(config))), tomllib.loads(to_toml(config))):
        assert from_dict(Config, stored) == config


def test_replace_takes_the_new_preset_and_keeps_what_was_set():
    dapo = PRESETS["dapo"].settings
    assert dataclasses.replace(Config(), algorithm="dapo").loss == dapo
    set_beta = Config(algorithm="grpo", loss=Loss(beta=0.1), steps=3)
    assert dataclasses.replace(set_beta, algorithm="dapo").loss == dataclasses.replace(dapo, beta=0.1)
    assert dataclasses.replace(set_beta, steps=5).loss == set_beta.loss
    assert copy.deepcopy(pickle.loads(pickle.dumps(set_beta))).loss.fields_set == {"beta"}
    # A section made with replace has every field set: it is that section under any algorithm.
    whole = dataclasses.replace(set_beta.loss, clip_high=0.3)
    assert dataclasses.replace(set_beta, algorithm="dapo", loss=whole).loss == whole
    assert Config(algorithm="dapo", loss=PRESETS["grpo"].settings).loss == PRESETS["grpo"].settings


def test_a_value_equal_to_the_default_is_still_set():
    assert Config(algorithm="dapo", loss=Loss(clip_high=0.2)).loss.clip_high == 0.2
    assert Config(algorithm="dapo", loss={"dynamic_sampling": 1}).loss.dynamic_sampling == 1.0


def test_any_section_may_be_a_dictionary():
    config = Config(system={"threads": 2}, optimizer={}, evaluation={"every": 3})
    assert config == Config(system=System(threads=2), evaluation=Evaluation(every=3))
    sft = SftConfig(model="tiny", data="x", dataset={"prompt": "q"})
    assert sft == SftConfig(model="tiny", data="x", dataset=Dataset(prompt="q"))
    for written, message in (
        ({"loss": {"bta": 1}}, "field loss.bta (Python): unknown; did you mean loss.beta?"),
        ({"loss": {"beta": "1"}}, 'field loss.beta (Python): expected a number, such as 0.04; got "1"; remove the quo'),
        (
            {"system": {"recompute": True}},
            "field system.recompute (Python): is system.gradient_checkpointing here",
        ),
    ):
        with pytest.raises(GrpoError) as refused:
            Config(**written)
        assert str(refused.value).startswith(message)


def test_copies_of_a_config_keep_which_fields_were_set():
    config = Config(algorithm="dr_grpo", loss=Loss(beta=0.1), lora={"rank": 4}, stop=["x"])
    for same in (
        pickle.loads(pickle.dumps(config)),
        copy.copy(config),
        copy.deepcopy(config),
        dataclasses.replace(config),
    ):
        assert same == config
        assert same.loss.fields_set == {"beta"}
        assert dataclasses.replace(same, algorithm="grpo").loss == Loss(beta=0.1), (
            "beta was set, the rest is the preset's"
        )
    sft = SftConfig(model="tiny", data="x", lora=MappingProxyType({"rank": 4}))
    assert pickle.loads(pickle.dumps(sft)) == copy.deepcopy(sft) == dataclasses.replace(sft, lora=Lora(rank=4)) == sft


class Net:
    """A model as TRL takes it."""

    def save_pretrained(self, folder): ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": None}, "field loss: expected Loss(…) or a dictionary; got nothing"),
        ({"lora": 16}, "field lora: expected Lora(…) or a dictionary; got 16"),
        ({"loss": Lora()}, "field loss: expected Loss(…) or a dictionary; got a Lora"),
        ({"lora": {3: 4}}, "field lora.3 (Python): unknown; see grpo --help"),
        ({"lora": {"rank": {"a": 1}}}, "field lora.rank (Python): expected a whole number, such as 0; got a table"),
        ({"lr": {"a": 1}}, "field lr: expected a number, such as 3e-05; got a table"),
        ({"algorithm": ["grpo"]}, "field algorithm: expected text; got an array"),
        ({"model": PurePosixPath("my")}, "field model: expected text; got a PurePosixPath; write it as text, with str"),
        (
            {"model": Net()},
            "field model: expected text; got a Net; save it with save_pretrained, and name the folder",
        ),
        ({"stop": (1,)}, "field stop: expected text or a list of texts; got 1"),
        ({"stop": {"a": 1}}, "field stop: expected text or a list of texts; got a table"),
    ],
)
def test_mistakes_in_python_are_one_line(given, message):
    with pytest.raises(GrpoError) as refused:
        validate(Config(**given))
    assert str(refused.value) == message


def test_sft_positions(recipe):
    expected = SftConfig(model="tiny", data="rows.jsonl")
    assert parse_sft(["tiny", "rows.jsonl"]) == expected
    assert parse_sft(["--data", "rows.jsonl", "tiny"]) == expected
    assert parse_sft(["--model=tiny", "rows.jsonl"]) == expected
    assert parse_sft([recipe('model = "nano"\ndata = "rows.jsonl"'), "tiny"]) == expected
    assert parse_sft(["tiny", "rows.jsonl", "--epochs", "2", "--steps=0"]).epochs == 2.0
    assert "field data (default): missing; write --data FILE or --task NAME" in refusal("tiny", parse=parse_sft)
    assert '"more" (command line): unexpected' in refusal("tiny", "rows.jsonl", "more", parse=parse_sft)


# --- what cannot work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["top_p", "top-k", "min_p", "topp", "TOP_P", "sampling.top-p"])
def test_truncated_sampling_is_refused_with_the_reason(recipe, name):
    for message, place in (
        (refusal(f"--{name}", "0.9"), "command line"),
        (refusal(recipe(f"{name}=1")), "recipe.toml:1"),
    ):
        assert message.startswith(f"field {name} ({place}): ")
        assert "the policy ratio would compare log-probs of two different distributions" in message
        assert "grpo sample and grpo eval accept it" in message
    assert "unknown" in refusal(f"--{name}=1", parse=parse_sft)


@pytest.mark.parametrize(
    ("settings_given", "field", "expected"),
    [
        ({"group_size": 1}, "group_size", 'must be at least 2 with baseline "mean"; got 1'),
        ({"group_size": 1, "loss.baseline": "leave_one_out"}, "group_size", 'with baseline "leave_one_out"; got 1'),
        ({"group_size": 1, "loss.baseline": "length_weighted"}, "group_size", 'with baseline "length_weighted"'),
        ({"group_size": 1, "loss.baseline": "batch"}, "group_size", 'must be at least 2 with scale "group_std"; got 1'),
        (
            {"group_size": 1, "prompts_per_step": 1, "loss.baseline": "batch", "loss.scale": "none"},
            "group_size",
            'must be at least 2 with baseline "batch" and one prompt per step; got 1',
        ),
        *(
            ({path: 0}, path, "must be at least 1; got 0")
            for path in ("group_size", "steps", "prompts_per_step", "max_new_tokens", "optimizer.epochs")
        ),
        *(({path: 0}, path, "must be at least 1; got 0") for path in ("optimizer.minibatches",)),
        *(({path: 0}, path, "must be above 0; got 0") for path in ("lr", "temperature", "loss.clip_high")),
        *(({"loss.clip_low": value}, "loss.clip_low", "must be above 0 and at most 1") for value in (0, 1.5)),
        *(
            ({path: -1}, path, "must be 0 or more; got -1")
            for path in ("loss.beta", "seed", "checkpoint_every", "evaluation.every", "evaluation.probes")
        ),
        ({"optimizer.adam_beta2": 1}, "optimizer.adam_beta2", "must be 0 or more and below 1; got 1"),
        ({"model": ""}, "model", "must be given"),
        (
            {"algorithm": "dr_gpro"},
            "algorithm",
            'unknown preset "dr_gpro"; did you mean "dr_grpo"? known: grpo, dr_grpo',
        ),
        ({"algorithm": "zzz"}, "algorithm", 'unknown preset "zzz"; known: grpo, dr_grpo'),
        *(
            ({"run": name}, "run", f'"{name}" is not a valid run name; use up to 64 letters')
            for name in ("a/b", "..", ".hidden", "a b", "../up", "é")
        ),
        *(({"loss.cap": value}, "loss.cap", f"must be above 1, or 0 for none; got {value}") for value in (0.5, 1)),
        ({"loss.dynamic_sampling": 0.5}, "loss.dynamic_sampling", "must be at least 1; got 0.5"),
        ({"loss.overlong": 1.5}, "loss.overlong", "must be 0 or more and at most 1; got 1.5"),
        ({"critic.lam": 2}, "critic.lam", "must be between 0 and 1; got 2"),
        (
            {"loss.baseline": "value", "loss.scale": "group_std"},
            "loss.scale",
            'does not go with loss.baseline "value", which does not compare groups; use "batch_std" or "none"',
        ),
        (
            {"loss.dynamic_sampling": 1.1, "prompts_per_step": 4},
            "loss.dynamic_sampling",
            "1.1 x prompts_per_step, 4, leaves no room for one more group; raise it",
        ),
        (
            {"loss.dynamic_sampling": 2, "loss.baseline": "batch", "loss.scale": "none"},
            "loss.dynamic_sampling",
            'must be 1 with loss.baseline "batch": every group has signal',
        ),
        (
            {"loss.beta": 0, "loss.refresh": 9},
            "loss.refresh",
            "there is no reference model to refresh while loss.beta is 0; set it to 0",
        ),
        ({"loss.surrogate": "weight"}, "loss.surrogate", '"weight" needs loss.cap, such as 5'),
        ({"loss.surrogate": "gate", "loss.cap": 3}, "loss.cap", 'loss.surrogate "gate" has no cap; set it to 0'),
        (
            {"loss.surrogate": "clipp"},
            "loss.surrogate",
            'unknown surrogate "clipp"; use clip, weight, gate, plain, or file.py:function',
        ),
        (
            {"loss.kl_in": "reward", "loss.kl": "k3_ratio"},
            "loss.kl",
            'which a reward does not have (loss.kl_in is "reward"); use k1, k2 or k3',
        ),
        ({"loss.weights": "correct:1"}, "loss.weights", '"correct:1" is not a weight; write correct=1,format=0.2'),
        (
            {"loss.credit": "process", "loss.scale": "batch_std"},
            "loss.scale",
            'does not go with loss.credit "process", which normalises in each group; use "group_std" or "none"',
        ),
        (
            {"loss.credit": "process", "loss.baseline": "leave_one_out"},
            "loss.baseline",
            'must be "mean" or "value" with loss.credit "process"',
        ),
        (
            {"loss.credit": "process", "loss.kl_in": "reward"},
            "loss.kl_in",
            'must be "loss" with loss.credit "process", which normalises only the step rewards',
        ),
        (
            {"loss.credit": "process", "loss.overlong": 0.2},
            "loss.credit",
            '"process" rewards steps, not parts; remove loss.weights and loss.overlong',
        ),
        (
            {"loss.credit": "process", "loss.parts": "normalise"},
            "loss.parts",
            'must be "sum" with loss.credit "process", which rewards steps, not parts',
        ),
        (
            {"algorithm": "gigpo", "loss.baseline": "leave_one_out"},
            "loss.baseline",
            'must be "mean" with loss.turn_weight, which compares turns with their mean',
        ),
        (
            {"algorithm": "gigpo", "loss.scale": "batch_std"},
            "loss.scale",
            'does not go with loss.turn_weight, which normalises in each group; use "group_std" or "none"',
        ),
        (
            {"algorithm": "gigpo", "loss.credit": "process"},
            "loss.credit",
            'must be "outcome" with loss.turn_weight, which counts the rewards of turns too',
        ),
        (
            {"algorithm": "gigpo", "loss.parts": "normalise"},
            "loss.parts",
            'must be "sum" with loss.turn_weight, which compares whole rewards',
        ),
        (
            {"algorithm": "gigpo", "loss.kl_in": "reward"},
            "loss.kl_in",
            'must be "loss" with loss.turn_weight, which normalises only the rewards',
        ),
        (
            {"loss.scale": "none", "loss.parts": "normalise"},
            "loss.parts",
            '"normalise" needs loss.baseline "mean" and loss.scale "group_std"',
        ),
        (
            {"loss.kl_in": "reward", "loss.parts": "normalise"},
            "loss.parts",
            '"normalise" cannot subtract a KL divergence from the reward; set loss.kl_in to "loss"',
        ),
        ({"loss.std_eps": 0}, "loss.std_eps", "must be at least 1e-12; got 0"),
        ({"loss.std": "sampel"}, "loss.std", 'expected one of "sample", "population"; got "sampel"; did you mean'),
        (
            {"loss.ratio": "product", "loss.aggregate": "token"},
            "loss.ratio",
            '"product" is one ratio for the completion; set loss.aggregate to "sequence"',
        ),
        (
            {"prompts_per_step": 4, "optimizer.minibatches": 8},
            "optimizer.minibatches",
            "must be at most prompts_per_step, 4, because a minibatch holds whole groups; got 8",
        ),
    ],
)
def test_settings_that_cannot_work(recipe, settings_given, field, expected):
    message = refusal(*(f"--{path}={value}" for path, value in settings_given.items()))
    assert message.startswith(f"field {field} (command line): ")
    assert expected in message
    text = "\n".join(f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in settings_given.items())
    line = [*settings_given].index(field) + 1
    assert refusal(recipe(text)).startswith(f"field {field} (recipe.toml:{line}): ")


def test_validate_without_origins():
    for bad in (Config(group_size=1), Config(lr="1e-5"), Config(loss=Loss(kl="k9")), Config(lr=float("nan"))):  # type: ignore[arg-type]
        with pytest.raises(GrpoError, match=r"^field [a-z_.]+: "):
            validate(bad)
    with pytest.raises(GrpoError, match=r"^field steps: must be 0 or more; got -1$"):
        validate(SftConfig(model="tiny", data="x", steps=-1))
    with pytest.raises(GrpoError, match=r"^field group_size \(default\): "):
        validate(Config(group_size=1), {})
    validate(Config(group_size=1, loss=Loss(baseline="batch", scale="none")))


def test_run_names():
    for name in ("a", "0007", "Run-1.b_c", "x" * 64):
        check_run_name(name)
    for name in ("", "x" * 65, "a\n", "-a", "_a"):
        with pytest.raises(GrpoError, match="field run"):
            check_run_name(name)


# --- storing and printing ---------------------------------------------------------------------------------------------


def of_kind(leaf: flags.Leaf) -> st.SearchStrategy:
    if get_origin(leaf.kind) is Literal:
        return st.sampled_from(get_args(leaf.kind))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=[*map(chr, range(32)), "\x7f"]))
    texts = st.lists(text.filter(bool) | st.just("a\n\tb"), max_size=3).map(tuple)
    kinds = {int: st.integers(-(2**63) + 1, 2**63 - 1), float: finite, bool: st.booleans(), str: text}
    return {**kinds, flags.TEXTS: texts}[leaf.kind]


def section(cls: type) -> st.SearchStrategy:
    return st.builds(cls, **{name: of_kind(leaf) for name, leaf in flags.leaves(cls).items()})


sections = {
    "loss": section(Loss),
    "critic": section(Critic),
    "optimizer": section(Optimizer),
    "evaluation": section(Evaluation),
    "system": section(System),
}
top_level = {name: of_kind(leaf) for name, leaf in LEAVES.items() if "." not in name}


@settings(max_examples=30, deadline=None)
@given(st.builds(Config, **top_level, **sections))
def test_any_config_survives_json_and_toml(config):
    assert from_dict(Config, json.loads(json.dumps(as_dict(config)))) == config
    assert from_dict(Config, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("argv", [[], ["--algorithm", "dr_grpo", "--loss.beta", "1e-7", "--resume", "--run", "a.b"]])
def test_printed_config_is_a_recipe(recipe, argv):
    config = parse_train(argv)
    assert parse_train([recipe(to_toml(config))]) == config
    sft = parse_sft(["ti'n\"y\\", "rows.jsonl", "--lr", "1e-30"])
    assert parse_sft([recipe(to_toml(sft))]) == sft


def test_stored_config_is_checked():
    with pytest.raises(GrpoError, match=r"field loss.bta \(stored config\): unknown"):
        from_dict(Config, {"loss": {"bta": 1}})
    assert from_dict(Config, {"lr": 1}) == Config(lr=1.0)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_former_name_gets_one_line_with_the_new_one(recipe, old, new):
    section, _, name = old.partition(".")
    assert refusal(f"--{old}", "2").startswith(f"field {old} (command line): is {new} here")
    assert refusal(f"--{name}", "2").startswith(f"field {name} (command line): is {new} here")
    assert refusal(recipe(f"[{section}]\n{name} = 2")).startswith(f"field {old} (recipe.toml:2): is {new} here")
    assert new in LEAVES


def test_a_record_with_former_names_is_read(tmp_path):
    stored = as_dict(Config(algorithm="dapo", system=System(max_concurrent_completions=7)))
    stored["loss"]["refill"] = stored["loss"].pop("dynamic_sampling")
    stored["system"]["recompute"] = stored["system"].pop("gradient_checkpointing")
    stored["system"]["rows_at_once"] = stored["system"].pop("max_concurrent_completions")
    Run.create(tmp_path, "old", kind="grpo", config=stored).close()
    with Run.open(tmp_path, "old") as run:
        assert from_dict(Config, run.config).loss.dynamic_sampling == 3.0
        assert run.summary()["config"]["system"]["max_concurrent_completions"] == 7
        assert Loss(**run.config["loss"]) == PRESETS["dapo"].settings


# --- the shape of it all ----------------------------------------------------------------------------------------------


def test_few_enough_fields():
    for leaves in (LEAVES, flags.leaves(SftConfig)):
        assert sum("." not in path for path in leaves) <= 16
        assert len(leaves) <= 130
        assert all(path.count(".") <= 1 for path in leaves)


@pytest.mark.parametrize(
    ("parse", "cls", "prog"), [(parse_train, Config, "grpo train"), (parse_sft, SftConfig, "grpo sft")]
)
def test_help_tells_every_field(parse, cls, prog, capsys):
    with pytest.raises(SystemExit) as leaving:
        parse(["--no-such", "-h"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    assert prog in shown
    assert all(f"--{path.replace('_', '-')}" in shown for path in flags.leaves(cls))


def test_every_number_has_a_limit_and_every_preset_a_source():
    for cls in (Config, SftConfig):
        assert not [
            path for path, leaf in flags.leaves(cls).items() if leaf.kind in (int, float) and path not in LIMITS
        ]
    assert LIMITS.keys() <= LEAVES.keys() | flags.leaves(SftConfig).keys(), "no limit of a setting that does not exist"
    assert all("arXiv" in preset.paper and preset.differences for preset in PRESETS.values())
    for name in PRESETS:
        parse_train(["--algorithm", name])


def test_import_is_light():
    code = "import sys, grpo.config.schema; print({'torch', 'transformers', 'tyro', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_setting_without_effect_gets_a_warning() -> None:
    assert not any(list(warnings(Config(algorithm=name))) for name in PRESETS)
    config = parse_train(
        ["--algorithm", "sapo", "--loss.clip_high", "0.3", "--critic.lr", "0.1", "--loss.kl_in", "reward"]
    )
    assert list(warnings(config)) == [
        'loss.clip_high has no effect: loss.surrogate is "gate"',
        "loss.kl_in has no effect: loss.beta is 0",
        'critic.lr has no effect: loss.baseline is "mean"',
    ]
    higher = ["--loss.clip_high", "0.3"]
    assert "with one update the ratio is 1" in next(warnings(parse_train(higher)))
    assert not list(warnings(parse_train([*higher, "--optimizer.epochs", "2"])))
    shared = ["--algorithm", "ppo", "--critic.weight", "0.1"]
    assert list(warnings(parse_train(shared))) == ['critic.weight has no effect: critic.model is "separate"']
    assert not list(warnings(parse_train([*shared, "--critic.model", "shared"])))
    assert list(warnings(parse_train(["--no-chat", "--chat-template-kwargs", '{"a": 1}']))) == [
        "dataset.chat_template_kwargs has no effect: dataset.chat is off"
    ]
    assert list(warnings(parse_train(["--algorithm", "dr_grpo", "--std", "population", "--std-eps", "1"]))) == [
        'loss.std has no effect: loss.scale is "none"',
        'loss.std_eps has no effect: loss.scale is "none"',
    ]


def test_k1_in_the_loss_gets_a_warning_and_only_there() -> None:
    [warning] = warnings(parse_train(["--loss.kl", "k1"]))
    assert "an expected gradient of zero" in warning
    for argv in (["--loss.kl", "k2"], ["--loss.kl", "k1", "--loss.kl_in", "reward"], ["--algorithm", "rloo"]):
        assert not list(warnings(parse_train(argv)))


def test_the_product_ratio_gets_a_warning() -> None:
    [warning] = warnings(parse_train(["--loss.ratio", "product"]))
    assert "its variance grows exponentially with the length" in warning


@pytest.mark.parametrize(("given", "message"), [({"loss": 3}, "Loss(…)"), ({"system": "cuda"}, "System(…)")])
def test_a_section_is_a_dataclass_or_a_dictionary(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GrpoError, match=re.escape(f"expected {message} or a dictionary; got ")):
        Config(**given)


def test_a_task_with_a_model_of_its_own_brings_its_settings() -> None:
    for config in (Config(task="guess"), parse_train(["--task", "guess"]), Config(model="guess")):
        assert (config.model, config.algorithm, config.steps, config.prompts_per_step) == ("guess", "dr_grpo", 300, 30)
        assert (config.loss.aggregate, config.lr) == ("constant", 1e-3)
    changed = parse_train(["--task", "guess", "--steps", "7", "--algorithm", "grpo"])
    assert (changed.steps, changed.loss.aggregate, changed.lr) == (7, "sequence", 1e-3)
    assert Config(task="guess", model="nano") == dataclasses.replace(Config(model="nano"), task="guess")
    assert dataclasses.replace(Config(task="guess"), seed=2) == Config(task="guess", seed=2)
    assert from_dict(Config, as_dict(Config(task="guess"))) == Config(task="guess")
    assert pickle.loads(pickle.dumps(Config(task="guess"))) == Config(task="guess")
