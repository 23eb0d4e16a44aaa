"""People's own rewards: TRL's functions unchanged, plain ones, faults of all kinds in a run."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest

from grpo.cli.main import main
from grpo.config import Scoring
from grpo.errors import GrpoError
from grpo.record.metrics import is_timed
from grpo.record.store import Run
from grpo.rewards import Scorer
from grpo.rewards.functions import Spec, parse
from grpo.rewards.pool.invoke import LARGEST, TOO_LARGE
from grpo.tasks.arithmetic import Arithmetic
from grpo.types import Completion, Group, Problem, chat
from helpers import trl_rewards

HERE = Path(__file__).parents[1] / "helpers"
TRAIN = [
    *("train", "--model", "nano", "--steps", "2", "--prompts-per-step", "4", "--group-size", "4"),
    *("--max-new-tokens", "32", "--evaluation.problems", "8", "--evaluation.probes", "0", "--system.device", "cpu"),
    *("--run", "job", "--quiet", "--scoring.workers", "2", "--scoring.seconds", "2"),
]


def group_of(*texts: str, problem: Problem | None = None) -> Group:
    tokens = [np.arange(len(text)) for text in texts]
    completions = tuple(
        Completion(text, ids, ids.astype(np.float32), "stop") for text, ids in zip(texts, tokens, strict=True)
    )
    return Group(problem or Problem("p", "6*7=", "42"), np.zeros(1), completions, 3)


def scored(reward: str, group: Group, scoring: Scoring | None = None) -> tuple[Completion, ...]:
    with Scorer(Arithmetic(), reward, scoring or Scoring(workers=1, seconds=2.0)) as scorer:
        [done] = scorer.score([group])
        return done.completions


def test_the_field_is_read() -> None:
    assert parse("") == []
    assert parse("a/b.py:f") == [Spec("a/b.py", "f", 1.0)]
    assert parse("a.py:f*-0.5, task *2,m.n:g(1, k=[2, 3])*1e-1") == [
        Spec("a.py", "f", -0.5),
        Spec("task", "", 2.0),
        Spec("m.n", "g(1, k=[2, 3])", 0.1),
    ]
    assert parse("judge:http://localhost:8000/v1*0.5") == [Spec("judge", "http://localhost:8000/v1", 0.5)]


@pytest.mark.parametrize("field", ["f", "a.py:", ":f", "a.py:f g", "a.py:f*1.2.3"])
def test_what_is_no_reward_is_refused(field: str) -> None:
    with pytest.raises(GrpoError, match="field reward: "):
        parse(field)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (" ", "entry 1 of ' ' is empty; leave it out"),
        (",,", "entry 1 of ',,' is empty; leave it out"),
        ("a.py:f,,task", "entry 2 of 'a.py:f,,task' is empty; leave it out"),
        ("a.py:f,", "entry 2 of 'a.py:f,' is empty; leave it out"),
        ("task, a.py:f(2*3) *x", "the weight 'x' in 'a.py:f(2*3) *x' is not a finite number; write NAME*0.5"),
        ("a.py:f*nan", "the weight 'nan' in 'a.py:f*nan' is not a finite number"),
        ("a.py:f*1e999", "the weight '1e999' in 'a.py:f*1e999' is not a finite number"),
        ("a.py:f*", "the weight '' in 'a.py:f*' is not a finite number"),
    ],
)
def test_an_empty_entry_or_a_weight_that_is_no_number_is_named(field: str, says: str) -> None:
    with pytest.raises(GrpoError, match=re.escape(f"field reward: {says}")):
        parse(field)


def test_the_weight_0_only_records_a_value(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(problem, text):\n    return 3.0\n")
    [done] = scored(f"task, {file}:f*0", group_of("42"))
    assert (done.reward, done.parts["f"]) == (1.0, 3.0)
    for reward in ("task*0", f"{file}:f*0", f"task*-0.0, {file}:f*0"):
        with pytest.raises(GrpoError, match=f"^field reward: every weight in '{re.escape(reward)}' is 0; give an"):
            Scorer(Arithmetic(), reward)
    with pytest.raises(GrpoError, match=r"^field evaluation\.reward: every weight in 'task\*0' is 0"):
        Scorer(Arithmetic(), "task*0", evaluation=True)


def own_value(name: str, prompt: str, answer: str, text: str, tokens: int) -> float:
    """What the file's function itself says of one completion."""
    [value] = getattr(trl_rewards, name)(
        prompts=[prompt],
        completions=[text],
        answer=[answer],
        completion_ids=[[0] * tokens],
        trainer_state=SimpleNamespace(global_step=0),
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
    )
    return value


