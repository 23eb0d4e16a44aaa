"""Tokens recomputed from a checkpoint are those that were sampled, with the sampler's and the reference's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import grpo
from grpo.errors import GrpoError
from grpo.lab.recompute.jobs import Jobs, Place, token_rows
from grpo.lab.recompute.routes import state_of
from grpo.lab.recompute.values import recompute
from grpo.lab.tokens import lens, worked
from grpo.record.store import Run
from helpers.records import make_episode_run, make_run
from helpers.runs import small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of nano with a checkpoint after each; the tokens of one of two groups are recorded."""
    folder = tmp_path_factory.mktemp("runs")
    grpo.train(small(folder, run="mine", steps=2, prompts_per_step=2, checkpoint_every=1)).close()
    return folder


def test_recomputed_tokens_are_the_sampled_ones(runs: Path) -> None:
    with Run.open(runs, "mine", readonly=True) as run:
        recorded = run.token_arrays(1)
        calls: list[tuple[int, int]] = []
        found = recompute(run, 1, recorded[0]["group_index"], lambda *progress: calls.append(progress))
        begun = recompute(run, 0, 0)
    assert (found["source"], found["after"], found["exact"]) == ("step-000001", 1, True)
    assert calls == [(done, 8) for done in range(9)]
    for row, expected in zip(found["rows"], recorded, strict=True):
        assert row["tokens"] == expected["tokens"].tolist()
        for name in ("logprobs", "ref_logprobs", "advantages"):
            assert row[name] == pytest.approx(expected[name].tolist(), abs=2e-5)
        assert row["denominator"] == expected["denominator"] == 8
    assert (begun["source"], begun["after"], begun["checkpoint"]) == ("nano", 0, False)
    assert {row["ref_logprobs"] for row in begun["rows"]} == {None}


def test_what_cannot_be_recomputed_is_told(tmp_path: Path) -> None:
    make_episode_run(tmp_path, "played", steps=1)
    make_run(tmp_path, "older", steps=1, evals=())
    with Run.open(tmp_path, "older") as run:
        run._db.execute("DELETE FROM prompts")
        run._db.commit()
        with pytest.raises(GrpoError, match=r"^an older grpo made this record: it has no prompt as tokens"):
            recompute(run, 0, 0)
        with pytest.raises(GrpoError, match=r"^step 0 has no group 9; it has 4"):
            recompute(run, 0, 9)
    with (
        Run.open(tmp_path, "played", readonly=True) as run,
        pytest.raises(GrpoError, match=r"^tokens of episodes cannot"),
    ):
        recompute(run, 0, 0)


def test_the_lens_shows_recomputed_tokens(runs: Path) -> None:
    """The numbers that only the update and the sampler knew are absent."""
    with Run.open(runs, "mine", readonly=True) as run:
        [traced] = {row["group_index"] for row in run.token_arrays(1)}
        with pytest.raises(GrpoError, match="these tokens were not recorded"):
            lens(run, 1, 1 - traced, 0)
        rows = token_rows(recompute(run, 1, 1 - traced))
        answer, first = lens(run, 1, 1 - traced, 0, rows), worked(run, 1, 1 - traced, 0, 0, rows)
        assert not lens(run, 1, traced, 0, rows)["recomputed"], "what was recorded comes first"
    assert answer["recomputed"]
    [row] = [row for row in answer["rows"] if row["sample"] == 0]
    assert [name for name, values in row["values"].items() if values is None] == ["ratio", "clip", "gap"]
    assert (first["ratio"], first["denominator"], first["length"]) == (1, 8, len(row["pieces"]))
    assert first["surrogate"] == pytest.approx(-row["values"]["advantage"][0], abs=1e-6)


def test_no_push_where_advantages_differ_by_token(tmp_path: Path) -> None:
    """The record has their mean, which is not the advantage of any token."""
    loss = grpo.Config().loss
    critic = small(
        tmp_path, run="critic", steps=1, prompts_per_step=2, loss=replace(loss, baseline="value", scale="none")
    )
    grpo.train(critic).close()
    with Run.open(tmp_path, "critic", readonly=True) as run:
        [traced] = {row["group_index"] for row in run.token_arrays(0)}
        found = recompute(run, 0, 1 - traced)
        rows = token_rows(found)
        assert not found["push"]
        [row] = [row for row in lens(run, 0, 1 - traced, 0, rows)["rows"] if row["sample"] == 0]
        assert (row["values"]["push"], row["values"]["advantage"]) == (None, None)
        with pytest.raises(GrpoError, match="advantages differ by token"):
            worked(run, 0, 1 - traced, 0, 0, rows)


def test_a_masked_completion_has_no_push(tmp_path: Path) -> None:
    """Not even of its KL term: no values of an update, as in the record."""
    loss = replace(grpo.Config().loss, mask_truncated=True, beta=0.1)
    config = small(tmp_path, run="cut", steps=2, checkpoint_every=1, loss=loss, lr=1e-3, max_new_tokens=6)
    grpo.train(config).close()
    with Run.open(tmp_path, "cut", readonly=True) as run:
        recorded = run.token_arrays(1)
        index = recorded[0]["group_index"]
        found = recompute(run, 1, index)["rows"]
        [group] = run.groups(1, index)
        masked = [row["finish"] == "length" for row in group["completions"]]
    assert any(masked)
    assert not all(masked)
    assert [row["trainer_logprobs"] is None for row in found] == masked
    assert [row["trainer_logprobs"] is None for row in recorded] == masked


def test_one_group_is_recomputed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.lab.recompute.jobs.command", lambda place: ["sleep", "60"])
    jobs, first, other = Jobs(), Place(tmp_path, "mine", 1, 0, "noon"), Place(tmp_path, "mine", 2, 3, "noon")
    with pytest.raises(GrpoError, match="nothing is being recomputed for group 0 of step 1"):
        jobs.cancel(first)
    job = jobs.start(first)
    assert jobs.start(first) is job
    with pytest.raises(GrpoError, match="tokens of group 0 of step 1 of mine are being recomputed; wait"):
        jobs.start(other)
    assert jobs.cancel(first).status == "cancelled"
    job.listener.join()
    assert jobs.start(other).status == "running"
    jobs.close()
    assert state_of(jobs.find(other)) == {"status": "cancelled", "error": "", "done": 0, "total": 0}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('echo \'{"done": 1, "total": 8}\'; printf \'{"resu\'; kill -9 $$', "the process ended with code -9"),
        ("echo Traceback >&2; echo 'MemoryError: no more' >&2; exit 1", "MemoryError: no more"),
    ],
)
def test_a_process_that_dies_leaves_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    monkeypatch.setattr("grpo.lab.recompute.jobs.command", lambda place: ["sh", "-c", script])
    jobs, place = Jobs(), Place(tmp_path, "mine", 1, 0, "noon")
    job = jobs.start(place)
    job.listener.join()
    assert (job.status, job.error) == ("failed", told)
    assert jobs.find(place._replace(created="later")) is None, "a run trained again has other tokens"
