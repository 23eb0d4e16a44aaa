"""Reading flags and TOML. Every refusal is checked by its message: the field, where it was set, what to do."""

import contextlib
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.config import Checkpoints, Config, Dataset, System
from grpo.config import parse as flags
from grpo.config.schema import Loss, as_dict, from_dict, parse_sft, parse_train
from grpo.errors import GrpoError
from helpers.refusals import refusal

LEAVES = flags.leaves(Config)


# --- what is accepted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--group_size", "--group-size"])
@pytest.mark.parametrize("joined", [True, False])
def test_spellings_of_a_flag(flag, joined):
    assert parse_train([f"{flag}=4"] if joined else [flag, "4"]).group_size == 4


def test_values_of_a_flag():
    assert parse_train(["--loss.clip-high", "1", "--lr", "1e-5"]) == Config(loss=Loss(clip_high=1.0), lr=1e-5)
    assert isinstance(parse_train(["--lr", "1"]).lr, float)
    assert parse_train(["--model=-odd=name", "--task", ""]).model == "-odd=name"
    assert parse_train(["--steps", "5", "--steps", "6"]).steps == 6


def test_a_flag_may_leave_out_its_section_where_only_one_has_the_name(recipe):
    assert parse_train(["--beta", "0.5"]).loss.beta == 0.5
    assert parse_train(["--allow-change", "--quiet"]) == Config(
        checkpoints=Checkpoints(allow_change=True), system=System(quiet=True)
    )
    assert parse_train(["--quiet", "--no-quiet"]) == Config()
    assert parse_train(["--probes", "3"]).evaluation.probes == 3
    assert parse_sft(["tiny", "rows.jsonl", "--warmup-steps", "3"]).warmup_steps == 3
    with pytest.raises(GrpoError, match=r"field x: in several sections; write --a.x or --b.x"):
        flags._Reader({"a.x": flags.Leaf(int, 1), "b.x": flags.Leaf(int, 1)}, "grpo", {}).flag("--x", ["3"])
    with pytest.raises(GrpoError, match="quiet in \\[system\\]"):
        parse_train([recipe("quiet = true")])  # a file has sections, and says where things are


def test_switches(recipe):
    assert parse_train(["--resume"]).resume
    file = recipe("resume = true\n[system]\nquiet = true")
    assert parse_train([file]).resume
    assert parse_train([file, "--no-resume"]) == Config(system=System(quiet=True))
    assert parse_train(["--no_resume", file, "--no_quiet"]) == Config()


def test_shapes_of_toml(recipe):
    loss = Loss(beta=0.1, clip_low=0.3)
    for text in (
        "[loss]\nbeta=0.1\nclip-low=0.3",
        "loss = {beta = 0.1, clip_low = 0.3}",
        "loss.beta=0.1\nloss.clip_low=3e-1",
    ):
        assert parse_train([recipe(text)]).loss == loss
    assert parse_train([recipe("\ufeff# a comment\r\n[loss]\r\n[system]\r\nthreads = 1\r\n")]).system.threads == 1


def test_lists_of_texts(recipe):
    """A flag is repeated; in a file it is an array or one text; in Python a text, a list or a tuple."""
    assert parse_train(["--stop", "</answer>", "--stop", r"\n\n", "--stop=\\\\neq"]).stop == (
        "</answer>",
        "\n\n",
        "\\neq",
    )
    file = recipe('stop = ["\\n", "a,b"]')
    assert parse_train([file]).stop == Config(stop=["\n", "a,b"]).stop == ("\n", "a,b")
    assert parse_train([file, "--stop", "x"]).stop == Config(stop="x").stop == parse_train([recipe('stop="x"')]).stop
    config = Config(stop=("\n", "a,b"))
    assert from_dict(Config, as_dict(config)) == config
    assert as_dict(config)["stop"] == ["\n", "a,b"], "as it is read again from JSON, so that a resume compares equal"