def test_a_trl_file_trains_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every recorded reward is the weighted sum of what the functions say when called by hand. `grpo eval` and
    `grpo sample` use the reward of the run."""
    monkeypatch.chdir(tmp_path)
    file = HERE / "trl_rewards.py"
    weights = {"correct": 1.0, "digits": 0.5, "short": 2.0}
    field = ",".join(f"{file}:{name}*{weight}" for name, weight in weights.items())
    assert main([*TRAIN, "--reward", field]) == 0
    seen = set()
    with Run.open(Path("runs"), "job", readonly=True) as run:
        groups = [group for step in (0, 1) for group in run.groups(step)]
        assert len(groups) == 8
        for group in groups:
            for row in group["completions"]:
                asked = group["prompt"], group["answer"], row["text"], row["length"]
                parts = {name: own_value(name, *asked) for name in weights}
                assert row["parts"] == parts
                assert row["reward"] == pytest.approx(sum(weights[name] * parts[name] for name in parts), abs=1e-12)
                assert row["extra"] == {"length": row["length"]}, "by log_extra of `short`"
                assert row["why"] == ""
                seen.add(row["reward"])
        assert len(seen) > 3
        assert [row["updates"] for row in run.metrics()] == [1, 1]
        assert [row["extra_length"] for row in run.completions()] == [row["length"] for row in run.completions()]
        for metrics in (*run.metrics(), *run.evals()):  # groups are of one size: the mean of their means
            assert metrics["logged/mean_length"] == pytest.approx(metrics["length_mean"], rel=1e-12)
        measured = run.evals()[-1]
        rewards = [row["reward"] for group in run.eval_groups(2) for row in group["completions"]]
        assert measured["reward_mean"] == pytest.approx(fmean(rewards), abs=1e-12)
        assert measured["reward_mean"] != measured["accuracy"]
        assert measured["reward_mean"] == pytest.approx(
            sum(weights[name] * measured[f"part/{name}"] for name in weights)
        )
    capsys.readouterr()
    assert main(["eval", "job", "--problems", "8", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    shared = [name for name in measured if name in again]
    assert {"accuracy", "greedy_accuracy", "reward_mean"} <= set(shared)
    assert [again[name] for name in shared] == [measured[name] for name in shared]
    assert main(["sample", "job", groups[0]["prompt"], "-n", "4", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["completions"]:
        asked = groups[0]["prompt"], groups[0]["answer"], row["text"], row["tokens"]
        wanted = sum(weight * own_value(name, *asked) for name, weight in weights.items())
        assert row["reward"] == pytest.approx(wanted, abs=1e-12)
    assert main(["sample", "job", groups[0]["prompt"], "-n", "4", "--json", "--reward", "task"]) == 0
    assert {row["reward"] for row in json.loads(capsys.readouterr().out)["completions"]} <= {0.0, 1.0}


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rewards = ["--reward", f"{HERE / 'trl_rewards.py'}:correct, {HERE / 'trl_rewards.py'}:digits*0.3"]
    assert main([*TRAIN, *rewards, "--steps", "4", "--run", "whole"]) == 0
    assert main([*TRAIN, *rewards, "--steps", "2", "--run", "parts"]) == 0
    # Another number of workers makes no other run.
    assert main([*TRAIN, *rewards, "--steps", "4", "--run", "parts", "--resume", "--scoring.workers", "1"]) == 0
    with (
        Run.open(Path("runs"), "whole", readonly=True) as whole,
        Run.open(Path("runs"), "parts", readonly=True) as parts,
    ):
        for step in range(4):
            assert whole.groups(step) == parts.groups(step)
        for left, right in zip(whole.metrics(), parts.metrics(), strict=True):
            assert left.keys() == right.keys()
            assert all(is_timed(name) or left[name] == right[name] for name in left)


def test_a_resumed_run_notices_another_reward_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("def f(problem, text):\n    return len(text) / 10\n")
    assert main([*TRAIN, "--reward", "mine.py:f", "--steps", "1"]) == 0
    file.write_text("def f(problem, text):\n    return len(text) / 20\n")
    assert main([*TRAIN, "--reward", "mine.py:f", "--resume"]) == 2
    assert "reward code: mine.py changed" in capsys.readouterr().err


def test_trl_arguments() -> None:
    problem = Problem("p", "6*7=", "42", columns={"level": "easy", "prompt": "not twice"})
    mine = f"{HERE / 'trl_rewards.py'}:"
    assert [c.reward for c in scored(f"{mine}slow_to_answer", group_of("abc", "", problem=problem))] == [3.0, 0.0]
    assert [c.reward for c in scored(f"{mine}short", group_of("abc", "x" * 1000))] == [-0.03, None]
    # None leaves the other reward to decide alone; both None leave the completion unscored.
    both = scored(f"{mine}only_sums,{mine}digits*2", group_of("12", "x"))
    assert [(c.reward, dict(c.parts)) for c in both] == [
        (0.4, {"only_sums": None, "digits": 0.2}),
        (0.0, {"only_sums": None, "digits": 0.0}),
    ]
    assert asyncio.run(trl_rewards.slow_to_answer(["abc", ""])) == [3.0, 0.0]


def test_columns_conversations_and_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("def same(a, b):\n    return float(a == b)\n")
    (tmp_path / "mine.py").write_text(
        "from neighbour import same\n"
        "def f(prompts, completions, level, answer, **kwargs):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': 'What is 6 * 7?'}], prompts\n"
        "    assert level == ['easy'] * len(completions)\n"
        "    assert sorted(kwargs) == ['completion_ids', 'log_extra', 'log_metric', 'solution', 'trainer_state']\n"
        "    return [same(c[0]['content'], a) for c, a in zip(completions, answer)]\n"
        "def strict(completions, level):\n"
        "    return [1.0 if l == 'easy' else 0.0 for l in level]\n"
    )
    asked = {"messages": chat("What is 6 * 7?"), "conversational": True}
    problem = Problem("p", "What is 6 * 7?", "42", columns={"level": "easy"}, **asked)
    reward = f"{tmp_path / 'mine.py'}:f, {tmp_path / 'mine.py'}:strict"
    done = scored(reward, group_of("42", "41", problem=problem))
    assert [(c.reward, c.why) for c in done] == [(2.0, ""), (1.0, "")]


@pytest.mark.parametrize("conversational", [False, True])
def test_completions_are_texts_or_messages_as_the_row_is(tmp_path: Path, conversational: bool) -> None:
    """`long` reads either, and means the number of characters or of turns. `strip` and `first` read one of them alone,
    and get it; an error on both forms is reported."""
    (tmp_path / "mine.py").write_text(
        "def long(completions, **kwargs):\n    return [len(c) for c in completions]\n"
        "def strip(completions, prompts):\n"
        "    return [c.strip() == '42' and p == '6*7=' for c, p in zip(completions, prompts)]\n"
        "def first(completions, prompts):\n"
        "    return [c[0]['content'] == '42' and p == [{'role': 'user', 'content': '6*7='}]\n"
        "            for c, p in zip(completions, prompts)]\n"
        "def wrong(completions):\n    return [c.upper() + 1 for c in completions]\n"
    )
    problem = Problem("p", "6*7=", "42", messages=chat("6*7="), conversational=conversational)
    group = group_of("42", "141", problem=problem)
    reward = ",".join(f"{tmp_path / 'mine.py'}:{name}" for name in ("long", "strip", "first"))
    parts = [dict(done.parts) for done in scored(reward, group)]
    assert [part["long"] for part in parts] == ([1, 1] if conversational else [2, 3])
    assert [(part["strip"], part["first"]) for part in parts] == [(1, 1), (0, 0)]
    failed = scored(f"{tmp_path / 'mine.py'}:wrong", group)
    reason = "'list' object has no attribute 'upper'" if conversational else "can only concatenate str"
    assert all(done.reward is None and reason in done.why for done in failed)


def test_trls_own_rewards_as_they_are() -> None:
    trl = pytest.importorskip("trl.rewards")
    problem = Problem("p", "?", r"$\frac{1}{3}$", messages=chat("?"))
    texts = ("<think>a</think>b", r"\boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}", "a" * 60)
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    group = group_of(*texts, problem=problem)
    for reward, expected in {
        "think_format_reward": trl.think_format_reward(completions),
        "accuracy_reward": trl.accuracy_reward(completions, [problem.answer] * 4),
        "get_soft_overlong_punishment(max_completion_len=80, soft_punish_cache=40)": trl.get_soft_overlong_punishment(
            80, 40
        )([list(range(len(text))) for text in texts]),
    }.items():
        done = scored(f"trl.rewards:{reward}", group, Scoring(workers=1, seconds=30.0))
        assert [c.reward for c in done] == expected, reward
        assert len(set(expected)) > 1, reward


def test_what_a_task_notices_is_noticed_whatever_pays() -> None:
    done = scored(f"{HERE / 'trl_rewards.py'}:digits", group_of("(1;2)42", "42"))
    assert [dict(c.traits) for c in done] == [{"worked": 1.0}, {"worked": 0.0}]


def test_a_class_is_no_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Judge:\n    def __call__(self, problem, text):\n        return 0.5\n")
    named = f"{tmp_path / 'mine.py'}:Judge"
    with pytest.raises(GrpoError, match=r"is a class; name an object, such as .*mine.py:Judge\(\)"):
        scored(named, group_of("42"))
    assert [c.reward for c in scored(f"{named}()", group_of("42"))] == [0.5]


def test_a_script_that_trains_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    """It would train in the process that scores for it, and in the one that scores for that."""
    (tmp_path / "script.py").write_text(
        "import grpo\ndef f(problem, text):\n    return 0.5\n"
        f"grpo.train(grpo.Config(reward='script.py:f', system=grpo.config.System(runs={str(tmp_path / 'runs')!r})))\n"
    )
    with pytest.raises(GrpoError, match=r"trains when it is imported; put that under if __name__ == \"__main__\":"):
        scored(f"{tmp_path / 'script.py'}:f", group_of("42"))
    assert not (tmp_path / "runs").exists()


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(GrpoError, match="field reward: two rewards are named f; rename one"):
        Scorer(Arithmetic(), "a.py:f, b.py:f*2")


def test_dice_fall_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import random\ndef f(problem, text):\n    return random.random()\n")
    first, second = ([c.reward for c in scored(f"{tmp_path / 'mine.py'}:f", group_of("a", "b"))] for _ in range(2))
    assert first == second


def test_the_task_among_others() -> None:
    done = scored(f"task*2, {HERE / 'trl_rewards.py'}:digits", group_of("42", "7"))
    assert [(c.reward, dict(c.parts), dict(c.traits)) for c in done] == [
        (2.2, {"correct": 1.0, "digits": 0.2}, {"worked": 0.0}),
        (0.1, {"correct": 0.0, "digits": 0.1}, {"worked": 0.0}),
    ]


def test_a_functions_own_time_out_scores_nothing() -> None:
    def slow(problem: Problem, text: str) -> float:
        raise TimeoutError

    with Scorer(Arithmetic(), "python:slow", functions={"slow": slow}) as scorer:
        [done] = scorer.score_texts([(Problem("p", "6*7=", "42"), "42")])
    assert (done.reward, done.why) == (0.0, "timeout in reward python:slow: TimeoutError")


def test_a_failure_leaves_a_completion_unscored_and_a_hang_scores_nothing() -> None:
    unruly = f"{HERE / 'unruly.py'}:unruly"
    done = scored(f"{unruly}, {HERE / 'trl_rewards.py'}:digits", group_of("abc", "raise", "sleep", "exit", "none"))
    assert [c.reward for c in done] == [3.0, None, 0.0, 0.0, 0.0]
    assert [c.why.partition(":")[0] for c in done] == [
        "",
        f"failure in reward {HERE / 'unruly.py'}",
        f"timeout in reward {HERE / 'unruly.py'}",
        f"crash in reward {HERE / 'unruly.py'}",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("odd", "nan", "part 'odd' is nan; return a finite number"),
        ("odd", "inf", "part 'odd' is inf; return a finite number"),
        ("odd", "word", "part 'odd' is 'one'; return a finite number"),
        ("odd", "list", "part 'odd' is [1.0]; return a finite number"),
        ("odd", "1e20", f"part 'odd' is 1e+20; {TOO_LARGE}"),
        ("odd", "-1e39", f"part 'odd' is -1e+39; {TOO_LARGE}"),
        ("odd", "1e400", f"part 'odd' is 1{'0' * 199}…; return a finite number"),
        ("short", "x", "returned 1 values for 2 completions; return one for each"),
        ("number", "x", "returned 1.0; return a list with a number for each completion"),
        ("unordered", "x", "returned {0.0, 1.0}; return a list with a number for each completion"),
    ],
)
def test_a_mistake_names_function_and_row(name: str, text: str, says: str) -> None:
    row, shown = (1, text) if name == "odd" else (0, "fine")
    with pytest.raises(GrpoError) as caught:
        scored(f"{HERE / 'unruly.py'}:{name}", group_of("fine", text))
    assert str(caught.value) == f"reward {HERE / 'unruly.py'}:{name}, problem p, completion {row} ({shown!r}): {says}"


def test_the_weighted_sum_must_have_a_finite_square_too(tmp_path: Path) -> None:
    """1e19 is allowed; twice it, by a weight or by two functions, is not. The largest float32 is its square."""
    assert np.isfinite(np.float32(LARGEST) ** 2)
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(LARGEST * 1.0001) ** 2)
    file = tmp_path / "mine.py"
    file.write_text("def f(problem, text):\n    return 1e19\ndef g(problem, text):\n    return 1e19\n")
    assert [one.reward for one in scored(f"{file}:f", group_of("42"))] == [1e19]
    assert [one.reward for one in scored(f"{file}:f, {file}:g*-1", group_of("42"))] == [0.0]
    for reward in (f"{file}:f*2", f"{file}:f, {file}:g"):
        with pytest.raises(GrpoError) as caught:
            scored(reward, group_of("4" * 100))
        text = repr("4" * 100)[:60]
        assert f", problem p, completion 0 ({text}…): the weighted sum is 2e+19; {TOO_LARGE}" in str(caught.value)
        assert str(caught.value).startswith(f"reward {file}:f, ")


def test_a_checker_without_end_costs_the_limit(tmp_path: Path) -> None:
    """What freezes a checker built on math-verify for a minute or for ever, when it runs in the trainer's process."""
    pytest.importorskip("math_verify")
    (tmp_path / "mine.py").write_text(
        "from math_verify import parse, verify\n"
        "def f(problem, text):\n"
        "    found = parse(text, parsing_timeout=None)\n"
        "    return float(verify(parse(problem.answer), found, timeout_seconds=None))\n"
    )
    problem = Problem("p", "?", "$42$")
    texts = (r"\boxed{10^{10^{10}}}", r"$42$", "1 " * 20_000, r"$41$")
    done = scored(f"{tmp_path / 'mine.py'}:f", group_of(*texts, problem=problem), Scoring(workers=1, seconds=2.0))
    assert [c.reward for c in done] == [0.0, 1.0, 0.0, 0.0]
    assert done[0].why.startswith("timeout in reward")
    assert done[3].why == ""


