"""TRL's and peft's names are answered with ours; the answers agree with the fields and with docs/from-trl.md."""

import dataclasses
import re

import pytest

from grpo.cli.commands.check import CheckOptions
from grpo.cli.commands.options import parse
from grpo.cli.commands.sample import SampleOptions
from grpo.config import Config, Lora, Loss, SftConfig
from grpo.config.leaf import leaves, misfit
from grpo.config.schema import parse_sft, parse_train
from grpo.config.trl_names import TRL_NAMES
from grpo.errors import GrpoError
from helpers.docs import DOCS
from helpers.refusals import refusal

LEAVES = leaves(SftConfig) | leaves(Config)
OURS = {path.rpartition(".")[2] for path in LEAVES}
FROM_TRL = (DOCS / "from-trl.md").read_text()


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("--num_generations 16", "is group_size here; write --group-size 16"),
        ("--num-generations=16", "is group_size here; write --group-size 16"),
        ("--num_generations", "is group_size here; write --group-size VALUE"),
        ("--learning_rate x", 'is lr here: expected a number, such as 3e-05; got "x"'),
        ("--loss.epsilon 0.3", "is loss.clip_low here; write --loss.clip-low 0.3"),
        ("--loss_type dr_grpo", "write --loss.aggregate constant"),
        ("--loss_type vespo", "write --loss.aggregate token --loss.ratio product --loss.surrogate examples/vespo.py"),
        ("--loss_type luspo", "write --loss.aggregate constant"),
        ("--vespo_k_pos 2", "VESPO is a function in examples/vespo.py, with its constants; set loss.surrogate"),
        ("--loss_type bnpo", '"bnpo" has no counterpart; write --loss.aggregate sequence for grpo, '),
        ("--scale_rewards False", "write --loss.scale none"),
        ("--use_bias_correction_kl", "write --loss.kl k3_ratio"),
        ("--mask_truncated_completions", "is loss.mask_truncated here; write --loss.mask-truncated"),
        ("--mask_truncated_completions false", "is loss.mask_truncated here; write --loss.no-mask-truncated"),
        ("--lr_scheduler_type constant_with_warmup", "write --optimizer.schedule constant"),
        ("--lr_scheduler_type polynomial", 'is optimizer.schedule here: expected one of "constant", "linear", "co'),
        ("--report_to none", "is the default here; remove it"),
        ("--use_vllm", "not available: sampling is built in; remove it"),
        ("--per_device_train_batch_size 8", "the batch is prompts_per_step x group_size completions; micro-batches"),
        ("--num_train_epochs 3", "set steps: one pass over N rows takes N / prompts_per_step"),
        ("--lora.dropout 0.1", "dropout is always off, so that sampler and trainer compute the same policy; remove it"),
        ("--lora_dropout 0.1", "dropout is always off, so that sampler and trainer compute the same policy; remove it"),
        ("--lora.r 16", "is lora.rank here; write --lora.rank 16"),
        ("--repetition_penalty 1.1", "not available: completions would come from another distribution"),
    ],
)
def test_a_flag_of_trl_is_answered_with_the_line_to_type(typed, answer):
    message = refusal(*typed.split())
    name = re.split("[ =]", typed)[0].removeprefix("--")
    assert message.startswith(f"field {name} (command line): {answer}")
    if line := re.search(r"; write (--[a-z.-]+(?: [0-9.]+)?)$", message):
        parse_train(line[1].split())


