"""Tags and notes of runs: saved from a page of the lab only, beside the record, never over a damaged file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from grpo.lab.notes import FILE
from grpo.lab.server import make_app
from helpers.records import make_empty_run

HOME = "http://127.0.0.1:8765"
SAVED = {"tags": ["baseline", "lr sweep"], "note": 'diverged at 40; see "other"\n<b>π</b>'}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    make_empty_run(tmp_path, "mine")
    return TestClient(make_app(tmp_path), base_url=HOME)


def headers(client: TestClient) -> dict[str, str]:
    found = re.search('name="page-token" content="([^"]+)"', client.get("/runs").text)
    assert found
    return {"Origin": HOME, "X-Page-Token": found[1]}


def test_notes_are_saved_beside_the_record_and_survive_a_restart(tmp_path: Path, client: TestClient) -> None:
    record = (tmp_path / "mine/run.db").read_bytes()
    answer = client.post("/api/runs/mine/notes", json=SAVED, headers=headers(client))
    assert (answer.status_code, answer.json()) == (200, SAVED)
    assert json.loads((tmp_path / "mine" / FILE).read_text(encoding="utf-8")) == SAVED
    assert (tmp_path / "mine/run.db").read_bytes() == record
    assert not list((tmp_path / "mine").glob(".notes-*"))
    again = TestClient(make_app(tmp_path), base_url=HOME)
    [row, _] = again.get("/api/runs").json()["runs"]
    assert {name: row[name] for name in SAVED} == SAVED
    assert {name: again.get("/api/runs/mine").json()[name] for name in SAVED} == SAVED


@pytest.mark.parametrize(
    "damage", [b'{"tags": ["a"', b"\xff\xfe", b"[1]", b'{"tags": "a"}', b'{"tags": [], "by": "me"}']
)
def test_a_damaged_file_is_reported_in_one_line_and_kept(tmp_path: Path, client: TestClient, damage: bytes) -> None:
    file = tmp_path / "mine" / FILE
    file.write_bytes(damage)
    [row, _] = client.get("/api/runs").json()["runs"]
    assert row["problem"] is None
    assert str(file) in row["notes_problem"]
    assert "\n" not in row["notes_problem"]
    answer = client.post("/api/runs/mine/notes", json=SAVED, headers=headers(client))
    assert answer.status_code == 400
    assert answer.json()["error"] == row["notes_problem"]
    assert file.read_bytes() == damage


def test_only_a_page_of_the_lab_saves_and_only_to_own_runs(tmp_path: Path, client: TestClient) -> None:
    known = headers(client)
    assert client.post("/api/runs/mine/notes", json=SAVED).status_code == 403
    assert client.post("/api/runs/mine/notes", json=SAVED, headers={"Origin": HOME}).status_code == 403
    shipped = client.post("/api/runs/~tiny-arithmetic/notes", json=SAVED, headers=known)
    assert (shipped.status_code, shipped.json()["error"].split(":")[0]) == (400, "notes")
    assert client.post("/api/runs/..%2f..%2fx/notes", json=SAVED, headers=known).status_code in (403, 404)
    assert client.post("/api/runs/other/notes", json=SAVED, headers=known).status_code == 404
    for wrong in (
        {"tags": ["a,b"]},
        {"tags": [""]},
        {"tags": ["x"] * 21},
        {"note": 7},
        {"text": "?"},
        [],
        "x" * 30_000,
    ):
        answer = client.post("/api/runs/mine/notes", json=wrong, headers=known)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("notes: ")
    assert not (tmp_path / "mine" / FILE).exists()