FAULTS = {
    "raise": ("failures", "ValueError: no such luck"),
    "sleep": ("timeouts", "no result after 2 s"),
    "exit": ("crashes", "exited with 3"),
    "allocate": ("crashes", "MemoryError"),
    "print": ("timeouts", "no result after 2 s"),
    "none": ("", ""),
    **({"fork": ("crashes", "BlockingIOError")} if os.geteuid() == 0 else {}),
}
"""Where the trainer is not root, a slow machine may not come to the limit of processes before that of time."""


@pytest.mark.parametrize("fault", FAULTS)
def test_training_goes_on(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The completions of one problem of the first step provoke the fault; the reward of all others is their length."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from unruly import unruly\n"
        "def f(problem, text):\n"
        f"    return unruly(problem, {fault!r} if problem.id == 'train/0/2' else text)\n"
    )
    assert main([*TRAIN, "--reward", "mine.py:f", "--scoring.memory-gb", "0.25"]) == 0
    metric, says = FAULTS[fault]
    with Run.open(Path("runs"), "job", readonly=True) as run:
        rows = [row for group in run.groups(0) for row in group["completions"]]
        hit = run.groups(0)[2]["completions"]
        assert all((row["reward"] is None) == (fault in ("raise", "none")) for row in hit)
        assert all(row["reward"] in (None, 0.0) for row in hit)
        assert all(says in row["why"] for row in hit)
        others = [row for row in rows if row not in hit]
        assert [row["reward"] for row in others] == [len(row["text"]) for row in others]
        first, second = run.metrics()
        share = 4 / 16
        expected = {name: share if name == metric else 0.0 for name in ("failures", "timeouts", "crashes")}
        assert {name: first[name] for name in expected} == expected
        assert first["unscored"] == pytest.approx(share if fault in ("raise", "none") else 0.0)
        assert (second["failures"], second["updates"]) == (0.0, 1.0)
        found = [finding["text"] for finding in run.findings() if finding["kind"] == "reward"]
        assert len(found) == bool(says)
        assert all("in reward mine.py:f" in text and text.startswith("step 0: ") for text in found)


