import math
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.record.metrics import EVAL_METRICS, METRICS, UnlistedMetricError, check_names, markdown

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_docs_are_the_table() -> None:
    assert DOCS.read_text(encoding="utf-8") == markdown(), "run: python -m grpo.record.metrics > docs/metrics.md"


def test_module_prints_the_docs() -> None:
    printed = subprocess.run([sys.executable, "-m", "grpo.record.metrics"], capture_output=True, check=True)
    assert printed.stdout.decode("utf-8") == markdown()


def test_every_metric_has_one_row_of_four_cells() -> None:
    table_lines = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert len(table_lines) == len(METRICS) + len(EVAL_METRICS)
    for line in table_lines:
        cells = line.replace(r"\|", "").strip("|").split("|")
        assert len(cells) == 4, line
        assert all(cell.strip() for cell in cells), line


def test_listed_names_pass() -> None:
    check_names(dict.fromkeys(METRICS, 0.0))
    check_names(dict.fromkeys(EVAL_METRICS, 0.0), EVAL_METRICS)
    check_names({"loss": math.nan})


def test_unlisted_name_raises_and_says_where_to_list_it() -> None:
    with pytest.raises(KeyError) as caught:
        check_names({"loss": 0.0, "los": 0.0})
    assert isinstance(caught.value, UnlistedMetricError)
    assert str(caught.value).startswith("unlisted metric: los;")
    assert "grpo/record/metrics.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_evaluations_have_their_own_names() -> None:
    with pytest.raises(UnlistedMetricError, match="greedy_accuracy"):
        check_names({"greedy_accuracy": 1.0})
    with pytest.raises(UnlistedMetricError, match="loss"):
        check_names({"loss": 1.0}, EVAL_METRICS)


def test_loss_row_explains_the_zero() -> None:
    definition = METRICS["loss"].definition
    assert "one update per batch" in definition
    assert "near 0" in definition
