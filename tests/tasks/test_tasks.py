"""Every task: golds score one, junk scores zero, draws are keyed, held-out problems stay out."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.cli.main import main
from grpo.config import Config, Dataset
from grpo.errors import GrpoError
from grpo.rewards.format import json_schema, length, tags
from grpo.tasks import REQUIRED, load_task
from grpo.tasks.arithmetic import final_answer, work
from grpo.tasks.countdown import evaluate
from grpo.tasks.reasoning_gym import ALLOWED, REFUSED
from grpo.tasks.rows import Source
from grpo.training.fingerprint import fingerprints
from grpo.types import Problem

NAMES = ["arithmetic", "arithmetic:easy"]


@pytest.mark.parametrize("name", NAMES)
def test_gold_scores_one_and_junk_zero(name: str) -> None:
    task = load_task(name)
    for problem in task.heldout()[:200]:
        expression = problem.prompt.rstrip("=")
        assert problem.answer == str(eval(expression))
        assert task.score(problem, problem.answer) == {"correct": 1.0}
        assert task.score(problem, work(problem.prompt) + problem.answer) == {"correct": 1.0}
        for junk in ("", "x", problem.prompt, problem.answer + "0", "(" + problem.answer, problem.answer + ")", "0"):
            assert task.score(problem, junk) == {"correct": 0.0}, junk


@pytest.mark.parametrize("name", NAMES)
def test_draws_are_keyed_and_disjoint_from_heldout(name: str) -> None:
    task = load_task(name)
    first = task.draw(step=3, count=50, seed=1)
    assert first == task.draw(step=3, count=50, seed=1)
    assert first[:20] == task.draw(step=3, count=20, seed=1)
    assert first != task.draw(step=4, count=50, seed=1)
    assert first != task.draw(step=3, count=50, seed=2)
    assert len({problem.id for problem in first}) == 50
    heldout = task.heldout()
    assert len({problem.prompt for problem in heldout}) == len(heldout) == 1000
    trained = {problem.prompt for problem in task.draw(step=0, count=20_000, seed=1)}
    assert not trained & {problem.prompt for problem in heldout}


def test_arithmetic_mixes_sums_and_products() -> None:
    prompts = [problem.prompt for problem in load_task("arithmetic").draw(0, 400, 1)]
    products = sum("*" in prompt for prompt in prompts)
    assert 150 < products < 250
    assert all(prompt.count("+") == 3 for prompt in prompts if "*" not in prompt)


def test_the_work_holds_the_answers_digits() -> None:
    """A sum: the last tens sum, then the ones digit of the last ones sum. A product: its columns from the right."""
    for problem in load_task("arithmetic").draw(0, 300, 1):
        rows = [[int(number) for number in row.split(",")] for row in work(problem.prompt)[1:-1].split(";")]
        if "*" in problem.prompt:
            digits = "".join(str(column % 10) for column in reversed(rows[2]))
            assert int(digits) == int(problem.answer)
        else:
            assert f"{rows[1][-1]}{rows[0][-1] % 10}" == problem.answer


def test_final_answer_is_what_follows_the_work() -> None:
    assert final_answer("(1,2)42") == "42"
    assert final_answer("42") == "42"
    assert final_answer("(1)(2)42") == "42"
    assert final_answer("(1,2") == "(1,2"


def test_typed_prompts_are_recognised() -> None:
    task = load_task("arithmetic")
    assert task.recognise("47*86=").answer == "4042"
    assert task.recognise("1+2+3=").answer == "6"
    assert task.recognise("47*86") is None
    assert task.recognise("what is 2+2?") is None


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(GrpoError, match=r"field task: no task 'algebra'; name one of .*arithmetic, "):
        load_task("algebra")
    with pytest.raises(GrpoError, match=r"no task 'countdwon'; did you mean countdown\?"):
        load_task("countdwon")
    with pytest.raises(GrpoError, match="field task: arithmetic has no variant 'hard'"):
        load_task("arithmetic:hard")


# Countdown.


@pytest.mark.parametrize("name", ["countdown", "countdown:easy"])
def test_countdown_problems_can_be_solved_and_are_checked(name: str) -> None:
    task = load_task(name)
    heldout = task.heldout()
    drawn = task.draw(3, 50, 1)
    assert drawn == task.draw(3, 50, 1) != task.draw(4, 50, 1)
    assert not {problem.prompt for problem in heldout} & {problem.prompt for problem in task.draw(0, 2000, 1)}
    for problem in (*drawn, *heldout[:100]):
        numbers, target = problem.columns["numbers"], problem.columns["target"]
        assert eval(problem.answer) == target
        for text in (problem.answer, f"<answer>{problem.answer}</answer>", f"so\n{problem.answer} = {target}"):
            assert task.score(problem, text) == {"correct": 1.0}
        for junk in (
            "",
            str(target),
            f"{target}",
            "+".join(map(str, numbers)) + "+0",
            f"({problem.answer})*1",
            "1+",
            "()",
        ):
            assert task.score(problem, junk) == {"correct": 0.0}, junk


@settings(deadline=None)
@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda parts: f"({parts[0]}{parts[1]}{parts[2]})"
        ),
        max_leaves=6,
    )
)
def test_countdown_evaluates_as_python_does_in_fractions(expression: str) -> None:
    def fraction(text: str) -> Fraction | None:
        try:
            return eval(re.sub(r"(\d+)", r"Fraction(\1)", text))
        except ZeroDivisionError:
            return None

    assert evaluate(expression) == fraction(expression)


def test_countdown_runs_nothing() -> None:
    for text in (
        "__import__('os').getcwd()",
        "9**9**9",
        "(" * 5000 + "1" + ")" * 5000,
        "1" * 300,
        "-1",
        "1 if 1 else 2",
    ):
        assert evaluate(text) is None


# reasoning-gym.


def test_reasoning_gym_names_near_ones_and_says_why_not() -> None:
    with pytest.raises(GrpoError, match="reasoning_gym has no generator 'spel_backwards'; did you mean spell_backward"):
        load_task("reasoning_gym:spel_backwards")
    with pytest.raises(
        GrpoError, match="reasoning_gym:puzzle24 is not allowed: its scorer may run a completion as code"
    ):
        load_task("reasoning_gym:puzzle24")
    with pytest.raises(GrpoError, match="needs a generator, such as reasoning_gym:spell_backward"):
        load_task("reasoning_gym")
    assert not set(ALLOWED) & set(REFUSED)


@pytest.mark.parametrize("generator", ALLOWED)
def test_reasoning_gym_golds_pass_and_junk_does_not(generator: str) -> None:
    pytest.importorskip("reasoning_gym")
    task = load_task(f"reasoning_gym:{generator}")
    problems = task.draw(2, 2, seed=1)
    assert problems == task.draw(2, 2, seed=1)
    for problem in problems:
        assert task.score(problem, problem.answer) == {"correct": 1.0}
        assert task.score(problem, f"<think>Hm.</think>\n<answer>{problem.answer}</answer>") == {"correct": 1.0}
        for junk in (
            "",
            "x",
            "lorem ipsum dolor",
            "<answer></answer>",
            "[]",
            "{}",
            "9" * 5000,
            "__import__('os')._exit(3)",
        ):
            assert task.score(problem, junk) == {"correct": 0.0}, junk


def test_reasoning_gym_settings_partial_marks_and_held_out_problems() -> None:
    pytest.importorskip("reasoning_gym")
    task = load_task("reasoning_gym:chain_sum,min_terms=2,max_terms=2,min_digits=1,max_digits=1")
    heldout = {problem.prompt for problem in task.heldout()}
    drawn = task.draw(0, 300, 1)
    assert heldout
    assert not heldout & {problem.prompt for problem in drawn}
    assert all(problem.prompt.count("+") + problem.prompt.count("-") == 1 for problem in drawn)
    [problem] = load_task("reasoning_gym:lcm").draw(0, 1, 1)
    near = f"I say {problem.answer}"
    assert load_task("reasoning_gym:lcm").score(problem, near) == {"correct": 0.0}
    assert 0 < load_task("reasoning_gym:lcm,partial").score(problem, near)["correct"] < 1
    with pytest.raises(GrpoError, match="reasoning_gym:chain_sum does not take"):
        load_task("reasoning_gym:chain_sum,colour=3")
    with pytest.raises(GrpoError, match="'few' is not a valid setting of a generator"):
        load_task("reasoning_gym:chain_sum,few")


def test_reasoning_gym_problems_do_not_depend_on_the_hash_seed() -> None:
    pytest.importorskip("reasoning_gym")
    program = (
        "import hashlib; from grpo.tasks import load_task; from grpo.tasks.reasoning_gym import ALLOWED;"
        "print({n: [(p.prompt, p.answer) for p in load_task('reasoning_gym:' + n).draw(1, 2, 1)] for n in ALLOWED})"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(outputs[0]) > 10_000
    first, second = (eval(output) for output in outputs)
    assert [name for name in first if first[name] != second[name]] == []


# GSM8K and MATH, in their own formats.


def test_gsm8k_and_math_find_the_gold_in_a_solution(tmp_path: Path) -> None:
    rows = [
        f'{{"question": "q{n}", "answer": "2*{n} = <<2*{n}={2 * n}>>{2 * n}\\n#### {2 * n:,}"}}\n'
        for n in range(900, 1100)
    ]
    (tmp_path / "train.jsonl").write_text("".join(rows))
    task = load_task("gsm8k", str(tmp_path / "train.jsonl"))
    [problem] = [problem for problem in task.problems() if problem.columns["question"] == "q1000"]
    assert problem.answer == "2,000"
    assert problem.messages[0]["content"].startswith("q1000\nReason step by step.")
    assert task.score(problem, "It is 2000 eggs.") == {"correct": 1.0}
    assert load_task("gsm8k:strict", str(tmp_path / "train.jsonl")).score(problem, "It is 2000 eggs.") == {
        "correct": 0.0
    }
    assert task.traits(problem, "It is 2000 eggs.") == {"strictly_right": 0.0, "unparsed": 0.0}
    assert task.recognise("q1000") == problem
    pytest.importorskip("math_verify")
    solutions = [
        f'{{"problem": "p{n}", "solution": "so $\\\\boxed{{\\\\frac{{{n}}}{{7}}\\\\pi}}$"}}\n' for n in range(50)
    ]
    (tmp_path / "math.jsonl").write_text("".join(solutions))
    task = load_task("math", str(tmp_path / "math.jsonl"))
    [problem] = [problem for problem in task.problems() if problem.columns["problem"] == "p3"]
    assert problem.answer == r"\frac{3}{7}\pi"
    assert task.score(problem, r"\boxed{\frac{3\pi}{7}}") == {"correct": 1.0}
    assert task.score(problem, r"\boxed{\frac{4\pi}{7}}") == {"correct": 0.0}


# People's own.

OWN = """
from grpo.types import Problem