@pytest.mark.parametrize("name", ["template", "system_prompt"])
def test_escapes_are_read_in_flags_only(recipe, name):
    """TOML and Python have their own escapes: there a backslash and an n are these two characters."""

    def flag(text):
        return getattr(parse_train([f"--dataset.{name}", text]).dataset, name)

    def toml(text):
        return getattr(parse_train([recipe(f"[dataset]\n{name} = {text}")]).dataset, name)

    assert flag(r"a\nb\tc") == flag("a\nb\tc") == "a\nb\tc"
    assert flag(r"x \\neq 1, \boxed{}") == r"x \neq 1, \boxed{}"
    assert toml(r"'x \neq 1'") == getattr(Config(dataset={name: r"x \neq 1"}).dataset, name) == r"x \neq 1"
    assert toml(r'"a\nb"') == toml("'''a\nb'''") == "a\nb"
    assert "contains a character that cannot be shown" in refusal(recipe(f'[dataset]\n{name} = "\\u0007"'))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stop = 3", "expected text or a list of texts; got 3"),
        ('stop = ["a", 3]', "expected text or a list of texts; got 3"),
        ('stop = ["a", ""]', "contains an empty text; remove it"),
        ('stop = ["\\u0007"]', "contains a character that cannot be shown; got "),
        ("stop = {a = 1}", "expected text or a list of texts; got a table"),
    ],
)
def test_lists_of_other_things(recipe, text, expected):
    assert expected in refusal(recipe(text))
    assert "a value is missing; write --stop VALUE" in refusal("--stop")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "field", "advice"),
    [
        (["--bta", "1"], "bta", "did you mean --loss.beta?"),
        (["--beat=1"], "beat", "did you mean --loss.beta?"),
        (["--los.clip_hgih", "1"], "los.clip_hgih", "did you mean --loss.clip_high?"),
        (["--group-sizes", "1"], "group-sizes", "did you mean --group_size?"),
        (["-steps", "5"], "-steps", "did you mean --steps?"),
        (["--no-steps"], "no-steps", "did you mean --steps?"),
        (["--zzzzzz", "1"], "zzzzzz", "see grpo train --help"),
        (["--loss", "1"], "loss", "is a section; set one of its fields: loss.baseline, "),
    ],
)
def test_unknown_flag(argv, field, advice):
    message = refusal(*argv)
    assert message.startswith(f"field {field} (command line): ")
    assert advice in message


@pytest.mark.parametrize(
    ("text", "field", "line", "advice"),
    [
        ("steps = 3\n\nbta = 1", "bta", 3, "did you mean beta in [loss]?"),
        ("[loss]\n# why\nbta = 1", "loss.bta", 3, "did you mean beta in [loss]?"),
        ("[loss]\nlr = 1", "loss.lr", 2, "did you mean lr at the top, above every [section]?"),
        ('model = """\\\nsteps = 1\\\n"""\n\n"stps" = 1', "stps", 5, "did you mean steps"),
        ("[other]", "other", 1, "see grpo train --help"),
        ("[loss]\nbeta = 1\n[[other]]\nx = 1\n[[other]]\nx = 2", "other", 3, "unknown"),
        ("\nloss = 3", "loss", 2, "is a section"),
        ("a.b.c.d.e = 1", "a.b.c", 1, "unknown"),
    ],
)
def test_unknown_key(recipe, text, field, line, advice):
    message = refusal(recipe(text))
    assert message.startswith(f"field {field} (recipe.toml:{line}): ")
    assert advice in message


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "line", "expected"),
    [
        ('steps = 5\nlr = "1e-5"', "lr", 2, 'expected a number, such as 3e-05; got "1e-5"; remove the quotes'),
        ("steps = 1.5", "steps", 1, "expected a whole number, such as 120; got 1.5"),
        ("steps = true", "steps", 1, "expected a whole number, such as 120; got true"),
        ("steps = [\n1\n]", "steps", 1, "expected a whole number, such as 120; got an array"),
        ("steps = 0x" + "f" * 4000, "steps", 1, "got a number above 2**63"),
        ("lr = 1979-05-27", "lr", 1, "got a date"),
        ("lr = nan", "lr", 1, "expected a finite number, such as 3e-05; got nan"),
        ("[loss]\n\nbeta = -inf", "loss.beta", 3, "expected a finite number"),
        ('resume = "yes"', "resume", 1, 'expected true or false; got "yes"'),
        ("model = 3", "model", 1, "expected text; got 3"),
        ('model = "a\\u0000b"', "model", 1, "cannot be shown"),
        ("[loss.beta]\nx = 1", "loss.beta", 1, "expected a number, such as 0.04; got a table"),
        ("[dataset]\nchat_template_kwargs = 1", "dataset.chat_template_kwargs", 2, "expected a JSON object, such as"),
        ("[dataset.chat_template_kwargs]\nx = 1979-05-27", "dataset.chat_template_kwargs", 1, "got a table"),
        (
            '[loss]\nbaseline="man"',
            "loss.baseline",
            2,
            '"leave_one_out", "batch", "length_weighted", "value"; got "man"; did you mean "mean"?',
        ),
    ],
)
def test_wrong_value_in_toml(recipe, text, field, line, expected):
    message = refusal(recipe(text))
    assert message.startswith(f"field {field} (recipe.toml:{line}): ")
    assert expected in message


