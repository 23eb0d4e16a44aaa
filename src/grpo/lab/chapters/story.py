"""Why worked answers won in the shipped run: accuracy, advantage and share of each style."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grpo.lab.chapters import shipped
from grpo.lab.chapters.query import Query, whole
from grpo.tasks.arithmetic import work


def story(query: Query) -> dict[str, Any]:
    """Accuracy and mean advantage of each style in the first steps, and both styles over the run."""
    first = whole(query, "steps", 5, 1, len(shipped.groups()))
    evals = shipped.evals()
    early = [done for step in shipped.groups()[:first] for group in step for done in group["completions"]]
    shares = [
        {"step": step, "worked": fmean(_worked(done) for group in groups for done in group["completions"])}
        for step, groups in enumerate(shipped.groups())
    ]
    return {
        "run": shipped.NAME,
        "steps": len(shipped.groups()),
        "model": shipped.config()["model"],
        "first": first,
        "styles": {name: _style(early, worked) for name, worked in (("worked", 1.0), ("direct", 0.0))},
        "shares": shares,
        "accuracy": [evals[0]["accuracy"], evals[-1]["accuracy"]],
        "worked": [evals[0]["worked_share"], evals[-1]["worked_share"]],
        "evals": [{"step": row["step"], "accuracy": row["accuracy"], "worked": row["worked_share"]} for row in evals],
        "group": _example(),
    }


def _worked(done: dict[str, Any]) -> float:
    return done["traits"]["worked"]


def _style(completions: Sequence[dict[str, Any]], worked: float) -> dict[str, float]:
    of = [done for done in completions if _worked(done) == worked]
    return {
        "count": len(of),
        "share": len(of) / len(completions),
        "right": fmean(done["reward"] for done in of),
        "advantage": fmean(done["advantage"] for done in of),
    }


def _example() -> dict[str, Any]:
    """A group of the first step in which one style was right and the other wrong: a sum, whose working is short."""
    for index, group in enumerate(shipped.groups()[0]):
        styles = {(_worked(done), done["reward"]) for done in group["completions"]}
        if styles == {(1.0, 1.0), (0.0, 0.0)} and "+" in group["prompt"]:
            rows = [
                {key: done[key] for key in ("text", "reward", "advantage")} | {"worked": _worked(done)}
                for done in group["completions"]
            ]
            about = {"prompt": group["prompt"], "answer": group["answer"], "work": work_in_words(group["prompt"])}
            return {"step": 0, "group": index, **about, "rows": rows}
    raise AssertionError("the shipped run has such a group")


def work_in_words(prompt: str) -> list[str]:
    """The origin of each number of the working, row by row.

    >>> work_in_words("65*49=")
    ['9×5 = 45, 9×6 + 4 = 58', '4×5 = 20, 4×6 + 2 = 26', 'the columns of 585 + 2600 from the right: 5, 8, 11, 3']
    >>> work_in_words("37+85+46+92=")
    ['the ones added up: 7, 12, 18, 20', 'the tens from the 2 carried: 2, 5, 13, 17, 26']
    """
    rows = [[int(number) for number in row.split(",")] for row in work(prompt).strip("()").split(";")]
    listed = [", ".join(map(str, row)) for row in rows]
    if "*" not in prompt:
        return [f"the ones added up: {listed[0]}", f"the tens from the {rows[0][-1] // 10} carried: {listed[1]}"]
    a, b = map(int, prompt.rstrip("=").split("*"))
    times = [
        f"{digit}×{a % 10} = {low}, {digit}×{a // 10} + {low // 10} = {high}"
        for digit, (low, high) in zip((b % 10, b // 10), rows[:2], strict=True)
    ]
    return [*times, f"the columns of {b % 10 * a} + {b // 10 * a * 10} from the right: {listed[2]}"]
