"""The lab's answers, from the recording that ships with it: they are the engine's own numbers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from grpo.config import Config
from grpo.config.parse import flat
from grpo.config.schema import as_dict
from grpo.config.sections import Loss
from grpo.core import group_advantages, kl_estimate, policy_loss
from grpo.lab.catalogue import RECORDINGS
from grpo.lab.compare import NOT_TRAINING
from grpo.lab.groups import KINDS
from grpo.lab.live import events, head
from grpo.lab.pace import pace
from grpo.lab.server import make_app
from grpo.record.lock import RunLock
from grpo.record.metrics import METRICS
from grpo.record.store import Run
from helpers.records import make_empty_run, make_groups, make_judged_run, make_run, make_sft_run

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


def test_a_run_whose_trainer_is_gone_was_killed(client: TestClient, tmp_path: Path) -> None:
    with Run.create(tmp_path, "mine", kind="grpo", config={}) as run:
        run.set_status("running")
        lock = RunLock(run.path)
        assert ask(client, "", run="mine")["status"] == "running"
        lock.close()
        assert ask(client, "", run="mine")["status"] == head(run)["status"] == "killed"


def test_definitions_are_the_table(client: TestClient) -> None:
    tables = client.get("/api/metrics").json()
    assert tables["training"]["loss"]["definition"] == METRICS["loss"].definition


def test_series_hold_what_was_recorded(client: TestClient, recording: Run) -> None:
    found = ask(client, "/series", names="reward_mean,kl")["series"]
    assert list(zip(found["kl"]["step"], found["kl"]["mean"], strict=True)) == recording.series("kl")


def test_a_long_series_is_means_of_intervals(client: TestClient, recording: Run) -> None:
    answer = ask(client, "/series", names="reward_mean", points=8)
    assert answer["width"] == 10
    values = [value for _, value in recording.series("reward_mean")][:10]
    found = answer["series"]["reward_mean"]
    assert found["mean"][0] == pytest.approx(sum(values) / 10)
    assert (found["low"][0], found["high"][0]) == (min(values), max(values))


def test_what_is_not_there_is_told(client: TestClient) -> None:
    for path in ("/api/runs/..%2f..%2fetc", "/api/runs/../../etc/passwd", "/api/runs/nobody", "/api/nothing"):
        answer = client.get(path)
        assert answer.status_code == 404, path
    assert "not recorded" in client.get(f"/api/runs/{EXAMPLE}/steps/7777").json()["error"]


def test_a_group_is_sorted_by_advantage_and_measured_by_core(client: TestClient, recording: Run) -> None:
    group = ask(client, f"/steps/{STEP}/groups/1")
    recorded = recording.groups(STEP)[1]["completions"]
    rewards = torch.tensor([[done["reward"] for done in recorded]])
    advantages = [done["advantage"] for done in group["completions"]]
    assert advantages == sorted(advantages, reverse=True)
    assert sorted(advantages) == pytest.approx(sorted(group_advantages(rewards)[0].tolist()), abs=1e-6)
    assert group["statistics"]["reward_mean"] == pytest.approx(rewards.mean().item())
    assert group["statistics"]["reward_std"] == pytest.approx(rewards.std().item())
    assert all(done["extracted"] == done["text"].rpartition(")")[2] for done in group["completions"])


def test_the_budget_counts_what_was_recorded(client: TestClient, recording: Run) -> None:
    row = ask(client, "/signal")["rows"][STEP]
    metrics = recording.metrics()[STEP]
    assert (row["groups"] - row["mixed"]) / row["groups"] == pytest.approx(metrics["zero_signal_groups"])
    assert row["tokens"] == metrics["tokens"]
    completions = [done for group in recording.groups(STEP) for done in group["completions"]]
    assert row["gradient_tokens"] == sum(done["length"] for done in completions if done["advantage"] != 0)


@pytest.mark.parametrize(
    ("rewards", "correct", "finish", "kind"),
    [
        ([2, 2, 2, 2], [True, True, False, False], "stop", "equal"),
        ([2, 2, 2, 2], [None] * 4, "stop", "equal"),
        ([0, 0, 0, 0], [None] * 4, "stop", "equal"),
        ([0.5, 0.5, 0.5, 0.5], [False, False, False, None], "stop", "equal"),
        ([2, 2, 2, 2], [True] * 4, "stop", "all_right"),
        ([0, 0, 0, 0], [True] * 4, "stop", "all_right"),
        ([2, 2, 2, 2], [False] * 4, "stop", "all_wrong"),
        ([2, 2, 2, 2], [True, True, False, False], "length", "cut_off"),
        ([2, 2, 2, 1], [False] * 4, "stop", "mixed"),
        ([None, None, None, None], [None] * 4, "stop", "unscored"),
    ],
)
def test_the_kind_of_a_group_without_spread_follows_what_was_judged(
    client: TestClient, tmp_path: Path, rewards: list[Any], correct: list[Any], finish: Any, kind: str
) -> None:
    make_judged_run(tmp_path, "own", rewards, correct, finish=finish)
    assert [row["kind"] for row in ask(client, "/steps/0", run="own")["groups"]] == [kind]
    assert {name for name in KINDS if ask(client, "/signal", run="own")["totals"][name]} == {kind}


@pytest.mark.parametrize(
    ("loss", "rewards", "correct", "zero_signal", "carried"),
    [
        (Loss(), [-1, -2, -1, -2], [False] * 4, 0.0, 24),  # none is right, and yet there is signal
        (Loss(), [1, 1, 1, 1], [True] * 4, 1.0, 0),
        (Loss(baseline="leave_one_out", scale="none"), [1, 1, None, 1], [True, False, None, True], 1.0, 0),
        (Loss(), [0.5, 1, 0, None], [None, True, False, None], 0.0, 12),
    ],
)
def test_groups_without_signal_are_those_of_the_trainer(
    client: TestClient,
    tmp_path: Path,
    loss: Loss,
    rewards: list[Any],
    correct: list[Any],
    zero_signal: float,
    carried: int,
) -> None:
    """Also where rewards differ among wrong answers, or where some are unscored."""
    make_judged_run(tmp_path, "own", rewards, correct, loss=loss)
    [column] = ask(client, "/difficulty", run="own")["columns"]
    assert column["observed_zero_signal"] == zero_signal
    [row] = ask(client, "/signal", run="own")["rows"]
    assert (row["gradient_tokens"], row["tokens"]) == (carried, 24)


def test_masked_completions_carry_no_gradient(client: TestClient, tmp_path: Path) -> None:
    make_judged_run(tmp_path, "own", [0, 1], [False, True], finish="length", loss=Loss(mask_truncated=True))
    assert ask(client, "/signal", run="own")["rows"][0]["gradient_tokens"] == 0


def test_a_single_evaluation_is_not_a_change(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path, "begun", steps=2, evals=[(0, 0.25)])
    make_run(tmp_path, "ended", steps=2, evals=[(0, 0.25), (1, 0.5), (2, 0.75)])
    rows = {row["id"]: row["accuracy"] for row in client.get("/api/runs").json()["runs"]}
    assert (rows["begun"], rows["ended"]) == ([0.25], [0.25, 0.75])


def test_difficulty_counts_right_answers(client: TestClient, recording: Run) -> None:
    column = ask(client, "/difficulty")["columns"][STEP]
    assert column["pass_rate"] == pytest.approx(recording.metrics()[STEP]["accuracy"])
    assert sum(right * count for right, count in enumerate(column["groups_by_right"])) == column["pass_rate"] * 128
    p = column["pass_rate"]
    assert column["expected_zero_signal"] == pytest.approx(p**8 + (1 - p) ** 8)


def traced(recording: Run) -> dict[str, Any]:
    """A recorded completion with a token that was clipped below."""
    for step in range(20):
        for row in recording.token_arrays(step):
            ratio = (row["trainer_logprobs"] - row["old_logprobs"]).min()
            if row["advantages"][0] < 0 and ratio < -0.3:
                return row | {"step": step}
    raise AssertionError("the recording has no clipped token")


def test_the_lens_shows_what_the_loss_saw(client: TestClient, recording: Run) -> None:
    row = traced(recording)
    path = f"/steps/{row['step']}/groups/{row['group_index']}/tokens/{row['sample_index']}"
    [shown] = [one for one in ask(client, path)["rows"] if one["sample"] == row["sample_index"]]
    logp, old, ref = (torch.tensor(row[name]).double() for name in ("trainer_logprobs", "old_logprobs", "ref_logprobs"))
    assert shown["values"]["ratio"] == pytest.approx((logp - old).exp().tolist())
    assert shown["values"]["kl"] == pytest.approx(kl_estimate(logp, ref).tolist())
    below = [ratio < 0.8 for ratio in shown["values"]["ratio"]]
    assert [clip == -1 for clip in shown["values"]["clip"]] == below
    assert any(below)
    text = recording.groups(row["step"])[row["group_index"]]["completions"][row["sample_index"]]["text"]
    assert "".join(shown["pieces"]).removesuffix("<end>") == text


def test_the_shares_of_a_completion_add_up_to_its_loss(client: TestClient, recording: Run) -> None:
    row = traced(recording)
    path = f"/steps/{row['step']}/groups/{row['group_index']}/tokens/{row['sample_index']}"
    shares = [ask(client, f"{path}/{place}")["share"] for place in range(len(row["tokens"]))]
    arrays = (row[name] for name in ("trainer_logprobs", "old_logprobs", "advantages", "ref_logprobs"))
    logp, old, advantages, ref = (torch.tensor(array).double()[None] for array in arrays)
    settings = {
        name: recording.config["loss"][name] for name in ("ratio", "clip_low", "clip_high", "aggregate", "beta", "kl")
    }
    loss, _ = policy_loss(
        logp, old, advantages, torch.ones_like(logp) > 0, ref_logp=ref, denominator=row["denominator"], **settings
    )
    assert sum(shares) == pytest.approx(loss.item(), rel=1e-9)


def test_what_if_nothing_changes_gives_the_recorded_advantages(client: TestClient) -> None:
    for group in ask(client, f"/steps/{STEP}/whatif")["groups"]:
        for done in group["completions"]:
            assert done["advantage"] == pytest.approx(done["recorded"]["advantage"], abs=1e-6)
            assert done["weight"] == done["weight_before"]


def test_what_if_by_hand(client: TestClient, recording: Run) -> None:
    """Half the reward, no scale, averaged over tokens: A = (r − mean) / 2, and every token weighs 1 / all tokens."""
    answer = ask(client, f"/steps/{STEP}/whatif", **{"scale": "none", "aggregate": "token", "weight.correct": "0.5"})
    groups = recording.groups(STEP)
    tokens = sum(done["length"] for group in groups for done in group["completions"])
    for group, shown in zip(groups, answer["groups"], strict=True):
        rewards = [done["reward"] for done in group["completions"]]
        mean = sum(rewards) / len(rewards)
        for reward, done in zip(rewards, shown["completions"], strict=True):
            assert done["advantage"] == pytest.approx((reward - mean) / 2)
            assert done["weight"] == pytest.approx((reward - mean) / 2 / tokens)


def test_what_if_with_a_wide_clip_clips_nothing(client: TestClient, recording: Run) -> None:
    step = traced(recording)["step"]
    answer = ask(client, f"/steps/{step}/whatif", clip_low="1", clip_high="50")["traced"]
    assert answer["before"]["clip_low"] > 0
    assert (answer["now"]["clip_low"], answer["now"]["clip_high"]) == (0, 0)


@pytest.mark.parametrize(
    ("query", "told"),
    [("beta=much", "a number"), ("clip_low=7", "between 0 and 1"), ("scale=huge", "group_std, batch_std, none")],
)
def test_what_if_refuses_nonsense(client: TestClient, query: str, told: str) -> None:
    answer = client.get(f"/api/runs/{EXAMPLE}/steps/{STEP}/whatif?{query}")
    assert answer.status_code == 400
    assert told in answer.json()["error"]


def test_search_finds_every_match_once_over_its_pages(client: TestClient, recording: Run) -> None:
    found, begin = [], {}
    while True:
        page = ask(client, "/completions", text="8", filters="wrong", **begin)
        found += [(row["step"], row["group_index"], row["sample_index"]) for row in page["rows"]]
        if page["next"] is None:
            break
        begin = {"begin": page["next"]}
    expected = recording.select(
        "SELECT step, group_index, sample_index FROM completions JOIN groups USING (step, group_index) "
        "WHERE reward < 1 AND (instr(text, '8') OR instr(prompt, '8'))"
    )
    assert len(found) > 60, "more than one page"
    assert sorted(found) == sorted(tuple(row.values()) for row in expected)
    assert [step for step, *_ in found] == sorted((step for step, *_ in found), reverse=True)


def test_search_by_pattern_in_the_order_of_a_value(client: TestClient, recording: Run) -> None:
    """Wrong answers without working, of 4 or 5 tokens, in the first ten steps, the longest first."""
    asked = {"text": r"^\d+$", "regex": "1", "order": "-length", "length_min": "4", "length_max": "5", "step_max": "9"}
    found, begin = [], {}
    while True:
        page = ask(client, "/completions", filters="wrong", **asked, **begin)
        found += page["rows"]
        if page["next"] is None:
            break
        begin = {"begin": page["next"]}
    rows = recording.select("SELECT text, length FROM completions WHERE NOT correct AND step < 10 AND length IN (4, 5)")
    expected = [row["length"] for row in rows if row["text"].isdecimal()]
    assert len(expected) > 60, "more than one page"
    assert [row["length"] for row in found] == sorted(expected, reverse=True)
    places = {(row["step"], row["group_index"], row["sample_index"]) for row in found}
    assert len(places) == len(found)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"text": "(4", "regex": "1"}, "text: not a regular expression: missing ) at position 2"),
        ({"text": "(x+x+)+y", "regex": "1"}, "text: this regular expression takes too long"),
        (
            {"text": "((a{1000}){1000}){1000}", "regex": "1"},
            "text: this regular expression repeats more than 10,000 parts",
        ),
        ({"text": "a{9999999,}", "regex": "1"}, "text: this regular expression repeats more than 10,000 parts"),
        ({"text": "(?(DEFINE)(?<q>(?&q)a))(?&q)", "regex": "1"}, "text: a regular expression that calls its groups"),
        ({"text": "(a)(?-1)", "regex": "1"}, "text: a regular expression that calls its groups"),
        ({"text": "4" * 201}, "text: at most 200 characters; got 201"),
        ({"order": "prettiest"}, "order: expected one of newest, oldest, reward, -reward, "),
        ({"reward_min": "high"}, "reward_min: expected a number; got 'high'"),
        ({"step_max": "nan"}, "step_max: expected a number; got 'nan'"),
    ],
)
def test_search_refuses_nonsense(
    tmp_path: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch, query: dict[str, str], told: str
) -> None:
    monkeypatch.setattr("grpo.lab.search.PATTERN_SECONDS", 0.1)
    make_run(tmp_path, "mine", steps=1, evals=(), texts=lambda *place: "x" * 5000)
    answer = client.get("/api/runs/mine/completions", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(told)
    assert "\n" not in answer.json()["error"]


def test_one_prompt_across_the_run(client: TestClient, recording: Run) -> None:
    listed = ask(client, "/prompts")
    assert [one["times"] for one in listed if one["kind"] == "pinned"] == [9] * 6
    assert len([one for one in listed if one["kind"] == "heldout"]) == 150
    train = {one["prompt"]: one["times"] for one in listed if one["kind"] == "train"}
    rows = recording.select("SELECT prompt FROM groups")
    seen = Counter(row["prompt"] for row in rows)
    assert train == {prompt: times for prompt, times in seen.items() if times > 1}
    often = next(one for one in listed if one["kind"] == "train")
    found = ask(client, f"/prompts/{often['key']}")
    assert [moment["step"] for moment in found["moments"]] == [
        row["step"]
        for row in recording.select("SELECT step FROM groups WHERE prompt = ? ORDER BY step", often["prompt"])
    ]
    _, step, group = often["key"].split("-")
    sampled = recording.groups(int(step))[int(group)]
    assert recording.groups(int(step), int(group)) == [sampled]
    texts = [done["text"] for done in sampled["completions"]]
    assert [sample["text"] for sample in found["moments"][0]["samples"]] == texts
    assert ask(client, f"/steps/{step}/groups/{group}")["times"] == often["times"]
    pinned = ask(client, "/prompts/pinned-1")["moments"]
    assert [(moment["step"], len(moment["samples"])) for moment in pinned] == [(step, 8) for step in range(0, 90, 10)]
    for key, told in (("x", "expected pinned-N, heldout-N or train-STEP-GROUP"), ("pinned-7", "is not in this record")):
        answer = client.get(f"/api/runs/{EXAMPLE}/prompts/{key}")
        assert (answer.status_code, told in answer.json()["error"]) == (400, True)


def test_search_is_no_sql(client: TestClient) -> None:
    assert ask(client, "/completions", text="' OR 1=1 --")["rows"] == []
    assert len(ask(client, "/completions", filters="1=1); DROP TABLE steps; --")["rows"]) > 0


def test_the_timeline_adds_up_to_the_spans(client: TestClient, recording: Run) -> None:
    rows = ask(client, "/timeline")["rows"]
    spans = recording.summary()["spans"]
    for name, seconds in spans.items():
        assert sum(row["seconds"] for row in rows if row["name"] == name) == pytest.approx(seconds)
    assert sum(row["seconds"] for row in rows if row["name"] == "between") > 0


def test_runs_of_other_seeds_are_one_experiment_with_a_band(tmp_path: Path) -> None:
    make_run(tmp_path, "a", seed=1, steps=4, metrics=lambda step: {"reward_mean": 0.2})
    make_run(tmp_path, "b", seed=2, steps=4, metrics=lambda step: {"reward_mean": 0.4})
    make_run(tmp_path, "c", seed=1, steps=4, lr=1e-3)
    client = TestClient(make_app(tmp_path), base_url="http://127.0.0.1")
    answer = client.get("/api/compare?runs=a,b,c&by=tokens&metrics=reward_mean,entropy").json()
    assert answer["experiments"] == [["a", "b"], ["c"]]
    assert list(answer["curves"]) == list(answer["bands"]) == ["reward_mean", "entropy"]
    assert {point["y"] for point in answer["curves"]["entropy"]["c"]} == {0.7}
    [band] = answer["bands"]["reward_mean"]
    assert band["points"][1]["mean"] == pytest.approx(0.3)
    assert band["points"][1]["high"] - band["points"][1]["mean"] == pytest.approx(0.1 * 2**0.5)
    assert [point["x"] for point in answer["curves"]["reward_mean"]["a"]] == [96.0, 192.0, 288.0, 384.0]
    assert {row["name"]: row["values"] for row in answer["differences"]} == {
        "seed": {"a": 1, "b": 2, "c": 1},
        "lr": {"a": 3e-5, "b": 3e-5, "c": 1e-3},
    }
    seconds = client.get("/api/compare?runs=a&by=seconds").json()["curves"]["reward_mean"]["a"]
    assert seconds[1]["x"] == pytest.approx(1.4, abs=0.1)  # two steps of 0.7 s, and what recording took


def test_a_band_compares_the_same_steps_of_a_seed_that_has_come_less_far(client: TestClient, tmp_path: Path) -> None:
    """Both rewards are step / 100; the second seed was killed after 13 of 40 steps and lacks the values of step 5."""
    for name, seed, done in (("long", 1, 40), ("short", 2, 13)):
        config = as_dict(Config(model="tiny", task="arithmetic", steps=40, seed=seed))
        with Run.create(tmp_path, name, kind="grpo", config=config) as run:
            for step in range(done):
                value = float("nan") if (name, step) == ("short", 5) else step / 100
                run.record(step, [], {"reward_mean": value}, {"update": 0.1})
    for points, means in ((10, [0.015, 0.0558, 0.095]), (100, [s / 100 for s in range(13) if s != 5])):
        [band] = client.get(f"/api/compare?runs=long,short&points={points}").json()["bands"]["reward_mean"]
        assert [point["mean"] for point in band["points"]][: len(means)] == pytest.approx(means, abs=1e-4)
        assert all(point["high"] - point["low"] < 0.012 for point in band["points"][: len(means)])


def test_only_settings_that_both_records_have_can_differ(tmp_path: Path, client: TestClient, recording: Run) -> None:
    """The shipped record, which may be older, against a run of today."""
    make_run(tmp_path, "mine", steps=2, lr=1e-3)
    with Run.open(tmp_path, "mine", readonly=True) as run:
        mine, shipped = dict(flat(run.config)), dict(flat(recording.config))
    answer = client.get(f"/api/compare?runs=mine,{EXAMPLE}").json()
    expected = {name for name in mine.keys() & shipped.keys() if mine[name] != shipped[name]} - {*NOT_TRAINING}
    assert {row["name"] for row in answer["differences"]} == expected
    assert {"lr", "group_size"} <= expected


def test_the_pace_by_hand(tmp_path: Path) -> None:
    """Five of eight steps: their ends at 10, 12, 14 and, after a break of two hours, 7216 and 7220 seconds."""
    speeds = {"tokens_per_second": 300.0, "peak_memory": 2e9}
    make_run(tmp_path, "mine", steps=8, evals=(), status="running", metrics=lambda step: speeds)
    with Run.open(tmp_path, "mine") as run:
        begun = datetime.fromisoformat(run.meta("created")).timestamp()
        for step, second in enumerate((10, 12, 14, 7216, 7220)):
            run._db.execute("UPDATE steps SET recorded = ? WHERE step = ?", (begun + second, step))
        run._db.execute("DELETE FROM steps WHERE step > 4")
        run._db.execute("INSERT INTO meta VALUES ('memory', ?)", (json.dumps({"device": "cuda", "predicted": 3e9}),))
        run._db.commit()
    with Run.open(tmp_path, "mine", readonly=True) as run, closing(RunLock(run.path)):
        live = pace(run, now=begun + 7221)
    assert live["elapsed"] == pytest.approx(10 + 2 + 2 + 4 + 1, abs=1e-3)
    assert live["left"] == pytest.approx(3 * (2 + 2 + 4) / 3 - 1, abs=1e-3)
    assert live["steps_per_minute"] == pytest.approx(60 / (8 / 3), rel=1e-5)
    assert live["tokens_per_second"] == pytest.approx(300)
    assert live["memory"] == {"peak": 2e9, "planned": 3e9, "device": "cuda"}


def test_events_tell_the_head_and_end_with_the_run(client: TestClient) -> None:
    text = client.get(f"/api/runs/{EXAMPLE}/events").text
    assert json.loads(text.removeprefix("data: ")) == {
        "status": "finished",
        "steps_total": 80,
        "last_step": 79,
        "evals": 9,
        "findings": 0,
    }


def test_a_run_that_goes_on_is_followed(tmp_path: Path) -> None:
    """A reader connected through two recorded steps is told of both, and of the end."""
    make_run(tmp_path, "live", steps=1, status="running")
    heads: list[dict[str, Any]] = []

    async def follow() -> None:
        async def gone() -> bool:
            return False

        async for event in events(lambda: Run.open(tmp_path, "live", readonly=True), gone):
            if not event.startswith("data: "):
                continue
            heads.append(json.loads(event.removeprefix("data: ")))
            with Run.open(tmp_path, "live") as run:
                if len(heads) < 3:
                    run.record(len(heads), make_groups(len(heads)), {}, {})
                else:
                    run.set_status("stopped")

    asyncio.run(follow())
    assert [(head["last_step"], head["status"]) for head in heads] == [
        (0, "running"),
        (1, "running"),
        (2, "running"),
        (2, "stopped"),
    ]


def test_nothing_is_written(tmp_path: Path, client: TestClient) -> None:
    make_run(tmp_path, "mine", steps=2)
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.name == "run.db"}
    for path in ("", "/series", "/signal", "/steps/1", "/steps/1/groups/0", "/steps/1/whatif", "/findings", "/probes"):
        ask(client, path, run="mine")
    assert {path: path.read_bytes() for path in before} == before
    with Run.open(tmp_path, "mine", readonly=True) as run, pytest.raises(sqlite3.OperationalError, match="readonly"):
        run.select("DELETE FROM steps")


@pytest.mark.parametrize("make", [make_sft_run, make_empty_run])
def test_runs_without_groups_are_answered(tmp_path: Path, client: TestClient, make: Any) -> None:
    make(tmp_path, "bare")
    for path in ("", "/series", "/signal", "/difficulty", "/completions", "/timeline", "/findings", "/probes"):
        ask(client, path, run="bare")
    assert client.get("/api/runs/bare/steps/0/whatif").status_code == 400


def test_a_damaged_record_is_told_and_hides_no_other(tmp_path: Path, client: TestClient) -> None:
    make_run(tmp_path, "whole", steps=2)
    make_run(tmp_path, "torn", steps=40)
    file = tmp_path / "torn/run.db"
    data = bytearray(file.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    file.write_bytes(data)
    for path in ("/api/runs/torn", "/api/runs/torn/series", "/api/runs/torn/signal"):
        answer = client.get(path)
        assert answer.status_code in (400, 503)
        assert "cannot be read" in answer.json()["error"]
    assert {row["id"] for row in client.get("/api/runs").json()["runs"]} == {"whole", "torn", EXAMPLE}


def test_files_are_compressed_and_checked_at_every_load(client: TestClient) -> None:
    """Event streams are not compressed: a browser would wait for the end of a block."""
    first = client.get("/static/js/app.js", headers={"Accept-Encoding": "gzip"})
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/static/js/app.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.headers["Cache-Control"]) == (304, "no-cache")
    stream = client.get(f"/api/runs/{EXAMPLE}/events", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in stream.headers
