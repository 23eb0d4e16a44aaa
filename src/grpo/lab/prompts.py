"""One prompt across a run: its completions in every step and evaluation that sampled it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from grpo.errors import GrpoError, one_line
from grpo.record.store import Run

MOST = 200
"""Prompts listed of each kind."""
SHOWN = 300
"""Characters of a listed prompt."""
KEY = re.compile(r"pinned-(?P<pinned>\d{1,9})|heldout-(?P<heldout>\d{1,9})|train-(?P<step>\d{1,12})-(?P<group>\d{1,9})")
WHERE = {
    "pinned": "SELECT prompt, answer FROM probes WHERE probe_index = ?",
    "heldout": "SELECT prompt, answer FROM eval_groups WHERE group_index = ?",
    "train": "SELECT prompt, answer FROM groups WHERE step = ? AND group_index = ?",
}


def prompts(run: Run) -> list[dict[str, Any]]:
    """Prompts that were sampled more than once: pinned and held-out ones, and those of several steps."""
    pinned = run.select(
        "SELECT 'pinned-' || probe_index AS key, 'pinned' AS kind, prompt, count(*) AS times FROM probes "
        "GROUP BY probe_index HAVING times > 1"
    )
    heldout = run.select(
        "SELECT 'heldout-' || group_index AS key, 'heldout' AS kind, prompt, count(*) AS times FROM eval_groups "
        f"GROUP BY group_index HAVING times > 1 LIMIT {MOST}"
    )
    train = run.select(
        "SELECT 'train-' || min(step) || '-' || group_index AS key, 'train' AS kind, prompt, count(*) AS times "
        f"FROM groups GROUP BY prompt HAVING times > 1 ORDER BY times DESC, min(step) LIMIT {MOST}"
    )
    return [{**row, "prompt": row["prompt"][:SHOWN]} for row in [*pinned, *heldout, *train]]


def times_sampled(run: Run, prompt: str) -> int:
    """In how many steps and evaluations a prompt was sampled."""
    tables = " UNION ALL ".join(f"SELECT 1 FROM {table} WHERE prompt = ?1" for table in ("groups", "eval_groups"))
    return int(run.select(f"SELECT count(*) AS count FROM ({tables})", prompt)[0]["count"])


def across(run: Run, key: str) -> dict[str, Any]:
    """The completions of a prompt by step: `step` is the number of steps that the policy had taken."""
    prompt, answer = _named(run, key)
    # A pinned prompt may be a held-out one too: then its pinned samples, which are more, stand for both.
    evaluated = _pinned(run, prompt) or _sampled(run, "heldout", "eval_", prompt)
    moments = [*evaluated, *_sampled(run, "train", "", prompt)]
    return {"key": key, "prompt": prompt, "answer": answer, "moments": sorted(moments, key=lambda row: row["step"])}


def _named(run: Run, key: str) -> tuple[str, str]:
    found = KEY.fullmatch(key)
    if not found:
        raise GrpoError(f"prompt {one_line(key, 40)!r}: expected pinned-N, heldout-N or train-STEP-GROUP")
    numbers = [int(number) for number in found.groups() if number is not None]
    rows = run.select(f"{WHERE[key.partition('-')[0]]} LIMIT 1", *numbers)
    if not rows:
        raise GrpoError(f"prompt {key} is not in this record")
    return rows[0]["prompt"], rows[0]["answer"]


def _pinned(run: Run, prompt: str) -> list[dict[str, Any]]:
    return [
        {"where": "pinned", "step": row["step"], "samples": [_sample(sample) for sample in row["samples"]]}
        for row in run.probes()
        if row["prompt"] == prompt
    ]


def _sampled(run: Run, where: str, prefix: str, prompt: str) -> list[dict[str, Any]]:
    """One moment for every group of the prompt."""
    rows = run.select(f"SELECT step, group_index FROM {prefix}groups WHERE prompt = ? ORDER BY step", prompt)
    read = run.eval_groups if prefix else run.groups
    found = []
    for row in rows:
        [group] = read(row["step"], row["group_index"])
        samples = [_sample(done) for done in group["completions"]]
        found.append({"where": where, "step": row["step"], "group": row["group_index"], "samples": samples})
    return found


def _sample(done: Mapping[str, Any]) -> dict[str, Any]:
    """The text of an episode is what the model wrote and read, turn by turn."""
    said = "\n".join(turn["text"] for turn in done.get("turns") or ()) or done["text"]
    return {"text": said, "reward": done["reward"], "right": done["correct"]}
