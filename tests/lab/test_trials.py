"""Trials: what may be asked for, who may ask, one at a time, cancelled for good; and bands over seeds."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from grpo.errors import GrpoError
from grpo.lab.chapters import CHAPTERS, all_trials, chapter, rewards, source
from grpo.lab.server import make_app
from grpo.lab.trials.outcome import Outcome
from grpo.lab.trials.perform import perform
from grpo.lab.trials.recorded import RECORDED, recorded
from grpo.lab.trials.runner import Runner, Running
from grpo.lab.trials.spec import BOUNDS, CHOICES, Trial

HOME = "http://127.0.0.1:8765"


def asked(steps: int = 2, seeds: int = 1, **settings: Any) -> dict[str, Any]:
    small = {"prompts_per_step": 2, "group_size": 2, **settings}
    return {
        "arms": [{"label": "as it is", "settings": small}],
        "seeds": seeds,
        "steps": steps,
        "metrics": ["reward_mean"],
    }


@pytest.fixture
def client(tmp_path: Path) -> Any:
    with TestClient(make_app(tmp_path), base_url=HOME) as client:
        yield client


def page_token(client: TestClient) -> str:
    token = re.search(r'name="page-token" content="([^"]+)"', client.get("/learn").text)
    assert token is not None
    return token[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arms": []}, "field arms"),
        ({"arms": [{"label": "x", "settings": {"model": "tiny"}}]}, 'field "model": a trial cannot set it'),
        ({"arms": [{"label": "x", "settings": {"system.runs": "/etc"}}]}, 'field "system.runs": a trial cannot set it'),
        ({"arms": [{"label": "x", "settings": {"reward": "os:system"}}]}, 'field "reward": must be one of'),
        ({"arms": [{"label": "x", "settings": {"loss.surrogate": "os:system"}}]}, 'field "loss.surrogate"'),
        ({"arms": [{"label": "x", "settings": {"lr": 1.0}}]}, "must be between 1e-06 and 0.1"),
        ({"arms": [{"label": "x", "settings": {"group_size": 2.5}}]}, "expected a whole number"),
        ({"arms": [{"label": "x", "settings": {"algorithm": "nonsense"}}]}, "unknown preset"),
        ({"seeds": 0}, "field seeds"),
        ({"seeds": True}, "field seeds"),
        ({"steps": 10**9}, "field steps"),
        ({"metrics": ["nonsense"]}, "not a metric"),
        ({"command": "rm"}, 'unknown field "command"'),
        (
            {"steps": 200, "seeds": 5, "arms": [{"label": "x", "settings": {"group_size": 64}}]},
            "use fewer seeds",
        ),
    ],
)
def test_what_may_not_be_asked_for(change: dict[str, Any], words: str) -> None:
    with pytest.raises(GrpoError, match=re.escape(words)):
        Trial.of(asked() | change)


def test_every_setting_of_the_lists_is_one_of_the_config() -> None:
    from grpo.config import Config
    from grpo.config.parse import leaves

    assert set(BOUNDS) | set(CHOICES) <= set(leaves(Config))


def test_settings_arrive_in_the_config_that_trains() -> None:
    trial = Trial.of(asked(lr="0.001", **{"loss.beta": 0.5, "loss.mask_truncated": True, "algorithm": "dapo"}))
    config = trial.config(0, seed=3, folder=Path("elsewhere"))
    assert (config.model, config.lr, config.loss.beta, config.seed) == ("nano", 0.001, 0.5, 3)
    assert config.loss.mask_truncated
    assert config.loss.aggregate == "token", "the preset's"


def test_a_trial_is_the_trainers_own_run(tmp_path: Path) -> None:
    """The same numbers as `grpo.train` gives, and one row per step."""
    import grpo

    trial = Trial.of(asked(seeds=2))
    outcome = Outcome(trial)
    perform(trial, tmp_path / "trial", outcome.add)
    with grpo.train(trial.config(0, seed=2, folder=tmp_path / "alone")) as run:
        alone = [value for _, value in run.series("reward_mean")]
    [arm] = outcome.summary()["arms"]
    assert arm["curves"]["reward_mean"][1]["value"] == pytest.approx(alone, rel=1e-4)
    assert outcome.steps_done == outcome.steps_total == 4
    ends = [curve["value"][1] for curve in arm["curves"]["reward_mean"]]
    assert arm["bands"]["reward_mean"][1]["mean"] == pytest.approx(sum(ends) / 2)
    assert arm["accuracy"]["after"]["mean"] == pytest.approx(
        sum(rows["rows"][-1]["accuracy"] for rows in arm["evals"]) / 2
    )
    again = Outcome.from_json(trial, json.loads(json.dumps(outcome.as_json())))
    assert again.summary() == json.loads(json.dumps(outcome.summary())) | {"arms": again.summary()["arms"]}, (
        "a file gives back what was written"
    )


def test_the_readers_arm_trains_first_and_all_arms_of_a_seed_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoRun:
        def __enter__(self) -> NoRun:
            return self

        def __exit__(self, *exception: object) -> None: ...
        def evals(self) -> list[Any]:
            return []

        probes = evals

    monkeypatch.setattr("grpo.train", lambda config, callbacks: NoRun())
    monkeypatch.setattr("grpo.record.diagnosis.diagnose", lambda run: [])
    two = asked(seeds=2)
    trial = Trial.of({**two, "arms": [two["arms"][0], {**two["arms"][0], "label": "as shipped"}]})
    reports: list[dict[str, Any]] = []
    perform(trial, tmp_path, reports.append)
    assert [(each["arm"], each["seed"]) for each in reports] == [(0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/trials", {}),
        ("/api/trials", {"Origin": HOME}),
        ("/api/trials", {"Origin": HOME, "X-Page-Token": "guessed"}),
        ("/api/trials", {"X-Page-Token": "TOKEN"}),
        ("/api/trials", {"Origin": "http://evil.example", "X-Page-Token": "TOKEN"}),
        ("/api/trials", {"Origin": HOME, "Sec-Fetch-Site": "same-site", "X-Page-Token": "TOKEN"}),
        ("/api/trials/x/cancel", {"Origin": HOME}),
        ("/api/trials/x/y/cancel", {"Origin": HOME, "X-Page-Token": "TOKEN"}),
        ("/api/trials/x/start", {"Origin": HOME, "X-Page-Token": "TOKEN"}),
        ("/api/trials/", {"Origin": HOME, "X-Page-Token": "TOKEN"}),
        ("/api/runs", {"Origin": HOME, "X-Page-Token": "TOKEN"}),
    ],
    ids=str,
)
def test_who_may_not_start_or_cancel(client: TestClient, path: str, headers: dict[str, str]) -> None:
    token = page_token(client)
    sent = {name: value.replace("TOKEN", token) for name, value in headers.items()}
    assert client.post(path, json=asked(), headers=sent).status_code == 403
    assert client.get("/api/trials").json() == {"running": None}


def test_each_page_has_a_token_of_its_own(client: TestClient) -> None:
    assert page_token(client) != page_token(client)
    assert client.get("/learn").headers["Cache-Control"] == "no-store"


def test_bad_requests_are_told_in_one_line(client: TestClient) -> None:
    headers = {"Origin": HOME, "X-Page-Token": page_token(client)}
    for body, words in (
        (b"{", "not valid JSON"),
        (b"[" * 9000, "nested too deeply"),
        (b"[]", "expected an object"),
        (b"1" * 30_000, "more than 20,000 bytes"),
    ):
        answer = client.post("/api/trials", content=body, headers=headers)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
    assert client.post("/api/trials/unknown/cancel", headers=headers).status_code == 404


def test_one_at_a_time_and_cancelled_for_good(client: TestClient) -> None:
    headers = {"Origin": HOME, "X-Page-Token": page_token(client)}
    first = client.post("/api/trials", json=asked(steps=200) | {"name": "first"}, headers=headers)
    assert first.status_code == 201
    second = client.post("/api/trials", json=asked(), headers=headers)
    assert second.status_code == 409
    assert "another trial (first) is training: 0 of 200 steps" in second.json()["error"]
    assert second.json()["running"]["id"] == first.json()["id"]
    cancelled = client.post(f"/api/trials/{first.json()['id']}/cancel", headers=headers)
    assert cancelled.json()["status"] == "cancelled"
    assert client.get("/api/trials").json() == {"running": None}


def test_a_cancelled_process_is_gone_with_its_folder() -> None:
    runner = Runner()
    running = runner.start(asked(steps=200))
    runner.close()
    assert running.process.wait() == -9
    running.listener.join()
    assert running.status == "cancelled"
    assert not Path(running.folder.name).exists()


def test_a_waiting_worker_trains_the_next_trial_and_ends_with_the_server() -> None:
    runner = Runner()
    runner.prepare()
    assert runner.waiting is None, "not before the server starts"
    runner.open()
    runner.prepare()
    waiting = runner.waiting
    assert waiting is not None
    runner.prepare()
    assert runner.waiting is waiting, "one is enough"
    running = runner.start(asked())
    assert running.process is waiting
    runner.prepare()
    assert runner.waiting is None, "the trial has the core"
    running.listener.join()
    assert (running.status, running.outcome.steps_done) == ("finished", 2)
    assert list(running.outcome.runs) == [(0, 1)], "nothing of the warmup is reported"
    runner.prepare()
    last = runner.waiting
    assert last is not None
    assert last is not waiting
    runner.close()
    assert last.wait() == -9
    runner.prepare()
    assert runner.waiting is None, "nor after it has ended"


def test_an_idle_worker_ends_and_a_dead_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.lab.trials.runner.IDLE_SECONDS", 0)
    runner = Runner()
    runner.open()
    runner.prepare()
    timer = runner.timer
    assert timer is not None
    timer.join()
    assert runner.waiting is None
    dead = subprocess.Popen(["true"], stdin=-1, stdout=-1, stderr=-1, text=True, start_new_session=True)
    dead.wait()
    running = Running(Trial.of(asked()), (), dead)
    assert running.process is not dead
    running.cancel()
    running.listener.join()


def test_chapters_name_what_exists() -> None:
    for slug in CHAPTERS:
        for key in chapter(slug).SOURCES:
            assert source(slug, key)["text"].lstrip().startswith(("def ", "class ", "@"))
    allowed = rewards()
    for trial in all_trials().values():
        Trial.of(trial, allowed)


def test_recorded_trials_are_those_of_the_chapters() -> None:
    for file in RECORDED.glob("*.json"):
        kept, wanted = recorded(file.stem), all_trials()[file.stem]
        assert kept is not None
        assert kept["outcome"]["trial"]["arms"] == wanted["arms"], f"{file.stem}: record it again"
        assert kept["outcome"]["progress"]["done"] == kept["outcome"]["progress"]["total"]
        assert file.stat().st_size < 400_000
