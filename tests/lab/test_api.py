"""The lab's answers, from the recording that ships with it: they are the engine's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from grpo.lab.catalogue import RECORDINGS
from grpo.lab.server import make_app
from grpo.metrics import METRICS
from grpo.store import Run

EXAMPLE = "~tiny-arithmetic"
STEP = 5


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(make_app(tmp_path), base_url="http://127.0.0.1:8765")


@pytest.fixture
def recording() -> Iterator[Run]:
    with Run.open(RECORDINGS, EXAMPLE.removeprefix("~"), readonly=True) as run:
        yield run


def ask(client: TestClient, path: str, run: str = EXAMPLE, **query: Any) -> Any:
    answer = client.get(f"/api/runs/{run}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_recording_is_listed_apart_and_small(client: TestClient) -> None:
    [row] = client.get("/api/runs").json()["runs"]
    assert (row["id"], row["example"], row["status"]) == (EXAMPLE, True, "finished")
    assert (RECORDINGS / "tiny-arithmetic/run.db").stat().st_size <= 5_000_000


def test_definitions_are_the_table(client: TestClient) -> None:
    tables = client.get("/api/metrics").json()
    assert tables["training"]["loss"]["definition"] == METRICS["loss"].definition


def test_series_hold_what_was_recorded(client: TestClient, recording: Run) -> None:
    found = ask(client, "/series", names="reward_mean,kl")["series"]
    assert list(zip(found["kl"]["step"], found["kl"]["mean"], strict=True)) == recording.metrics("kl")


def test_a_long_series_is_means_of_stretches(client: TestClient, recording: Run) -> None:
    answer = ask(client, "/series", names="reward_mean", points=8)
    assert answer["width"] == 10
    values = [value for _, value in recording.metrics("reward_mean")][:10]
    found = answer["series"]["reward_mean"]
    assert found["mean"][0] == pytest.approx(sum(values) / 10)
    assert (found["low"][0], found["high"][0]) == (min(values), max(values))


def test_what_is_not_there_is_told(client: TestClient) -> None:
    for path in ("/api/runs/..%2f..%2fetc", "/api/runs/../../etc/passwd", "/api/runs/nobody", "/api/nothing"):
        answer = client.get(path)
        assert answer.status_code == 404, path
    assert "not recorded" in client.get(f"/api/runs/{EXAMPLE}/steps/7777").json()["error"]
