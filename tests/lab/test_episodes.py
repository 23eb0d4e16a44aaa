"""What the lab answers about episodes: turns in their order, tokens that were read, rewards by turns, waiting."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from grpo.lab.server import make_app
from helpers.records import make_episode_run


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("runs")
    make_episode_run(folder, "played")
    return TestClient(make_app(folder), base_url="http://127.0.0.1:8765")


def ask(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(f"/api/runs/played{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_completion_of_a_group_has_its_turns(client: TestClient) -> None:
    won, *_, lost = ask(client, "/steps/1/groups/0")["completions"]
    assert [(turn["who"], turn["tokens"], turn["reward"]) for turn in won["turns"]] == [
        ("model", 2, None),
        ("environment", 3, None),
        ("model", 1, 0.5),
        ("tool", 2, None),
        ("model", 3, None),
    ]
    assert [turn["advantage"] for turn in won["turns"][::2]] == pytest.approx([won["advantage"]] * 3)
    assert "advantage" not in won["turns"][1], "what was read has no numbers"
    called = won["turns"][3]
    assert [(call["name"], call["fault"]) for call in called["calls"]] == [("calculate", ""), ("search", "timeout")]
    assert called["fault"] == "timeout"
    assert [turn["who"] for turn in lost["turns"]] == ["model"]


def test_the_lens_has_tokens_that_were_read_in_their_places(client: TestClient) -> None:
    """Sampled 0 to 5; read 4 0 4 after two of them, and 7 8 after three."""
    rows = {row["sample"]: row for row in ask(client, "/steps/1/groups/0/tokens/0")["rows"]}
    played, single = rows[0], rows[1]
    assert [len(played[name]) for name in ("pieces", "observed")] == [6, 5]
    assert played["pieces"] == single["pieces"]
    assert [token["after"] for token in played["observed"]] == [2, 2, 2, 3, 3]
    assert played["observed"][0]["piece"] == played["pieces"][4] == played["observed"][2]["piece"]
    assert single["observed"] == []
    assert ask(client, "/steps/1/groups/0/tokens/0/2")["piece"] == played["pieces"][2]


def test_a_search_finds_what_was_read(client: TestClient) -> None:
    """8 of a step's 16 completions were right, and read it."""
    found = ask(client, "/completions", text="TIMED OUT", order="oldest")["rows"]
    assert len([row for row in found if row["step"] == 0]) == 8
    assert [turn["who"] for turn in found[0]["turns"]] == ["model", "environment", "model", "tool", "model"]
    assert found[0]["turns"][0]["text"] == "[47*86]"


def test_rewards_by_number_of_turns(client: TestClient) -> None:
    """Six steps: the first three and the last three, each with 24 episodes of one turn and 24 of three."""
    found = ask(client, "/episodes")
    assert [found[when]["steps"] for when in ("early", "late")] == [[0, 2], [3, 5]]
    assert found["late"]["rows"] == [
        {"turns": 1, "episodes": 24, "reward": 0.0, "accuracy": 0.0},
        {"turns": 3, "episodes": 24, "reward": 1.0, "accuracy": 1.0},
    ]
    shipped = client.get("/api/runs/~tiny-arithmetic/episodes").json()
    assert shipped["early"]["rows"] == shipped["late"]["rows"] == []


def test_waiting_is_taken_from_the_rollout(client: TestClient) -> None:
    """0.2 seconds of rollout a step, of which it waited 0.05."""
    of_a_step = {row["name"]: row["seconds"] for row in ask(client, "/timeline")["rows"] if row["step"] == 2}
    assert (of_a_step["rollout"], of_a_step["wait"]) == pytest.approx((0.15, 0.05))
    total = ask(client, "")["seconds"]
    assert (total["rollout"], total["wait"]) == pytest.approx((0.9, 0.3))


def test_pinned_problems_have_turns(client: TestClient) -> None:
    [probe, *_] = ask(client, "/probes")
    single, played, *_ = probe["evaluations"][0]["samples"]
    assert [turn["who"] for turn in played["turns"]] == ["model", "environment", "model", "tool", "model"]
    assert single["turns"] == [{"who": "model", "text": single["text"], "fault": ""}]
