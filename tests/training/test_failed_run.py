"""A run whose reward fails: the record keeps the reason, and the fixed reward resumes it."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import pytest

from grpo.cli.main import main
from grpo.errors import headline, whole_characters
from grpo.rewards.pool.invoke import Outcome, Request, error_line, invoke
from grpo.types import Problem

BROKEN = 'def mine(problem, text):\n    raise ValueError("first line\\nsecond line")\n'
SUMS = """
from grpo.types import Problem

class Sums:
    name = "sums"
    def draw(self, step, count, seed):
        return [Problem(f"{step}/{i}", f"1+{i}=", str(1 + i)) for i in range(count)]
    def heldout(self):
        return [Problem("held", "1+9=", "10")]
    def score(self, problem, text):
        return {"length": len(text)}
    def is_correct(self, problem, text):
        return text == problem.answer
"""
SMALL = "--model nano --prompts-per-step 4 --group-size 4 --max-new-tokens 8 --evaluation.problems 4"


def test_the_reason_is_kept_and_a_fixed_reward_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BROKEN)
    train = ["train", *SMALL.split(), "--steps", "1", "--reward", "mine.py:mine", "--run", "a"]
    assert main(train) != 0
    assert main(["runs", "a"]) == 0
    printed = capsys.readouterr().out
    assert "a failed after 0 steps" in printed
    assert "ValueError: first line" in printed
    assert main(["runs", "a", "--json"]) == 0
    assert "ValueError: first line" in json.loads(capsys.readouterr().out)["failure"]
    Path("mine.py").write_text("def mine(problem, text):\n    return float(len(text))\n")
    for _ in range(2):  # other settings are refused, however often
        assert main([*train, "--resume", "--lr", "0.5"]) == 2
    assert main([*train, "--resume"]) == 0
    capsys.readouterr()
    assert main(["runs", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failure"] == ""
    assert main([*train, "--resume", "--steps", "2"]) == 0
    # Once there are steps, the reward's code must stay.
    Path("mine.py").write_text("def mine(problem, text):\n    return 1.0 + len(text)\n")
    assert main([*train, "--resume", "--steps", "3"]) == 2
    assert "mine.py changed" in capsys.readouterr().err


def test_fixed_code_resumes_and_changed_problems_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sums.py").write_text(SUMS)
    surrogate = Path("failing_surrogate.py")
    surrogate.write_text("def mine(ratio, logp, advantages, limits):\n    raise ValueError('broken')\n")
    train = ["train", *SMALL.split(), "--steps", "1", "--task", "sums.py", "--run", "a"]
    train += ["--loss.surrogate", f"{surrogate.stem}:mine"]
    with pytest.raises(ValueError, match="broken"):
        main(train)
    monkeypatch.delitem(sys.modules, surrogate.stem)  # a new process would read the file again
    surrogate.write_text("def mine(ratio, logp, advantages, limits):\n    return -ratio * advantages\n")
    Path("sums.py").write_text(SUMS.replace("1+", "2+"))
    assert main([*train, "--resume"]) == 2
    assert "problems: held-out problems changed, training problems changed;" in capsys.readouterr().err
    Path("sums.py").write_text(f"{SUMS}# fixed\n")
    assert main([*train, "--resume"]) == 0
    monkeypatch.delitem(sys.modules, surrogate.stem)


def test_the_reason_of_any_other_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nwhat torch adds")

    monkeypatch.setattr("grpo.training.loop.update", out_of_memory)
    with pytest.raises(RuntimeError):
        main(["train", *SMALL.split(), "--steps", "1", "--run", "a"])
    main(["runs", "a"])
    printed = capsys.readouterr().out
    assert "RuntimeError: CUDA error: out of memory" in printed
    assert "what torch adds" not in printed


def test_a_sample_that_cannot_be_scored_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(BROKEN)
    assert main(["sample", "nano", "-n", "2", "--reward", "mine.py:mine", "--max-new-tokens", "4"]) == 0
    assert "not scored: failure in reward mine.py:mine: ValueError: first line (File" in capsys.readouterr().err


class Raises:
    """A reward that raises this error."""

    name, batched, required = "mine", False, ()

    def __init__(self, error: BaseException):
        self.error = error

    def load(self) -> None: ...

    def __call__(self, request: Request) -> list[Outcome]:
        raise self.error


def chained() -> ValueError:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    return error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError('one\nFile "rows.csv", line 3, is missing'), "ValueError: one"),
        (ValueError("\none\ntwo"), "ValueError: one"),
        (ValueError(""), "ValueError"),
        (chained(), "ValueError: outer"),
        (
            RuntimeError('worker failed:\n  File "x.py", line 3, in z\n    f()\nKeyError: 1'),
            "RuntimeError: worker failed:",
        ),
        (ValueError("half \ud83d"), r"ValueError: half \ud83d"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
        (SyntaxError("bad", ("rows.py", 1, 2, "f(", 1, 3)), "SyntaxError: bad"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reason_of_a_failed_call_begins_with_its_error(error: BaseException, shown: str) -> None:
    [outcome] = invoke(Raises(error), Request(Problem("p", "", ""), ("text",)))
    line = Raises.__call__.__code__.co_firstlineno + 1
    assert error_line(outcome.why) == f'{shown} (File "{__file__}", line {line}, in __call__)'
    assert outcome.why.endswith(whole_characters("".join(traceback.format_exception(error)).rstrip()))
    assert headline(error) == shown


def test_a_reason_of_one_line_is_shown() -> None:
    assert [error_line(why) for why in ("killed", "", "killed\nprinted: …")] == ["killed", "", "killed"]
    [outcome] = invoke(Raises(TimeoutError("late\nagain")), Request(Problem("p", "", ""), ("text",)))
    assert (outcome.fault, outcome.why) == ("timeout", "TimeoutError: late")


def test_a_run_that_trains_only_its_critic_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ppo = ["train", *SMALL.split(), "--algorithm", "ppo", "--steps", "1", "--evaluation.every", "0"]
    assert main([*ppo, "--run", "a"]) == 0
    printed = capsys.readouterr()
    assert "only the critic is trained, never the policy" in printed.out + printed.err
    assert main([*ppo, "--run", "b", "--critic.warmup-steps", "0"]) == 0
    printed = capsys.readouterr()
    assert "only the critic is trained" not in printed.out + printed.err
