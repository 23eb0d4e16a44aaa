"""The formulas in JavaScript equal those of grpo.core, on random cases and at the borders of every option."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
import torch

from helpers.formula_cases import cases
from helpers.visit import Lab, open_page

pytestmark = pytest.mark.browser

COMPUTE = """async (text) => {
  const names = ["advantage", "loss", "kl", "gae", "statistics", "process", "correction", "tokens", "tabular"];
  const modules = await Promise.all(names.map((name) => import(`/static/js/core/${name}.js`)));
  const core = Object.assign({}, ...modules);
  core.lossAndMetrics = (...args) => {
    const { loss, gradient, statistics } = core.policyLoss(...args);
    return { loss, gradient, metrics: core.metrics(statistics) };
  };
  const special = { NaN, Infinity, "-Infinity": -Infinity };
  const read = (key, value) => (typeof value === "string" && value in special ? special[value] : value);
  const write = (key, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
  return JSON.stringify(JSON.parse(text, read).map(([name, args]) => core[name](...args)), write);
}"""


def finite_json(value: Any) -> Any:
    """Numbers that JSON does not have become their names in JavaScript."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: finite_json(each) for name, each in value.items()}
    return [finite_json(each) for each in value] if isinstance(value, list | tuple) else value


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in leaves(value[name])]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def agree(found: Any, expected: Any) -> bool:
    """Within 1e-9 of the largest number of the result: a difference of large numbers may be 0 or 1e-17."""
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    largest = max((abs(b) for _, b in pairs if isinstance(b, float) and math.isfinite(b)), default=0.0)
    limit = 1e-9 * largest + 1e-15
    return all(a == b or (not isinstance(a, str) and not isinstance(b, str) and abs(a - b) <= limit) for a, b in pairs)


def test_ten_thousand_cases_equal_the_core(chromium: Any, classroom: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two functions of the core convert to float32 at their ends; here everything stays float64.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        wanted = cases()
    finally:
        torch.set_default_dtype(default)
    assert len(wanted) >= 10_000
    visit = open_page(chromium, classroom, "/learn")
    answers = json.loads(visit.page.evaluate(COMPUTE, json.dumps([finite_json(case[:2]) for case in wanted])))
    visit.page.close()
    wrong = [
        (name, args, found, expected)
        for found, (name, args, expected) in zip(answers, wanted, strict=True)
        if not agree(found, finite_json(expected))
    ]
    assert not wrong, f"{Counter(name for name, *_ in wrong)}; first: {wrong[0]}"
