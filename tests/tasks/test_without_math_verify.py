"""Without math-verify: numbers are checked, formulas count as unparsed, formula golds are refused at the start."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.cli.main import main
from grpo.rewards import Scorer
from grpo.tasks import load_task
from grpo.tasks.checkers import expressions


@pytest.fixture(autouse=True)
def _broken_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """math-verify is there and cannot be imported, as without its parser; the worker processes see the same."""
    package = tmp_path / "site" / "math_verify"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('antlr4 is missing')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "math_verify"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    expressions._math_verify.cache_clear()
    expressions._parse.cache_clear()
    yield
    expressions._math_verify.cache_clear()


def rows(*golds: str) -> str:
    lines = [json.dumps({"question": f"{i}+{i}=", "answer": f"#### {gold}"}) for i, gold in enumerate(golds)]
    Path("rows.jsonl").write_text("\n".join(lines))
    return "rows.jsonl"


def test_a_formula_for_a_number_is_unparsed_and_fails_no_run() -> None:
    task = load_task("gsm8k", rows(*map(str, range(40))))
    task.check_requirements()
    problem = task.draw(0, 1, 1)[0]
    texts = [f"#### {problem.answer}", r"\boxed{\sqrt{324}}", "#### $x^2$", r"#### \frac{\pi}{2}", "2^{10}"]
    with Scorer(task) as scorer:
        done = scorer.score_texts([(problem, text) for text in texts])
    assert [one.why for one in done] == [""] * 5
    assert [one.reward for one in done] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [one.traits["unparsed"] for one in done] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert task.why(problem, texts[1])[1] == "cannot be compared without math-verify"


def test_formula_golds_are_refused_before_the_run_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where all of the first golds are numbers."""
    data = rows(*map(str, range(39)), r"\frac{\pi}{2}")
    flags = "--model nano --task gsm8k --system.device cpu --steps 1 --prompts-per-step 2 --evaluation.problems 2"
    assert main(["train", "--data", data, *flags.split()]) == 2
    line = capsys.readouterr().err
    assert "task gsm8k: 1 gold answers are formulas, the first is '\\\\frac{\\\\pi}{2}' (rows.jsonl:40)" in line
    assert "needs math-verify; pip install" in line
    assert line.count("\n") == 1
    assert not Path("runs").exists()


def test_another_reward_needs_no_formulas_compared() -> None:
    data = rows(*map(str, range(39)), r"\frac{\pi}{2}")
    Path("mine.py").write_text("def short(completions, **columns): return [1.0 for _ in completions]\n")
    flags = (
        "--model nano --task data --system.device cpu --steps 1 --prompts-per-step 2 --evaluation.problems 2 "
        "--max-new-tokens 8 --scoring.workers 1 --quiet"
    )
    assert main(["train", "--data", data, "--reward", "mine.py:short", *flags.split()]) == 0