class {name}:
    name = "own"
    def draw(self, step, count, seed):
        return [Problem(f"{{step}}/{{i}}", "1+1=", "2") for i in range(count)]
    def heldout(self):
        return [Problem("h", "2+2=", "4")]
    def score(self, problem, text):
        return {{"correct": float(text == problem.answer)}}
"""


def test_a_task_out_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(name="Mine"))
    task = load_task(str(path))
    assert task.score(task.heldout()[0], "4") == {"correct": 1.0}
    before = fingerprints(Config(), task)["task code"]
    path.write_text(OWN.format(name="Mine") + "# other code\n")
    assert fingerprints(Config(), load_task(str(path)))["task code"] != before
    path.write_text(OWN.format(name="Mine") + OWN.format(name="Yours"))
    assert type(load_task(f"{path}:Yours")).__name__ == "Yours"
    path.write_text(OWN.format(name="Mine") + "task = Mine()\ntask.name = 'made'\n")
    assert load_task(str(path)).name == "made"
    path.write_text(OWN.format(name="Mine").replace("heldout", "apart"))
    with pytest.raises(GrpoError, match=r"lacks heldout; see docs/tasks\.md"):
        load_task(str(path))


SETTINGS_OF_ROWS = [
    {"prompt": "ask"},
    {"chat": False},
    {"max_prompt_tokens": 9},
    {"split": "test"},
    {"heldout": "other.jsonl"},
    {"heldout_share": 0.2},
]


@pytest.mark.parametrize("rows", SETTINGS_OF_ROWS, ids=lambda rows: next(iter(rows)))
def test_settings_of_rows_are_refused_where_a_task_makes_its_problems(rows: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(name="Mine") + "task = Mine()\n")
    [field] = rows
    for name, what in {"arithmetic": "task arithmetic", f"{tmp_path}/mine.py": "task object in .*mine.py"}.items():
        with pytest.raises(GrpoError, match=f"^field dataset.{field}: the {what} makes its own problems; leave it out"):
            load_task(name, dataset=Dataset(**rows))


def test_any_task_takes_a_chat_template_and_the_settings_of_a_check(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(name="Mine") + "task = Mine()\n")
    of_template = Dataset(chat_template="qwen3", chat_template_kwargs='{"enable_thinking": false}')
    for dataset in (of_template, Dataset(heldout_share=0.0)):
        assert load_task("arithmetic", dataset=dataset).name == "arithmetic"
        assert load_task(f"{tmp_path}/mine.py", dataset=dataset).name == "own"


def test_a_task_that_takes_rows_is_given_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(name="Mine") + "    def __init__(self, source):\n        self.source = source\n")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    task = load_task(str(path), str(tmp_path / "rows.csv"))
    assert isinstance(task.source, Source)
    assert task.source.data.endswith("rows.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "field task: no file mine.py"),
        ("x = 1", "field task: mine.py defines none; give it one class with name, draw, heldout, score"),
        (OWN.format(name="A") + OWN.format(name="B"), "field task: mine.py defines A, B;"),
        ("def f(:", "mine.py:1: SyntaxError"),
        ("import os\n\nos.nothing()", "mine.py:3: AttributeError: module 'os' has no attribute 'nothing'"),
    ],
)
def test_a_bad_file_is_told_in_one_line(content, said, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("mine.py").write_text(content)
    assert main(["train", "--task", "mine.py"]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


# Forms.


ANY = Problem("p", "", "")


def test_tags_must_be_whole_and_alone() -> None:
    right = "<think>a < b</think>\n<answer>42</answer>\n"
    reward = tags("think", "answer")
    assert reward(ANY, right) == 1.0
    swapped, empty = "<answer>42</answer><think>a</think>", "<think>a</think><answer> </answer>"
    for wrong in (right + "more", swapped, right * 2, empty, "", "42"):
        assert reward(ANY, wrong) == 0.0
    with pytest.raises(GrpoError, match="name the tags"):
        tags()


def test_json_by_schema(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "required": ["names", "ok"],
        "additionalProperties": False,
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "ok": {"type": "boolean"},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": ["number", "null"], "maximum": 9},
        },
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    good = {"names": ["x"], "ok": True, "kind": "a", "size": None}
    bad = ({"names": []}, {"names": [1]}, {"ok": 1}, {"kind": "c"}, {"size": True}, {"size": 10}, {"extra": 1})
    for reward in (json_schema(schema), json_schema(str(tmp_path / "schema.json"))):
        assert reward(ANY, json.dumps(good)) == reward(ANY, json.dumps({**good, "size": 9})) == 1.0
        for change in bad:
            assert reward(ANY, json.dumps({**good, **change})) == 0.0
        for wrong in ("", "{}", "[" * 10**5, "nothing"):
            assert reward(ANY, wrong) == 0.0
    assert json_schema({"items": {"pattern": "^a+$"}})(ANY, '["aa"]') == 1.0
    assert json_schema({"$defs": {"a": {"const": 1}}, "$ref": "#/$defs/a"})(ANY, "true") == 0.0, "true is not 1"
    with pytest.raises(GrpoError, match=r"none\.json cannot be read as JSON"):
        json_schema("none.json")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": 7}, r"\$.type of the schema: 7 is not valid"),
        ({"items": {"type": "int"}}, r"\$.items.type of the schema: 'int' is not valid"),
        ({"properties": {"x": {"minimun": 3}}}, "keyword 'minimun' is unknown or not checked"),
        ({"allOf": [{"format": "date"}]}, "keyword 'format' is unknown or not checked"),
        (
            {"items": {"properties": {"x": "string"}}},
            r"\$.items.properties.x of the schema: 'string' is not of type 'object'",
        ),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused(schema: dict[str, object], told: str) -> None:
    with pytest.raises(GrpoError, match=f"reward json_schema: {told}"):
        json_schema(schema)


def test_a_reference_outside_the_schema_stops_the_run() -> None:
    with pytest.raises(GrpoError, match=r"\$ref 'http://nowhere.invalid/x' is not in the schema"):
        json_schema({"$ref": "http://nowhere.invalid/x"})(ANY, "1")


def test_length_falls_in_a_straight_line() -> None:
    assert [length(10)(ANY, "x" * count) for count in (3, 10, 12, 15, 20, 99)] == [1.0, 1.0, 0.8, 0.5, 0.0, 0.0]
    with pytest.raises(GrpoError, match="at least 1; got 0"):
        length(0)


def test_the_least_a_task_must_have() -> None:
    assert REQUIRED == ("name", "draw", "heldout", "score")


def test_tasks_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """What scores is pickled; a process that never saw the file or the rows gives the same rewards."""
    (tmp_path / "mine.py").write_text(OWN.format(name="Mine"))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "q{n}", "answer": "{n}"}}\n' for n in range(500)))
    tasks = [
        load_task(str(tmp_path / "mine.py")),
        load_task("data", str(tmp_path / "rows.jsonl")),
        load_task("countdown"),
    ]
    cases = [
        (task, problem, text) for task in tasks for problem in task.draw(0, 1, 1) for text in (problem.answer, "x")
    ]
    sent = pickle.dumps(cases)
    assert len(sent) < 5000, "no rows travel"
    program = "import pickle, sys; print([t.score(p, x) for t, p, x in pickle.load(sys.stdin.buffer)])"
    said = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True).stdout
    assert eval(said) == [{"correct": 1.0}, {"correct": 0.0}] * 3


def test_a_task_out_of_a_file_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN.format(name="Mine"))
    flags = "--steps 1 --prompts-per-step 2 --group-size 2 --evaluation.every 0 --system.device cpu --quiet --run mine"
    assert main(["train", "--model", "nano", "--task", "mine.py", *flags.split()]) == 0
    assert main(["runs", "mine"]) == 0