@pytest.mark.parametrize(
    ("argv", "field", "expected"),
    [
        (["--steps", "1e2"], "steps", 'expected a whole number, such as 120; got "1e2"'),
        (["--steps=9" + "0" * 30], "steps", "got a number above 2**63"),
        (["--lr", "fast"], "lr", 'expected a number, such as 3e-05; got "fast"'),
        (["--lr", "nan"], "lr", "expected a finite number"),
        (["--lr", "-inf"], "lr", "expected a finite number"),
        (["--loss.kl", "k4"], "loss.kl", 'expected one of "k1", "k2", "k3", "k3_ratio"; got "k4"'),
        (["--chat-template-kwargs", "{"], "dataset.chat_template_kwargs", 'expected a JSON object, such as {"ena'),
        (["--chat-template-kwargs", "[1]"], "dataset.chat_template_kwargs", 'got "[1]"'),
        (["--chat-template-kwargs", '{"a":' * 9000], "dataset.chat_template_kwargs", "expected a JSON object"),
        (["--lr"], "lr", "a value is missing; write --lr 3e-05"),
        (["--run", "--quiet"], "run", "a value is missing; write --run VALUE"),
        (["--resume=yes"], "resume", "a switch takes no value; write --resume or --no-resume"),
        (["--no-resume", "true"], "resume", "a switch takes no value; write --resume or --no-resume"),
    ],
)
def test_wrong_value_in_flag(argv, field, expected):
    message = refusal(*argv)
    assert message.startswith(f"field {field} (command line): ")
    assert expected in message


@pytest.mark.parametrize(
    "text",
    [
        """[dataset]\nchat_template_kwargs = '{"enable_thinking": false}'""",
        "[dataset]\nchat_template_kwargs = {enable_thinking = false}",
        "[dataset]\nchat-template-kwargs.enable_thinking = false",
        "[dataset.chat_template_kwargs]\nenable_thinking = false",
    ],
)
def test_a_json_object_may_be_a_table(recipe, text):
    expected = {"enable_thinking": False}
    assert parse_train([recipe(text)]).dataset.template_kwargs == expected
    assert parse_train(["--chat-template-kwargs", '{"enable_thinking": false}']).dataset.template_kwargs == expected
    assert Config(dataset={"chat_template_kwargs": expected}).dataset.template_kwargs == expected
    assert Config(dataset=Dataset(chat_template_kwargs=expected)) == parse_train([recipe(text)])
    assert Config().dataset.template_kwargs == {}


def test_stray_argument():
    message = refusal("steps=3")
    assert message.startswith('argument "steps=3" (command line): unexpected; flags start with --')


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("steps = 1\nlr 3", "2:4"),
        ("a = 1\na = 2", "2:6"),
        ("a = [1,\n", "2:1"),
        ("x = 1\nn = 1" + "0" * 5000, "2:5006"),
    ],
)
def test_malformed_toml(recipe, text, place):
    assert refusal(recipe(text)).startswith(f"recipe.toml:{place}: not valid TOML: ")


def test_unreadable_toml(recipe, tmp_path):
    assert refusal("none.toml").startswith("none.toml (command line): no such file; check the path")
    Path("folder.toml").mkdir()
    assert refusal("folder.toml").startswith("folder.toml (command line): cannot be read")
    Path("latin.toml").write_bytes(b'model = "\xe9"')
    assert refusal("latin.toml").startswith("latin.toml (command line): cannot be read as text")
    assert "no such file" not in refusal("nul\x00.toml")


# --- anything at all --------------------------------------------------------------------------------------------------

junk = st.text(max_size=12) | st.sampled_from(
    ["-", "--", "=", "--=", "-1", "1e9", "true", "[", "--help", "x.toml", "\x00.toml"]
)
flag_like = st.builds(
    "--{}{}".format,
    st.sampled_from([*LEAVES, "loss", "no-resume", "top_p"]),
    st.just("") | junk.map("={}".format),
)
key_like = st.sampled_from(
    [*LEAVES, "loss", "[loss]", "[[loss]]", "a.b.c.d", '"a.b"', "[a.b]", "[[a.b]]", "[loss.beta]"]
)
value_like = st.sampled_from(
    ["1", "-0.0", "1e400", '"x"', "'''\nsteps=1\n'''", "[1,\n2]", "{}", "{a=1}", "07:32:00", "true", "inf", '"k1"']
)
line_like = st.builds("{} = {}".format, key_like, value_like) | key_like | st.text(max_size=10)


HELP = "help was shown"


def outcome(parse, argv: list[str]) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parse(argv)
    except GrpoError as refused:
        return str(refused)
    except SystemExit as leaving:
        return HELP if leaving.code == 0 else "left\nwith an error of another kind"
    return ""


@settings(max_examples=150, deadline=None)
@given(
    st.lists(flag_like | junk, max_size=6),
    st.lists(line_like, max_size=5).map("\n".join),
    st.sampled_from([parse_train, parse_sft]),
)
def test_nothing_but_one_line_is_raised(tmp_path_factory, argv, text, parse):
    file = tmp_path_factory.getbasetemp() / "random.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for arguments in (argv, [str(file)], [*argv, str(file)]):
        message = outcome(parse, arguments)
        assert message.isprintable()
        assert message != HELP or {"--help", "-h"} & set(arguments)


def test_values_are_built_without_tyro(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked values go into the dataclass as they are; tyro only prints the help."""
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert parse_train(["--lr", "1", "--loss.beta", "0.5"]).loss.beta == 0.5
    config = from_dict(Config, as_dict(Config(run="-x=y", lr=0.1 + 0.2)))
    assert (config.run, config.lr) == ("-x=y", 0.1 + 0.2)
