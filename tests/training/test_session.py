"""Starting a run: what a failed start leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import grpo
from grpo.config import Checkpoints, Evaluation, SftConfig, System
from grpo.config.sections import Loss
from grpo.errors import GrpoError
from grpo.record.lock import RunLock
from grpo.record.store import Run, list_runs
from grpo.training.session import Session
from helpers.runs import small


def short(problem: Any, text: str) -> float:
    return -len(text)


def fail(*_: Any, **__: Any) -> None:
    raise OSError("a later step fails")


def assert_failed_and_free(folder: Path, name: str) -> None:
    RunLock(folder / name).close()
    with Run.open(folder, name, readonly=True) as run:
        assert run.status == "failed"
        assert run.last_step() is None


def test_a_failure_after_the_run_was_created_leaves_it_failed_and_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.training.training_run.Checkpoints", fail)
    with pytest.raises(OSError, match="a later step fails"):
        Session.start(small(tmp_path, run="job"))
    assert_failed_and_free(tmp_path, "job")
    monkeypatch.undo()
    with grpo.train(small(tmp_path, run="job", resume=True)) as run:
        assert (run.status, run.last_step()) == ("finished", 2)


def test_a_run_that_cannot_be_locked_is_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.open_run.RunLock", fail)
    with pytest.raises(OSError, match="a later step fails"):
        Session.start(small(tmp_path, run="job"))
    assert_failed_and_free(tmp_path, "job")


def test_a_failure_before_the_run_is_created_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.training.session.preflight", fail)
    with pytest.raises(OSError, match="a later step fails"):
        Session.start(small(tmp_path, run="job"))
    assert list_runs(tmp_path) == []


def test_a_weight_of_an_unknown_part_is_refused_before_a_run_is_created(tmp_path: Path) -> None:
    config = small(tmp_path, loss=Loss(weights="long=2"))
    with pytest.raises(GrpoError, match=r"^field loss\.weights: unknown part 'long'; the reward has short; "):
        grpo.train(config, reward=short)
    assert list_runs(tmp_path) == []


@pytest.mark.parametrize("key", ["max_concurrent", "rows_at_once"])
def test_a_resume_decodes_as_many_completions_at_once_as_before(tmp_path: Path, key: str) -> None:
    """The KV cache has as many blocks. The most rows may be recorded under their earlier name."""
    with grpo.train(small(tmp_path, run="job", steps=1)) as run:
        assert run.meta("max_concurrent")[0] > 7
        assert run.meta("cache_blocks") == [0], "a CPU counts rows"
        assert run.meta("rows_at_once") is None
    with Run.open(tmp_path, "job") as run:
        run.set_meta("max_concurrent", None)
        run.set_meta(key, 7)
        run.set_meta("cache_blocks", [70])
    session = Session.start(small(tmp_path, run="job", resume=True))
    with session.recorded():
        assert (session.engine.max_concurrent, session.engine.cache_blocks) == (7, 70)
        assert (session.run.meta("max_concurrent"), session.run.meta("cache_blocks")) == ([7], [70])


def test_another_limit_or_device_measures_memory_anew(tmp_path: Path) -> None:
    grpo.train(small(tmp_path, run="job", steps=1)).close()

    def sizes(limit: int, **recorded: Any) -> tuple[int, int]:
        """Rows and blocks of the run, begun with a cache of 7 rows and 70 blocks, and resumed with this limit."""
        with Run.open(tmp_path, "job") as run:
            for name, value in {"max_concurrent": [7], "cache_blocks": [70], **recorded}.items():
                run.set_meta(name, value)
        system = System(runs=str(tmp_path), threads=1, max_concurrent_completions=limit)
        checkpoints = Checkpoints(allow_change=True)
        session = Session.start(small(tmp_path, run="job", resume=True, system=system, checkpoints=checkpoints))
        with session.recorded():
            assert session.run.meta("memory")["device"] == "cpu"
            return session.engine.max_concurrent, session.engine.cache_blocks

    assert sizes(0) == (7, 70)
    assert sizes(9) == (9, 0)
    assert sizes(9) == (9, 70), "as at the last start"
    measured = sizes(0)
    assert (measured[0] > 9, measured[1]) == (True, 0)
    on_gpu = {"device": "cuda:1", "predicted": None}
    measured = sizes(0, memory=on_gpu)
    assert (measured[0] > 9, measured[1]) == (True, 0)
    assert sizes(0) == (7, 70), "as at the last start"


@pytest.mark.parametrize(("problems", "rows"), [(10, 16), (50, 50)])
def test_blocks_are_counted_beside_the_logits_of_the_rows_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problems: int, rows: int
) -> None:
    """4 × 4 completions of a step, or the problems of an evaluation: not both, and those not times the group size."""
    monkeypatch.setattr("grpo.rollout.builtin.Engine._can_use_graphs", lambda *_: True)
    monkeypatch.setattr("grpo.rollout.builtin.free_memory", lambda _: 10**8)
    monkeypatch.setattr("grpo.training.preflight.trial", lambda *_: [])
    monkeypatch.setattr("grpo.training.preflight.check_agreement", lambda *_: None)
    session = Session.start(small(tmp_path, evaluation=Evaluation(every=0, problems=problems, probes=2)))
    with session.recorded():
        config = session.policy.model.config
        width = config.num_key_value_heads * config.head_dim
        block = 2 * config.num_hidden_layers * width * 4 * 64
        assert session.engine.cache_blocks == (4 * 10**7 - rows * 12 * config.vocab_size) // block


def test_a_cache_too_small_for_one_completion_is_refused_at_the_start(tmp_path: Path) -> None:
    grpo.train(small(tmp_path, run="job", steps=1)).close()
    with Run.open(tmp_path, "job") as run:
        run.set_meta("cache_blocks", [1])
    with pytest.raises(GrpoError, match=r"field max_new_tokens: 32 tokens and a prompt of \d+ need 2 blocks of 64"):
        Session.start(small(tmp_path, run="job", resume=True))


def test_a_failed_start_of_fine_tuning_leaves_it_failed_and_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.training.training_run.Checkpoints", fail)
    config = SftConfig(model="nano", task="arithmetic", steps=1, run="job", system=System(runs=str(tmp_path)))
    with pytest.raises(OSError, match="a later step fails"):
        grpo.sft(config)
    assert_failed_and_free(tmp_path, "job")