def test_recipes_and_python_are_answered_in_their_own_form(recipe):
    file = recipe('steps = 3\nnum_generations = 16\n[loss]\nepsilon = 0.1\nreport_to = ["wandb"]')
    assert refusal(file).endswith(
        "num_generations (recipe.toml:2): is group_size here; write group_size = 16 at the top, above every [section]"
    )
    assert refusal(recipe("[loss]\nepsilon = 0.1")).endswith("write clip_low = 0.1 in [loss]")
    assert refusal(recipe('report_to = ["wandb", "trackio"]')).endswith('write log = "wandb,trackio" in [system]')
    for given, written in (
        (lambda: Config(num_generations=16), "field num_generations (Python): is group_size here; write group_size=16"),
        (lambda: Config(loss={"epsilon": 0.1}), "is loss.clip_low here; write loss={'clip_low': 0.1}"),
        (lambda: Config(loss_type="dapo"), "write loss={'aggregate': 'token'}"),
        (lambda: Loss(epsilon=0.1), "is clip_low here; write clip_low=0.1"),
        (lambda: Lora(target_modules=["q_proj", "v_proj"]), "is targets here; write targets='q_proj,v_proj'"),
        (lambda: SftConfig(model="tiny", num_train_epochs=2), "is epochs here; write epochs=2"),
        (lambda: dataclasses.replace(Config(), bta=0.1), "field bta (Python): unknown; did you mean loss.beta?"),
    ):
        with pytest.raises(GrpoError) as refused:
            given()
        assert str(refused.value).endswith(written)


def test_supervised_fine_tuning_has_some_of_them():
    argv = ("tiny", "rows.jsonl")
    assert "is epochs here; write --epochs 3" in refusal(*argv, "--num_train_epochs", "3", parse=parse_sft)
    assert "is grad_clip here; write --grad-clip 1" in refusal(*argv, "--max_grad_norm", "1", parse=parse_sft)
    assert "is lora.rank here; write --lora.rank 8" in refusal(*argv, "--lora_r", "8", parse=parse_sft)
    assert "unknown; see grpo sft --help" in refusal(*argv, "--loss_type", "grpo", parse=parse_sft)


def test_the_commands_that_sample_have_some_of_them():
    def check(argv):
        return parse(CheckOptions, argv, "grpo check", ("task",))

    def sample(argv):
        return parse(SampleOptions, argv, "grpo sample", ("model", "prompt"))

    assert refusal("--num_generations", "4", parse=check).endswith("is group_size here; write --group-size 4")
    assert refusal("--reward_funcs", "a.py:f", parse=check).endswith("is reward here; write --reward a.py:f")
    written = refusal("m", "p", "--max_completion_length", "9", parse=sample)
    assert written.endswith("is max_new_tokens here; write --max-new-tokens 9")
    assert sample(["m", "p", "--min_p", "0.5"]).min_p == 0.5, "a field of the command is no other name"


@pytest.mark.parametrize("name", TRL_NAMES)
def test_an_answer_names_fields_and_values_that_exist(name):
    other = TRL_NAMES[name]
    assert other.path in LEAVES.keys() | {""}
    assert other.path or other.values or other.why
    for settings in other.values.values():
        for path, value in settings.items():
            assert misfit(LEAVES[path], value) == ""


def test_every_field_of_trls_config_has_an_answer():
    fields = {field.name for field in dataclasses.fields(pytest.importorskip("trl").GRPOConfig)}
    assert fields - TRL_NAMES.keys() - OURS == set()


def test_the_page_and_the_answers_agree():
    """In a table headed TRL | here, the row of a name shows the field that the answer names."""
    seen: set[str] = set()
    for table in re.findall(r"^\| (?:TRL|peft's[^|]*) \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", FROM_TRL, re.MULTILINE):
        for row in table.splitlines():
            left, right = (cell.strip() for cell in row.strip("|").split(" | ", 1))
            names = set(re.findall(r"`(\w+)`", re.sub(r"\[[^\]]*\]", "", left))) & TRL_NAMES.keys()
            names -= {"loss_type"}  # a row for each of its values
            shown = {flag.replace("-", "_").rpartition(".")[2] for flag in re.findall(r"`--([\w.-]+)", right)}
            for name in names:
                other = TRL_NAMES[name]
                named = {path for settings in other.values.values() for path in settings} | {other.path}
                ours = {path.rpartition(".")[2] for path in named & leaves(Config).keys()}
                assert not ours or ours & shown, name
                if len(names) == 1 and (first := re.match(r"`--([\w.-]+)` \[", right)):
                    assert first[1].replace("-", "_").rpartition(".")[2] in ours, name
            seen |= names
    fields = {field.name for field in dataclasses.fields(pytest.importorskip("trl").GRPOConfig)}
    assert len(seen & fields) > 80