def test_a_reward_that_always_fails_stops_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def f(problem, text):\n"
        "    if problem.id.startswith('train/1/'):\n"
        "        raise KeyError('gone')\n"
        "    return float(len(text))\n"
    )
    assert main([*TRAIN, "--reward", "mine.py:f"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("grpo: reward mine.py:f: failed on 16 of the last ")
    assert "failure: KeyError: 'gone' (File" in line
    assert 'mine.py", line 3, in f)' in line
    with Run.open(Path("runs"), "job", readonly=True) as run:
        assert run.summary()["status"] == "failed"
        assert [row["step"] for row in run.metrics()] == [0]
        assert len(run.groups(0)) == 4


def test_a_mistake_stops_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "def f(completions, trainer_state, **_):\n"
        "    return [float('nan') if trainer_state.global_step == 1 else float(len(c)) for c in completions]\n"
    )
    assert main([*TRAIN, "--reward", "mine.py:f"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("grpo: reward mine.py:f, problem train/1/0, completion 0 ('")
    assert "'): part 'f' is nan; return a finite number" in printed
    with Run.open(Path("runs"), "job", readonly=True) as run:
        assert [row["step"] for row in run.metrics()] == [0]


def test_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--reward", "absent.py:f"]) == 2
    assert capsys.readouterr().err == "grpo: reward absent.py:f: file absent.py does not exist\n"
    assert not Path("runs/job").exists()
