"""Every preset: the table on the page, and a short run of nano that shows its distinctive behaviour."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import grpo
from grpo.config import Checkpoints, Config, Critic, Evaluation, Optimizer, System
from grpo.config.presets import PRESETS, load_surrogate
from grpo.config.schema import validate
from grpo.config.sections import Loss
from grpo.errors import GrpoError
from grpo.record.store import Run
from grpo.tasks import TASKS
from grpo.tasks.arithmetic import Arithmetic
from grpo.training.fingerprint import fingerprints
from grpo.training.session import Session
from helpers.docs import ALGORITHM, table_rows


def shown(loss: Loss) -> list[str]:
    """The cells of a row of the table."""
    limits = {
        "clip": f"{loss.clip_low:g} / {loss.clip_high:g}",
        "weight": f"cap {loss.cap:g}",
        "gate": f"{loss.gate_up:g} / {loss.gate_down:g}",
        "plain": "",
    }
    kl = f"{loss.beta:g} {loss.kl} in {loss.kl_in}" if loss.beta else "0"
    more = [f"dynamic_sampling {loss.dynamic_sampling:g}"] * (loss.dynamic_sampling > 1) + [
        f"overlong {loss.overlong:g}"
    ] * (loss.overlong > 0)
    more += ["a critic"] * (loss.baseline == "value")
    more += [f"turn_weight {loss.turn_weight:g}"] * (loss.turn_weight > 0)
    names = [loss.baseline, loss.scale, loss.ratio, loss.surrogate]
    return [*names, limits[loss.surrogate], loss.aggregate, kl, ", ".join(more)]


def test_the_page_shows_the_settings() -> None:
    rows = table_rows(ALGORITHM.split("## The presets")[1].split("\n\n")[2])
    assert {row[0].strip("`"): row[1:] for row in rows} == {
        name: shown(preset.settings) for name, preset in PRESETS.items()
    }
    # What the table leaves out is at its default in every row.
    silent = (
        "credit",
        "turn_gamma",
        "parts",
        "weights",
        "mask_truncated",
        "refresh",
        "entropy",
        "correction",
        "correction_cap",
    )
    for preset in PRESETS.values():
        assert all(getattr(preset.settings, name) == getattr(Loss(), name) for name in silent)


def small(tmp_path: Path, algorithm: str, **changes: object) -> Config:
    settings = {
        "model": "nano",
        "algorithm": algorithm,
        "steps": 10,
        "prompts_per_step": 8,
        "max_new_tokens": 32,
        "lr": 3e-4,
        "checkpoint_every": 0,
        "critic": Critic(warmup_steps=3, lr=3e-4),
        "evaluation": Evaluation(every=0, problems=200, probes=0),
        "system": System(runs=str(tmp_path), threads=1),
    }
    return Config(**(settings | changes))


OWN: dict[str, Callable[[list[dict[str, float]]], bool]] = {
    "grpo": lambda rows: rows[0]["kl"] == 0 < rows[-1]["kl"],
    "dr_grpo": lambda rows: "kl" not in rows[-1],
    "dapo": lambda rows: all(row["groups_kept"] == 8 <= row["groups_drawn"] for row in rows),
    "gspo": lambda rows: "kl" not in rows[-1],
    "cispo": lambda rows: all(row["capped"] == row["clip_high"] == 0 for row in rows),
    "sapo": lambda rows: all(row["clip_low"] == row["clip_high"] == 0 for row in rows),
    "rloo": lambda rows: rows[-1]["kl_penalty"] > 0,
    "reinforce": lambda rows: all(row["gradient_tokens"] == 1 for row in rows),  # also groups without spread
    "reinforce++": lambda rows: all(0.9 < row["advantage_std"] < 1.0001 for row in rows),
    "opo": lambda rows: all(row["advantage_std"] < 0.7 for row in rows),  # rewards of 0 and 1, not divided
    "gigpo": lambda rows: all(row["compared_turns"] == 1 for row in rows),  # one turn each: all begin with the prompt
    "ppo": lambda rows: (
        [row["updates"] for row in rows] == [0] * 3 + [1] * 7 and 0 == rows[0]["value_mean"] < rows[-1]["value_mean"]
    ),
}


@pytest.mark.parametrize("algorithm", PRESETS)
def test_it_learns_with_its_distinctive_behaviour(tmp_path: Path, algorithm: str) -> None:
    run = grpo.train(small(tmp_path, algorithm))
    rows, (before, after) = run.metrics(), run.evals()
    assert after["accuracy"] > before["high"]
    assert all(row["ratio_min"] == row["ratio_max"] == 1 for row in rows)  # one update per batch
    assert OWN[algorithm](rows)


@pytest.mark.parametrize(
    ("algorithm", "holds"),
    [
        ("grpo", lambda row: row["clip_low"] + row["clip_high"] > 0 == row["capped"]),
        ("gspo", lambda row: row["clip_low"] + row["clip_high"] > 0.05 and row["ratio_max"] < 1.5),
        ("cispo", lambda row: row["clip_low"] + row["clip_high"] == 0 and row["ratio_max"] > 1.2),
        ("sapo", lambda row: row["clip_low"] + row["clip_high"] == 0 and row["ratio_max"] > 1.2),
    ],
)
def test_several_updates_move_the_ratio_and_each_bounds_it_its_own_way(
    tmp_path: Path, algorithm: str, holds: Callable[[dict[str, float]], bool]
) -> None:
    config = small(tmp_path, algorithm, steps=2, lr=1e-3, optimizer=Optimizer(epochs=4, warmup_steps=0))
    rows = grpo.train(config).metrics()
    assert [row["updates"] for row in rows] == [4, 4]
    assert all(row["ratio_min"] < 1 < row["ratio_max"] for row in rows)
    assert holds(rows[0])


def test_process_rewards_train(tmp_path: Path) -> None:
    config = small(tmp_path, "grpo")
    config = replace(config, loss=replace(config.loss, credit="process"))
    run = grpo.train(config)
    before, after = run.evals()
    assert after["worked_share"] > before["worked_share"] + 0.2
    arrays = run.token_arrays(0)
    # Within a worked completion the advantage changes from step to step.
    assert any(len(set(row["advantages"])) > 1 for row in arrays)


def test_the_reference_is_refreshed_and_only_when_asked(tmp_path: Path) -> None:
    def distances(refresh: int) -> list[float]:
        config = small(tmp_path, "grpo", steps=5, lr=1e-3)
        return [row["kl"] for row in grpo.train(replace(config, loss=replace(config.loss, refresh=refresh))).metrics()]

    fixed, refreshed = distances(0), distances(2)
    assert fixed[:2] == refreshed[:2]
    assert min(fixed[2:]) > 0.001
    # At steps 2 and 4 policy and reference are the same weights.
    assert refreshed[2] < 1e-6
    assert refreshed[4] < 1e-6
    assert refreshed[3] > 1e-4


def test_a_reward_term_needs_its_reference(tmp_path: Path) -> None:
    session = Session.start(small(tmp_path, "rloo"))
    assert session.reference is not None
    assert session.critic is None


def test_every_preset_can_be_changed_by_flags() -> None:
    for name, preset in PRESETS.items():
        config = Config(algorithm=name)
        assert config.loss == preset.settings
        validate(config)
        validate(replace(config, loss=replace(config.loss, mask_truncated=True, entropy=0.01, correction="token")))


def weights(run: Run) -> dict[str, torch.Tensor]:
    from grpo.model.load import load_policy

    return load_policy(str(run.path / "checkpoints" / "step-000002" / "model")).model.state_dict()


@pytest.mark.parametrize(
    "change", [{"entropy": 0.05}, {"mask_truncated": True}, {"overlong": 0.9}, {"weights": "correct=0"}]
)
def test_each_part_changes_what_is_trained(tmp_path: Path, change: dict[str, object]) -> None:
    """Each setting reaches the weights: two steps with it end elsewhere than two steps without."""
    config = small(tmp_path, "dr_grpo", steps=2, max_new_tokens=8, evaluation=Evaluation(every=0, problems=1, probes=0))
    plain = weights(grpo.train(config))
    changed = weights(grpo.train(replace(config, loss=replace(config.loss, **change))))
    assert any(not torch.equal(plain[name], changed[name]) for name in plain)


def test_impossible_settings_are_refused_before_the_run_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unmarked(Arithmetic):
        name = "unmarked"
        steps = None  # type: ignore[assignment]

    monkeypatch.setitem(TASKS, "unmarked", lambda _: Unmarked("easy"))
    config = small(tmp_path, "grpo")
    for changed, message in (
        (
            replace(config, task="unmarked", loss=replace(config.loss, credit="process")),
            r'field loss.credit: "process" needs a task with the method steps, or turn_rewards for episodes; task '
            "arithmetic:easy has neither",
        ),
        (
            replace(config, loss=replace(config.loss, surrogate="no_such_module:f")),
            r"field loss.surrogate: cannot load 'no_such_module:f': No module named",
        ),
        (
            replace(config, loss=replace(config.loss, surrogate="math:no_such_function")),
            r"field loss.surrogate: cannot load 'math:no_such_function': module 'math' has no attribute",
        ),
        (
            replace(config, loss=replace(config.loss, surrogate="math:pi")),
            r"field loss.surrogate: cannot load 'math:pi': it is not a function",
        ),
    ):
        with pytest.raises(GrpoError, match=message):
            grpo.train(changed)
    assert not list(tmp_path.iterdir())


def test_a_surrogate_of_a_file_is_read_again_where_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    name = f"{file}:twice"
    file.write_text("def twice(ratio, logp, advantages, limits): return 2 * ratio\n")
    first = load_surrogate(name)
    assert load_surrogate(name) is first, "one function: it may keep a state"
    file.write_text(file.read_text().replace("2", "3"))
    assert [function(1.0, 0.0, 0.0, None) for function in (first, load_surrogate(name))] == [2.0, 3.0]
    assert fingerprints(Config(loss=replace(Loss(), surrogate=name)), Arithmetic())["surrogate code"]
    with pytest.raises(GrpoError, match=r"field loss.surrogate: cannot load '.*none.py:f': .*No such file"):
        load_surrogate(f"{tmp_path}/none.py:f")
    (tmp_path / "beside_the_surrogate.py").write_text("FACTOR = 5\n")
    file.write_text("from beside_the_surrogate import FACTOR\ndef twice(*_): return FACTOR\n")
    assert load_surrogate(name)(1.0, 0.0, 0.0, None) == 5


def test_a_users_surrogate_is_part_of_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in the working folder, as the command `grpo` has it; changed, the run is another."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own_surrogate_in_a_folder.py"
    file.write_text("def mine(ratio, logp, advantages, limits):\n    return -ratio * advantages\n")
    own = replace(Loss(), surrogate=f"{file.stem}:mine")
    before = fingerprints(Config(loss=own), Arithmetic())
    assert "surrogate code" not in fingerprints(Config(), Arithmetic())
    file.write_text(file.read_text() + "# another\n")
    after = fingerprints(Config(loss=own), Arithmetic())
    assert {name for name in before if before[name] != after[name]} == {"surrogate code"}
    (tmp_path / "own_broken_surrogate.py").write_text("def mine(:\n")
    with pytest.raises(GrpoError, match=r"field loss.surrogate: cannot load 'own_broken_surrogate:mine': "):
        fingerprints(Config(loss=replace(own, surrogate="own_broken_surrogate:mine")), Arithmetic())


def test_a_run_cannot_get_a_critic_halfway(tmp_path: Path) -> None:
    config = small(tmp_path, "reinforce", steps=1, run="job", evaluation=Evaluation(every=0, problems=1, probes=0))
    grpo.train(config).close()
    ppo = replace(
        config,
        algorithm="ppo",
        loss=PRESETS["ppo"].settings,
        steps=2,
        resume=True,
        checkpoints=Checkpoints(allow_change=True),
    )
    with pytest.raises(
        GrpoError, match=r"field loss.baseline: the run began without a critic, so it has none to resume"
    ):
        grpo.train(ppo)
