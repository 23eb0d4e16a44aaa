import itertools
import json
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grpo.cli.terminal.report import result
from grpo.config.schema import check_run_name
from grpo.errors import DiskFullError, GrpoError
from grpo.record import store
from grpo.record.columns import SAMPLE, SPOKEN
from grpo.record.lock import RunLock
from grpo.record.metrics import EVAL_METRICS, UnlistedMetricError
from grpo.record.older import SCHEMA_VERSION
from grpo.record.provenance import redacted
from grpo.record.reader import connect
from grpo.record.store import Run, fresh_name, list_runs
from grpo.types import Call, Completion, Group, Observation, Problem, Trace

CONFIG = {
    "model": "tiny",
    "task": "arithmetic",
    "algorithm": "grpo",
    "seed": 7,
    "prompts_per_step": 3,
    "group_size": 4,
    "loss": {"clip_low": 0.2},
}
EVAL_ROW = {
    "accuracy": 0.5,
    "low": 0.4,
    "high": 0.6,
    "greedy_accuracy": 0.625,
    "greedy_low": 0.5,
    "greedy_high": 0.75,
    "reward_mean": 0.5625,
    "worked_share": 0.25,
    "length_mean": 6.5,
}


def completion(reward: float | None, seed: int = 0) -> Completion:
    noise = np.random.default_rng(seed)
    length = 2 + seed % 3
    return Completion(
        text=f"«{seed}»\n42",
        tokens=noise.integers(0, 50_000, length),
        logprobs=noise.normal(size=length).astype(np.float32),
        finish="stop" if seed % 2 else "length",
        parts={"correct": reward, "format": None},
        reward=reward,
        traits={"worked": 1.0},
        advantages=None if reward is None else np.full(length, reward - 0.25, np.float32),
    )


def make_groups(step: int = 0, groups: int = 3, size: int = 4) -> list[Group]:
    return [
        Group(
            problem=Problem(f"train-{step}-{index}", f"{index}*7=", str(index * 7)),
            prompt_tokens=np.array([1, 2, 3]),
            completions=tuple(completion(float(sample == 0), 10 * index + sample) for sample in range(size)),
            policy_version=step,
        )
        for index in range(groups)
    ]


def make_probe(text: str) -> Group:
    done = Completion(text, np.array([1]), np.zeros(1, np.float32), "stop", reward=1.0)
    return Group(Problem("probe-0", "6*7=", "42"), np.array([1]), (done, replace(done, reward=None)), 0)


def record_steps(run: Run, steps: range) -> None:
    for step in steps:
        run.record(step, make_groups(step), {"loss": step / 8, "reward_mean": 0.25}, {"sample": 2.0, "update": 0.5})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path, "first", kind="grpo", config=CONFIG) as run:
        yield run


# Names


@pytest.mark.parametrize("name", ["a", "arithmetic-grpo-001", "0.5_b", "x" * 64])
def test_good_names_pass(name: str) -> None:
    check_run_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-flag", "x" * 65, "a b", "a\n", "naïve", "a\0b"])
def test_bad_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(GrpoError, match=r"^field run: ") as caught:
        check_run_name(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../outside", "/etc", "a/b", "a\\b"])
def test_paths_are_refused_as_paths(tmp_path: Path, name: str) -> None:
    for use in (
        lambda: check_run_name(name),
        lambda: Run.open(tmp_path, name),
        lambda: Run.create(tmp_path, name, kind="grpo", config={}),
    ):
        with pytest.raises(GrpoError, match=r"^field run: .* is not a valid run name;.* no folder"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    Run.create(tmp_path / "elsewhere", "real", kind="grpo", config={}).close()
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "real")
    with pytest.raises(GrpoError, match="symbolic link"):
        Run.open(folder, "link")
    with pytest.raises(GrpoError, match="symbolic link"):
        Run.create(folder, "link", kind="grpo", config={})
    assert [row["status"] for row in list_runs(folder)] == ["unreadable"]


def test_fresh_name_takes_the_first_free_number(tmp_path: Path) -> None:
    assert fresh_name(tmp_path / "absent", "arithmetic-grpo") == "arithmetic-grpo-001"
    (tmp_path / "arithmetic-grpo-001").mkdir()
    (tmp_path / "arithmetic-grpo-003").mkdir()
    assert fresh_name(tmp_path, "arithmetic-grpo") == "arithmetic-grpo-002"
    (tmp_path / "arithmetic-grpo-002").symlink_to("nowhere")
    assert fresh_name(tmp_path, "arithmetic-grpo") == "arithmetic-grpo-004"
    check_run_name(fresh_name(tmp_path, "my/task-reinforce++"))
    check_run_name(fresh_name(tmp_path, "x" * 100))


# Creating and opening


def test_existing_run_is_refused_in_one_line(tmp_path: Path, run: Run) -> None:
    with pytest.raises(GrpoError) as caught:
        Run.create(tmp_path, "first", kind="grpo", config={})
    message = str(caught.value)
    assert message.startswith("field run: first exists")
    assert "--run OTHER" in message
    assert "\n" not in message
    assert run.summary()["config"] == CONFIG


def test_missing_run_lists_the_known_ones(tmp_path: Path, run: Run) -> None:
    Run.create(tmp_path, "second", kind="sft", config={}).close()
    with pytest.raises(GrpoError, match=r"no run third in .*; known runs: first, second$"):
        Run.open(tmp_path, "third")
    with pytest.raises(GrpoError, match=r"known runs: none yet$"):
        Run.open(tmp_path / "absent", "third", readonly=True)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("content", [b"not a database at all, only text\n" * 50, b""])
def test_file_that_is_no_record_is_refused(tmp_path: Path, readonly: bool, content: bytes) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(content)
    with pytest.raises(GrpoError, match=r"^field run: .*run\.db") as caught:
        Run.open(tmp_path, "broken", readonly=readonly)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "broken" / "run.db").read_bytes() == content


def test_record_of_another_version_is_refused(tmp_path: Path) -> None:
    Run.create(tmp_path, "future", kind="grpo", config={}).close()
    db = sqlite3.connect(tmp_path / "future" / "run.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(GrpoError, match="version 99"):
        Run.open(tmp_path, "future")


def test_correct_is_recorded_apart_from_the_reward(run: Run) -> None:
    [group] = make_groups(groups=1)
    verdicts = (True, False, None)
    completions = tuple(replace(group.completions[0], correct=correct, reward=0.5) for correct in verdicts)
    run.record(0, [replace(group, completions=completions)], {}, {})
    run.record_eval(0, {"reward_mean": 0.5}, [replace(group, completions=completions)])
    for found in (run.groups(0), run.eval_groups(0)):
        assert [done["correct"] for done in found[0]["completions"]] == [True, False, None]


def age(run: Run, version: int, *dropped: str) -> None:
    """Closes the run and takes from its record the tables and columns that came after a version."""
    run.close()
    db = sqlite3.connect(run.path / "run.db")
    for table in ("completions", "eval_completions"):
        for column in dropped:
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    for column in ("observed", "observed_after"):
        db.execute(f"ALTER TABLE token_arrays DROP COLUMN {column}")
    for table in ("prompts", "turns", "eval_turns"):
        db.execute(f"DROP TABLE {table}")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()


def test_a_record_from_before_correct_is_read_and_not_continued(tmp_path: Path, run: Run) -> None:
    """There the full reward stood for a right answer."""
    [group] = make_groups(groups=1)
    completions = tuple(replace(group.completions[0], reward=reward, correct=None) for reward in (1.0, 0.5, None))
    run.record(0, [replace(group, completions=completions)], {}, {})
    age(run, 2, "correct", "extra")
    with Run.open(tmp_path, run.name, readonly=True) as older:
        [found] = older.groups(0)
        assert [done["correct"] for done in found["completions"]] == [True, False, None]
        assert [row["observed"] for row in older.token_arrays(0)] == [None] * 3
    with pytest.raises(GrpoError, match=r"an older grpo made .*: it can be read, not resumed; start a new run"):
        Run.open(tmp_path, run.name)


def test_extra_columns_are_recorded_by_completion(run: Run) -> None:
    [group] = make_groups(groups=1)
    logged = ({"parsed": "4", "steps": [1, 2]}, {"parsed": None}, {})
    completions = tuple(replace(group.completions[0], extra=extra) for extra in logged)
    run.record(0, [replace(group, completions=completions)], {}, {})
    run.record_eval(0, {"reward_mean": 0.5}, [replace(group, completions=completions)])
    for found in (run.groups(0), run.eval_groups(0)):
        assert [done["extra"] for done in found[0]["completions"]] == [*logged]
    rows = run.completions()
    assert [row.get("extra_parsed", "absent") for row in rows] == ["4", None, "absent"]
    assert rows[0]["extra_steps"] == [1, 2]
    assert "extra" not in rows[0]


def test_a_record_from_before_extra_and_prompts_is_read_and_not_continued(tmp_path: Path, run: Run) -> None:
    [group] = make_groups(groups=1)
    run.record(0, [group], {}, {})
    age(run, 3, "extra")
    with Run.open(tmp_path, run.name, readonly=True) as older:
        [found] = older.groups(0)
        assert [done["extra"] for done in found["completions"]] == [{}] * len(group.completions)
        assert [done["correct"] for done in found["completions"]] == [one.correct for one in group.completions]
        assert older.prompts() == []
        assert older.summary()["completions"] == len(group.completions)
    with pytest.raises(GrpoError, match=r"an older grpo made .*: it can be read, not resumed; start a new run"):
        Run.open(tmp_path, run.name)


def test_a_record_from_before_episodes_is_read_and_not_continued(tmp_path: Path, run: Run) -> None:
    [group] = make_groups(groups=1)
    run.record(0, [group], {}, {})
    run.close()
    db = sqlite3.connect(run.path / "run.db")
    for table in ("turns", "eval_turns"):
        db.execute(f"DROP TABLE {table}")
    for column in ("observed", "observed_after"):
        db.execute(f"ALTER TABLE token_arrays DROP COLUMN {column}")
    db.execute("PRAGMA user_version = 4")
    db.commit()
    db.close()
    with Run.open(tmp_path, run.name, readonly=True) as older:
        [found] = older.groups(0)
        assert [(done["text"], done["turns"]) for done in found["completions"]] == [
            (one.text, []) for one in group.completions
        ]
        assert older.turns() == []
        kept = older.token_arrays(0)
        assert [row["tokens"].tolist() for row in kept] == [one.tokens.tolist() for one in group.completions]
        assert [row["observed"] for row in kept] == [None] * len(group.completions)
    with pytest.raises(GrpoError, match=r"an older grpo made .*: it can be read, not resumed; start a new run"):
        Run.open(tmp_path, run.name)


def test_folder_is_private_and_journal_is_wal(run: Run) -> None:
    assert run.path.stat().st_mode & 0o777 == 0o700
    db = sqlite3.connect(run.path / "run.db")
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    db.close()


def test_open_restores_what_create_was_given(tmp_path: Path, run: Run) -> None:
    for folder in (tmp_path, str(tmp_path)):
        with Run.open(folder, "first") as again:
            assert (again.name, again.kind, again.config, again.path) == ("first", "grpo", CONFIG, tmp_path / "first")


def test_versions_command_and_git(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = run.summary()
    assert summary["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert summary["versions"]["numpy"] == np.__version__
    assert set(summary["versions"]) == {"python", "torch", "transformers", "numpy", "grpo"}
    assert summary["command"] == redacted(sys.argv)

    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    runs = tmp_path / "runs"
    with Run.create(runs, "no-repository", kind="grpo", config={}) as other:
        assert other.summary()["git"] is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    Path("file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    git("tag", "v1-first")
    with Run.create(runs, "clean", kind="grpo", config={}) as other:
        assert other.summary()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    Path("file").write_text("two")
    with Run.create(runs, "dirty", kind="grpo", config={}) as other:
        assert other.summary()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": True}


# Recording and reading back


def asked(name: str, text: str, tokens: list[int]) -> Group:
    [group] = make_groups(groups=1)
    problem = replace(group.problem, id=name, place=f"rows.jsonl:{name}")
    return replace(group, problem=problem, prompt_text=text, prompt_tokens=np.array(tokens))


def test_a_prompt_is_recorded_once_for_each_problem(run: Run) -> None:
    first, second, third = (asked(name, f"<s>{name}", [1, ord(name)]) for name in "abc")
    for step in range(3):
        run.record(step, [first, second, first], {}, {})
        run.record_eval(step, {"reward_mean": 0.5}, [second])
        run.record_probes(step, [third])
    assert [[row[key] for key in ("problem_id", "place", "text")] for row in run.prompts()] == [
        ["a", "rows.jsonl:a", "<s>a"],
        ["b", "rows.jsonl:b", "<s>b"],
        ["c", "rows.jsonl:c", "<s>c"],
    ]
    assert [row["tokens"].tolist() for row in run.prompts()] == [[1, 97], [1, 98], [1, 99]]
    run.record(2, [asked("a", "<s>A", [1, 65])], {}, {})
    assert run.prompts()[0]["text"] == "<s>A", "of a resume that accepted another chat template"


def test_completions_come_back_as_they_went_in(run: Run) -> None:
    groups = make_groups(step=5)
    unscored = completion(None, seed=3)
    groups[1] = replace(groups[1], completions=(*groups[1].completions[:3], unscored))
    run.record(5, groups, {}, {})

    found = run.groups(5)
    assert len(found) == 3
    for index, (row, group) in enumerate(zip(found, groups, strict=True)):
        assert (row["step"], row["group_index"], row["policy_version"]) == (5, index, 5)
        assert Problem(row["problem_id"], row["prompt"], row["answer"]) == group.problem
        for sample, (kept, done) in enumerate(zip(row["completions"], group.completions, strict=True)):
            assert (kept["group_index"], kept["sample_index"]) == (index, sample)
            assert (kept["text"], kept["length"], kept["finish"]) == (done.text, len(done.tokens), done.finish)
            assert (kept["reward"], kept["parts"], kept["traits"]) == (done.reward, done.parts, done.traits)
            assert kept["logprob"] == pytest.approx(float(done.logprobs.sum()), abs=1e-6)
            if done.advantages is not None:
                assert kept["advantage"] == float(done.advantages[0])
    assert found[1]["completions"][3]["reward"] is None
    assert found[1]["completions"][3]["advantage"] is None
    assert run.groups(4) == []


def an_episode(**changes: object) -> Completion:
    """It reads 7, samples 5 and 6, reads two answers in 8 and 9, samples 4, and its environment crashes."""
    calls = (Call("add", '{"a": 1}', "1"), Call("", "[oops", "cannot be read", "error"))
    observations = (
        Observation(0, np.array([7]), "begin"),
        Observation(2, np.array([8, 9]), "1\ncannot be read", calls),
        Observation(3, np.array([], np.int64), "the end"),
    )
    episode = replace(
        completion(1.0),
        text="4",
        tokens=np.array([5, 6, 4]),
        logprobs=np.zeros(3, np.float32),
        advantages=np.ones(3, np.float32),
        finish="turns",
        turns=("56", "4"),
        observations=observations,
        steps=((1, 0.25), (2, 0.5)),
        fault="crash",
    )
    return replace(episode, **changes)


TURNS = [
    ("environment", "begin", 1, 0, [], None, ""),
    ("model", "56", 2, 0, [], 0.25, ""),
    (
        *("tool", "1\ncannot be read", 2, 2),
        [
            {"name": "add", "arguments": '{"a": 1}', "answer": "1", "fault": ""},
            {"name": "", "arguments": "[oops", "answer": "cannot be read", "fault": "error"},
        ],
        *(None, "error"),
    ),
    ("model", "4", 1, 2, [], 0.5, ""),
    ("environment", "the end", 0, 3, [], None, "crash"),
]
"""Who, text, tokens, after, calls, reward, fault of each of its turns."""


def test_turns_are_recorded_in_order(run: Run) -> None:
    plain, *_ = make_groups(groups=1)
    group = replace(plain, completions=(plain.completions[0], an_episode()))
    run.record(3, [plain, group], {}, {}, token_groups=2)
    run.record_eval(0, {"reward_mean": 0.5}, [group])
    for found in (run.groups(3)[1], run.eval_groups(0)[0]):
        first, episode = found["completions"]
        assert first["turns"] == []
        assert [tuple(turn[name] for name in SPOKEN) for turn in episode["turns"]] == TURNS
        assert (episode["text"], episode["length"], episode["finish"]) == ("4", 3, "turns")
    turns = run.turns()
    assert turns == run.turns(3) == run.groups(3)[1]["completions"][1]["turns"]
    assert [[row[key] for key in (*SAMPLE, "turn")] for row in turns] == [[3, 1, 1, turn] for turn in range(5)]
    assert run.turns(2) == []
    row = run.token_arrays(3)[-1]
    assert (row["tokens"].tolist(), row["logprobs"].tolist()) == ([5, 6, 4], [0.0] * 3)
    assert (row["observed"].tolist(), row["observed_after"].tolist()) == ([7, 8, 9], [0, 2, 2])
    assert np.insert(row["tokens"], row["observed_after"], row["observed"]).tolist() == an_episode().sequence.tolist()
    run.rewind(3)
    assert run.turns() == []
    assert len(run.eval_groups(0)[0]["completions"][1]["turns"]) == 5


def test_an_observation_that_differs_when_made_again_is_named(run: Run) -> None:
    plain, *_ = make_groups(groups=1)
    run.record(1, [replace(plain, completions=(an_episode(),))], {}, {})
    first, second, last = an_episode().observations
    other = an_episode(observations=(first, replace(second, text="2"), last))
    assert run.differences(1, [replace(plain, completions=(an_episode(),))], {}) == []
    [found] = run.differences(1, [replace(plain, completions=(other,))], {})
    assert found == "turn 0/0/2: text was '1\\ncannot be read', is '2'"


def test_advantage_is_the_mean_over_tokens(run: Run) -> None:
    done = replace(
        completion(1.0), tokens=np.arange(4), logprobs=np.zeros(4), advantages=np.array([1.0, 2.0, 3.0, 6.0])
    )
    run.record(0, [replace(make_groups()[0], completions=(done,))], {}, {})
    assert run.groups(0)[0]["completions"][0]["advantage"] == 3.0


def test_every_completion_is_recorded_exactly_once(run: Run) -> None:
    record_steps(run, range(5))
    run.record_eval(2, EVAL_ROW, make_groups(groups=2, size=3))
    assert run.summary()["completions"] == 5 * 3 * 4
    assert run.summary()["steps"] == 5
    keys = {
        (step, group["group_index"], done["sample_index"])
        for step in range(5)
        for group in run.groups(step)
        for done in group["completions"]
    }
    assert keys == {(step, group, sample) for step in range(5) for group in range(3) for sample in range(4)}


def test_a_step_that_fails_leaves_nothing(run: Run) -> None:
    broken = replace(make_groups()[2], completions=(replace(completion(1.0), finish=None),))  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        run.record(0, [*make_groups()[:2], broken], {"loss": 1.0}, {"sample": 1.0})
    assert run.last_step() is None
    assert run.metrics() == []
    assert run.groups(0) == []
    assert run.summary()["spans"] == {}


def test_metrics(run: Run) -> None:
    record_steps(run, range(3))
    assert run.last_step() == 2
    assert run.series("loss") == [(0, 0.0), (1, 0.125), (2, 0.25)]
    assert run.metrics() == [{"step": step, "loss": step / 8, "reward_mean": 0.25} for step in range(3)]
    with pytest.raises(GrpoError, match="no metric is named 'los'"):
        run.series("los")


def test_unlisted_metric_records_nothing(run: Run) -> None:
    with pytest.raises(UnlistedMetricError, match="los"):
        run.record(0, make_groups(), {"los": 1.0}, {})
    with pytest.raises(UnlistedMetricError, match="loss"):
        run.record_eval(0, {"loss": 1.0}, [])
    assert run.last_step() is None
    assert run.evals() == []


def test_numbers_that_are_not_finite_become_none(run: Run) -> None:
    wild = replace(completion(math.nan), parts={"correct": math.inf, "format": math.nan}, logprobs=np.full(2, -np.inf))
    run.record(0, [replace(make_groups()[0], completions=(wild,))], {"loss": math.nan, "kl": np.float64("inf")}, {})
    run.record(1, [], {"loss": 1.0}, {})
    run.record_eval(1, {"accuracy": math.nan}, [])
    run.record_probes(1, [replace(make_probe(""), completions=(wild,))])
    kept = run.groups(0)[0]["completions"][0]
    assert (kept["reward"], kept["advantage"], kept["logprob"]) == (None, None, None)
    assert kept["parts"] == {"correct": None, "format": None}
    assert run.metrics() == [{"step": 0, "loss": None, "kl": None}, {"step": 1, "loss": 1.0}]
    assert run.series("loss") == [(1, 1.0)]
    assert run.probes()[0]["samples"][0]["reward"] is None
    json.dumps([run.summary(), run.groups(0)], allow_nan=False)


def test_config_with_infinity_stays_json(tmp_path: Path) -> None:
    with Run.create(tmp_path, "wild", kind="grpo", config={"cap": math.inf, "caps": (1.0, math.nan)}) as run:
        assert run.config == {"cap": None, "caps": [1.0, None]}


def test_spans_follow_one_another_up_to_now(run: Run) -> None:
    before = time.time()
    record_steps(run, range(2))
    db = sqlite3.connect(run.path / "run.db")
    rows = db.execute("SELECT name, start, seconds FROM spans WHERE step = 0 ORDER BY start").fetchall()
    db.close()
    assert [span["name"] for span in run.spans()] == ["sample", "update", "record"] * 2
    assert [name for name, _, _ in rows] == ["sample", "update", "record"]
    assert [seconds for _, _, seconds in rows[:2]] == [2.0, 0.5]
    for (_, start, seconds), (_, next_start, _) in itertools.pairwise(rows):
        assert start + seconds == pytest.approx(next_start, abs=1e-4)
    _, record_start, record_seconds = rows[2]
    assert before - 1e-4 <= record_start <= record_start + record_seconds <= time.time() + 1e-4
    spans = run.summary()["spans"]
    assert (spans["sample"], spans["update"]) == (4.0, 1.0)
    assert run.summary()["seconds"] == pytest.approx(5.0 + spans["record"])


def test_spans_end_when_the_step_did_where_nobody_waits_for_its_record(run: Run) -> None:
    """Then the record has no time of its own."""
    run.record(0, [], {"loss": 1.0}, {"sample": 2.0, "update": 0.5, "record": 0.25}, ended=1000.0)
    assert [(span["name"], span["start"], span["seconds"]) for span in run.spans()] == [
        ("sample", 997.25, 2.0),
        ("update", 999.25, 0.5),
        ("record", 999.75, 0.25),
    ]


def test_the_writing_connection_can_change_hands_and_a_readers_cannot(run: Run) -> None:
    def elsewhere(act: Callable[[], object]) -> object:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(act).result()

    elsewhere(lambda: run.record(0, [], {"loss": 1.0}, {}))
    assert run.series("loss") == [(0, 1.0)]
    reader = Run.open(run.path.parent, run.name, readonly=True)
    with pytest.raises(sqlite3.ProgrammingError, match="created in a thread"):
        elsewhere(reader.last_step)
    reader.close()


def test_token_arrays_of_the_asked_number_of_groups(run: Run) -> None:
    groups = make_groups()
    groups[0] = replace(groups[0], completions=tuple(replace(done, reward=0.0) for done in groups[0].completions))
    first = groups[1].completions[0]
    trace = Trace(first.logprobs + 1, first.logprobs + 2, 12.0)
    first = replace(first, ref_logprobs=first.logprobs * 2, old_logprobs=first.logprobs * 3, trace=trace)
    groups[1] = replace(groups[1], completions=(first, *groups[1].completions[1:]))

    run.record(0, groups, {}, {})
    run.record(1, groups, {}, {}, token_groups=3)
    run.record(2, groups, {}, {}, token_groups=0)

    kept = run.token_arrays(0)
    assert [(row["group_index"], row["sample_index"]) for row in kept] == [(1, sample) for sample in range(4)]
    for row, done in zip(kept, groups[1].completions, strict=True):
        assert row["tokens"].dtype == np.int32
        assert row["tokens"].tolist() == done.tokens.tolist()
        assert row["logprobs"].dtype == np.float32
        assert row["logprobs"].tolist() == done.logprobs.tolist()
        assert done.advantages is not None
        assert row["advantages"].tolist() == done.advantages.tolist()
    assert kept[0]["ref_logprobs"].tolist() == (first.logprobs * 2).tolist()
    assert kept[0]["old_logprobs"].tolist() == (first.logprobs * 3).tolist()
    assert kept[0]["trainer_logprobs"].tolist() == (first.logprobs + 1).tolist()
    assert kept[0]["entropies"].tolist() == (first.logprobs + 2).tolist()
    assert kept[0]["denominator"] == 12.0
    assert (kept[1]["trainer_logprobs"], kept[1]["entropies"], kept[1]["denominator"]) == (None, None, None)
    assert kept[1]["ref_logprobs"] is None
    assert [row["group_index"] for row in run.token_arrays(1)] == [0] * 4 + [1] * 4 + [2] * 4
    assert run.token_arrays(2) == []


def test_an_eval_at_the_same_step_replaces_the_earlier(run: Run) -> None:
    run.record_eval(0, {"accuracy": 0.125}, make_groups(groups=5))
    run.record_eval(10, {"accuracy": 0.25, "worked_share": 0.5}, make_groups(groups=3))
    run.record_eval(0, EVAL_ROW, make_groups(groups=2))
    missing = dict.fromkeys(EVAL_METRICS)
    assert run.evals() == [
        {"step": 0, **EVAL_ROW},
        {"step": 10, **missing, "accuracy": 0.25, "worked_share": 0.5},
    ]
    assert len(run.eval_groups(0)) == 2
    assert run.eval_groups(0)[1]["completions"][0]["text"] == make_groups()[1].completions[0].text
    assert run.groups(0) == []
    assert run.summary()["completions"] == 0


def test_the_best_evaluation_is_by_accuracy_then_reward_then_the_first(run: Run) -> None:
    rows = [(0.0, 0.3), (0.0, 0.4), (0.0, 0.4), (0.25, 0.1), (0.25, None)]
    best = []
    for step, (accuracy, reward) in enumerate(rows):
        run.record_eval(step, {"accuracy": accuracy} | ({} if reward is None else {"reward_mean": reward}), [])
        best.append(run.best_step())
    assert best == [0, 1, 1, 3, 3]
    assert [run.best_step(up_to=step) for step in range(5)] == best


def test_a_run_that_nobody_trains_any_more_was_killed(run: Run) -> None:
    def told() -> tuple[str, bool]:
        return run.summary()["status"], any("--resume" in line for line in result(run, 80))

    assert told() == ("running", False)  # no trainer has had it yet
    lock = RunLock(run.path)
    assert told() == ("running", False)
    lock.close()
    assert told() == ("killed", True)
    RunLock(run.path).close()  # who looked is not in the way
    run.set_status("finished")
    assert told() == ("finished", False)


def test_probes(run: Run) -> None:
    run.record_probes(0, [make_probe("old")])
    run.record_probes(0, [make_probe("41"), make_probe("42")])
    run.record_probes(5, [make_probe("later")])
    found = run.probes()
    assert [(row["step"], row["samples"][0]["text"]) for row in found] == [(0, "41"), (0, "42"), (5, "later")]
    assert found[0]["samples"] == [
        {"text": "41", "reward": 1.0, "correct": None},
        {"text": "41", "reward": None, "correct": None},
    ]
    assert (found[0]["problem_id"], found[0]["prompt"], found[0]["answer"]) == ("probe-0", "6*7=", "42")


def test_rewind_forgets_what_came_after(run: Run) -> None:
    record_steps(run, range(6))
    for step in (0, 2, 4):
        run.record_eval(step, {"accuracy": step / 8}, make_groups(groups=1))
        run.record_probes(step, [make_probe(str(step))])
    kept = run.groups(1)
    run.rewind(2)
    assert run.last_step() == 1
    assert [row["step"] for row in run.metrics()] == [0, 1]
    assert [row["step"] for row in run.evals()] == [0, 2]
    assert [row["step"] for row in run.probes()] == [0, 2]
    assert (run.groups(1), run.groups(2)) == (kept, [])
    assert (len(run.token_arrays(1)), run.token_arrays(2)) == (4, [])
    assert (len(run.eval_groups(2)), run.eval_groups(4)) == (1, [])
    assert run.summary()["completions"] == 2 * 3 * 4
    assert run.summary()["spans"]["sample"] == 4.0
    record_steps(run, range(2, 6))
    assert run.summary()["completions"] == 6 * 3 * 4
    run.rewind(0)
    assert run.last_step() is None
    assert [row["step"] for row in run.evals()] == [0]


def test_sft_run_records_no_groups(tmp_path: Path) -> None:
    with Run.create(tmp_path, "taught", kind="sft", config={"model": "tiny"}) as run:
        run.record(0, [], {"sft_loss": 2.5, "tokens": 70.0}, {"update": 1.0})
        summary = run.summary()
    assert (summary["kind"], summary["steps"], summary["completions"]) == ("sft", 1, 0)
    assert (summary["group_size"], summary["reward_mean"]) == (None, None)
    assert "worked_share" not in summary


def test_summary(run: Run) -> None:
    record_steps(run, range(2))
    run.record_eval(0, {"accuracy": 0.25, "worked_share": 0.0}, [])
    run.record_eval(2, EVAL_ROW, [])
    run.set_status("finished")
    summary = run.summary()
    settings = {key: value for key, value in CONFIG.items() if key != "loss"}
    expected = {
        "name": "first",
        "kind": "grpo",
        "status": "finished",
        **settings,
        "steps": 2,
        "completions": 24,
        "worked_share": 0.25,
        "reward_mean": 0.25,
        "config": CONFIG,
    }
    assert {key: summary[key] for key in expected} == expected
    assert summary["eval"][1] == {"step": 2, **EVAL_ROW}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_status(run: Run) -> None:
    assert run.summary()["status"] == "running"
    run.set_status("stopped")
    assert run.summary()["status"] == "stopped"
    with pytest.raises(ValueError, match="'done'"):
        run.set_status("done")


def test_list_is_newest_first_and_survives_broken_folders(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "absent") == []
    for name in ("zebra", "ant"):
        with Run.create(tmp_path, name, kind="grpo", config=CONFIG) as run:
            record_steps(run, range(2))
        time.sleep(0.005)  # created is kept in milliseconds
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "run.db").write_bytes(b"garbage" * 1000)
    (tmp_path / "bad name").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "note.txt").write_text("not a folder")
    rows = list_runs(tmp_path)
    assert [row["name"] for row in rows[:2]] == ["ant", "zebra"]
    assert (rows[0]["steps"], rows[0]["model"], rows[0]["status"], rows[0]["problem"]) == (2, "tiny", "running", None)
    assert {row["name"]: row["status"] for row in rows[2:]} == dict.fromkeys(
        ("bad name", "empty", "garbage"), "unreadable"
    )
    assert all(row["problem"] for row in rows[2:])


# A step made again, as a run does that was killed after its last checkpoint


def test_a_step_made_again_the_same_way_differs_in_nothing_but_its_times(run: Run) -> None:
    record_steps(run, range(3))
    before = [(row, run.groups(row["step"])) for row in run.metrics()]
    metrics = {"loss": 1 / 8, "reward_mean": 0.25}
    for speed in (5.0, 7.0):
        assert run.differences(1, make_groups(1), {**metrics, "tokens_per_second": speed}) == []
        run.record(1, make_groups(1), {**metrics, "tokens_per_second": speed}, {"sample": speed})
    assert run.series("tokens_per_second") == [(1, 7.0)]
    assert [span["seconds"] for span in run.spans() if (span["step"], span["name"]) == (1, "sample")] == [7.0]
    run.record(1, make_groups(1), metrics, {"sample": 2.0})
    assert [(row, run.groups(row["step"])) for row in run.metrics()] == before
    assert run.summary()["completions"] == 3 * 3 * 4
    assert len(run.token_arrays(1)) == 4


def changed(**changes: object) -> list[Group]:
    """The groups of step 1, with another third completion in the second group."""
    groups = make_groups(1)
    first, second, third, fourth = groups[1].completions
    groups[1] = replace(groups[1], completions=(first, second, replace(third, **changes), fourth))
    return groups


SAME = {"loss": 0.125, "kl": 0.25}


@pytest.mark.parametrize(
    ("groups", "metrics", "named"),
    [
        (changed(), {**SAME, "loss": 0.5}, ["metric loss was 0.125, is 0.5"]),
        (changed(), {**SAME, "loss": math.nextafter(0.125, 1)}, ["metric loss was 0.125, is 0.12500000000000003"]),
        (changed(), {**SAME, "loss": math.nan}, ["metric loss was 0.125, is None"]),
        (changed(), {"loss": 0.125}, ["metric kl was 0.25, is None"]),
        (changed(), {**SAME, "entropy": 1.5}, ["metric entropy was None, is 1.5"]),
        (changed(), {"loss": 1.0, "kl": 2.0}, ["metric kl was 0.25, is 2.0", "metric loss was 0.125, is 1.0"]),
        (changed(text="other"), SAME, ["completion 1/2: text was '«12»\\n42', is 'other'"]),
        (changed(reward=0.5), SAME, ["completion 1/2: reward was 0.0, is 0.5"]),
        (changed(finish="stop"), SAME, ["completion 1/2: finish was 'length', is 'stop'"]),
        (changed(parts={"correct": 1.0}), SAME, ["completion 1/2: parts was "]),
        (changed(logprobs=np.zeros(2)), SAME, ["completion 1/2: logprob was "]),
        (changed()[:2], SAME, [f"completion 2/{sample} is missing" for sample in range(4)]),
        (make_groups(1, groups=4), SAME, [f"completion 3/{sample} is new" for sample in range(4)]),
    ],
)
def test_what_is_not_the_same_when_made_again_is_named_and_replaced(
    run: Run, tmp_path: Path, groups: list[Group], metrics: dict[str, float], named: list[str]
) -> None:
    run.record(1, make_groups(1), SAME, {})
    differences = run.differences(1, groups, metrics)
    run.record(1, groups, metrics, {})
    assert [found[: len(name)] for found, name in zip(differences, named, strict=True)] == named
    with Run.create(tmp_path, "only", kind="grpo", config={}) as only:
        only.record(1, groups, metrics, {})
        assert run.metrics() == only.metrics()
        assert run.groups(1) == only.groups(1)
    assert run.differences(1, groups, metrics) == [], "what differed once is now the record"
    assert run.differences(2, groups, metrics) == [], "step 2 was never recorded"


def test_only_the_columns_that_differ_are_named_and_long_values_are_cut(run: Run) -> None:
    before, after = ("so " * 500 + number + " then" * 500 for number in ("42", "43"))
    logprobs = np.zeros(2, np.float32)
    run.record(1, changed(text=before, logprobs=logprobs), {}, {})
    [found] = run.differences(1, changed(text=before, logprobs=logprobs - 0.25), {})
    assert found == "completion 1/2: logprob was 0.0, is -0.5"
    [found] = run.differences(1, changed(text=after, logprobs=logprobs, finish="stop"), {})
    assert found == (
        "completion 1/2: text was …o so so 42 then then then then then then…, "
        "is …o so so 43 then then then then then then…; finish was 'length', is 'stop'"
    )


def test_findings_come_back_in_order(run: Run) -> None:
    assert run.findings() == []
    run.add_finding("damaged", "checkpoint step-000002 is damaged")
    run.add_finding("replay", "step 3 was computed again and differs", 3)
    found = run.findings()
    assert [(row["step"], row["kind"], row["text"]) for row in found] == [
        (None, "damaged", "checkpoint step-000002 is damaged"),
        (3, "replay", "step 3 was computed again and differs"),
    ]
    assert time.time() - 60 < found[0]["recorded"] <= found[1]["recorded"] <= time.time()
    run.rewind(0)
    assert run.findings() == found, "what somebody should look at outlives the steps"


# Secrets


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--hub-token hf_123 --steps 3", "--hub-token … --steps 3"),
        ("--hub_TOKEN=hf_123 x", "--hub_TOKEN=… x"),
        ("--api-key 1 --client.secret=2 --password 3", "--api-key … --client.secret=… --password …"),
        ("--token", "--token"),
        ("--max-new-tokens 32 --system.token_budget=5", "--max-new-tokens 32 --system.token_budget=5"),
        ("sft keyboard.jsonl --run monkey", "sft keyboard.jsonl --run monkey"),
    ],
)
def test_secrets_on_the_command_line_are_not_kept(typed: str, kept: str) -> None:
    assert redacted(typed.split()) == kept.split()


def test_no_secret_reaches_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo", "train", "--hub-token", "hf_typed123"])
    monkeypatch.setenv("HF_TOKEN", "hf_environment456")
    with Run.create(tmp_path, "private", kind="grpo", config={}) as run:
        assert run.summary()["command"] == ["grpo", "train", "--hub-token", "…"]
    written = b"".join(path.read_bytes() for path in (tmp_path / "private").iterdir())
    assert b"grpo" in written
    assert b"hf_" not in written


# Creation is all or nothing


def test_a_run_that_could_not_be_made_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("grpo.record.store.SCHEMA", "CREATE TABLE meta (key TEXT, value TEXT); CREATE nonsense;")
        with pytest.raises(sqlite3.OperationalError, match="nonsense"):
            Run.create(tmp_path, "first", kind="grpo", config={})
    assert not (tmp_path / "first").exists()
    assert list_runs(tmp_path) == []
    with Run.create(tmp_path, "first", kind="grpo", config=CONFIG) as run:
        assert run.config == CONFIG


def test_a_process_killed_while_it_makes_a_run_leaves_no_folder(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; import grpo.record.store\n"
        "Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"  # all is written, but not under its name
        "grpo.record.store.Run.create(Path(sys.argv[1]), 'killed', kind='grpo', config={})"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == -9
    assert not (tmp_path / "killed").exists()
    assert list_runs(tmp_path) == []
    Run.create(tmp_path, "killed", kind="grpo", config={}).close()


def test_a_folder_with_something_in_it_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years")
    with pytest.raises(GrpoError, match=r"^field run: mine exists"):
        Run.create(tmp_path, "mine", kind="grpo", config={})
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "ten years"


# No space left


@pytest.mark.parametrize("write", ["record", "record_eval", "record_probes", "find"])
def test_a_full_disk_is_named_and_the_same_write_works_once_there_is_space(run: Run, write: str) -> None:
    record_steps(run, range(2))
    long = [replace(group, problem=replace(group.problem, prompt="1" * 50_000)) for group in make_groups(2)]
    writes = {
        "record": lambda: run.record(2, long, {"loss": 0.25}, {}),
        "record_eval": lambda: run.record_eval(2, EVAL_ROW, long),
        "record_probes": lambda: run.record_probes(2, long),
        "find": lambda: run.add_finding("replay", "1" * 50_000),
    }

    def content() -> list:
        return [run.metrics(), run.evals(), run.probes(), run.findings(), [run.groups(i) for i in range(3)]]

    before = content()
    [pages] = run._db.execute("PRAGMA page_count").fetchone()
    run._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFullError) as caught:
        writes[write]()
    assert str(caught.value) == f"{run.path / 'run.db'}: the disk is full; everything recorded before is intact"
    assert content() == before
    run._db.execute("PRAGMA max_page_count = 1000000")
    writes[write]()
    assert content() != before
    assert [tuple(row) for row in run._db.execute("PRAGMA integrity_check")] == [("ok",)]


def test_a_record_that_cannot_be_written_is_named(run: Run) -> None:
    """As of a disk that was mounted read-only, or while another program holds the record for longer than 30 s."""
    record_steps(run, range(2))
    file = run.path / "run.db"
    run._db.execute("PRAGMA query_only = ON")
    with pytest.raises(GrpoError) as caught:
        run.set_status("finished")
    why = "attempt to write a readonly database"
    assert str(caught.value) == f"{file}: cannot be written ({why}); resume once it can (--resume)"
    run._db.execute("PRAGMA query_only = OFF")
    run._db.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(GrpoError, match=r"run\.db: cannot be written \(database is locked\); resume once it can"):
            run.add_finding("replay", "")
    assert (run.status, run.last_step()) == ("running", 1)


# Living beside others


def test_reader_sees_whole_steps_while_a_writer_records(tmp_path: Path, run: Run) -> None:
    done = threading.Event()
    seen: list[int] = []
    failures: list[str] = []

    def read() -> None:
        with Run.open(tmp_path, "first", readonly=True) as reader:
            while not done.is_set():
                summary = reader.summary()
                if (
                    summary["completions"] != summary["steps"] * 12
                    or summary["spans"].get("update", 0) != summary["steps"] / 2
                ):
                    failures.append(f"torn: {summary}")
                last = reader.last_step()
                if last is not None and [len(group["completions"]) for group in reader.groups(last)] != [4] * 3:
                    failures.append(f"torn groups at {last}")
                seen.append(summary["steps"])

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 20
    step = 0
    while time.monotonic() < deadline and (step < 40 or len(set(seen)) < 3):
        record_steps(run, range(step, step + 1))
        step += 1
    done.set()
    thread.join()
    assert failures == []
    assert len(set(seen)) >= 3, "the reader never saw the run grow"
    assert seen == sorted(seen)


def test_read_only_cannot_write(tmp_path: Path, run: Run) -> None:
    with (
        Run.open(tmp_path, "first", readonly=True) as reader,
        pytest.raises(GrpoError, match="readonly"),
    ):
        reader.record(0, [], {"loss": 1.0}, {})
    assert run.last_step() is None


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO findings VALUES (1.0, 0, 'kind', CAST(x'ff41' AS TEXT))",  # not UTF-8
        "UPDATE meta SET value = '{\"mod' WHERE key = 'config'",
        "DELETE FROM meta WHERE key = 'kind'",
    ],
)
def test_damage_that_sqlite_does_not_notice_is_named(tmp_path: Path, run: Run, damage: str) -> None:
    with connect(run.path / "run.db", readonly=False) as db:
        db.execute(damage)
    with (
        pytest.raises(GrpoError, match=r"run\.db cannot be read as a run record \(.+\); name another run"),
        Run.open(tmp_path, "first", readonly=True) as reader,
    ):
        reader.findings()


def test_a_mistake_in_a_query_is_no_damage(tmp_path: Path, run: Run) -> None:
    with (
        pytest.raises(sqlite3.ProgrammingError, match="bindings"),
        Run.open(tmp_path, "first", readonly=True) as reader,
    ):
        reader.select("SELECT ?")


def test_steps_survive_a_killed_writer(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from grpo.record.store import Run\n"
        "run = Run.create(Path(sys.argv[1]), 'killed', kind='grpo', config={})\n"
        "for step in range(3): run.record(step, [], {'loss': 0.5}, {})\n"
        "run._db.execute('INSERT INTO steps VALUES (3, 0)')\n"  # begun, never committed
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert killed.returncode == -9
    with Run.open(tmp_path, "killed") as run:
        assert run.series("loss") == [(0, 0.5), (1, 0.5), (2, 0.5)]
        assert run.last_step() == 2
        assert run.summary()["status"] == "running"


def test_reading_a_record_loads_no_torch() -> None:
    script = "import sys, grpo.record.store, grpo.record.metrics; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "False"


def test_values_go_to_columns_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A schema with another order of columns, and one column more, holds the same record."""
    schema = store.SCHEMA
    for columns, others in (
        ("(step INTEGER PRIMARY KEY, recorded REAL NOT NULL)", "(recorded REAL NOT NULL, step INTEGER PRIMARY KEY)"),
        ("text TEXT NOT NULL, length INTEGER NOT NULL,", "length INTEGER NOT NULL, note TEXT, text TEXT NOT NULL,"),
        ("problem_id TEXT NOT NULL, prompt TEXT NOT NULL,", "prompt TEXT NOT NULL, problem_id TEXT NOT NULL,"),
        ("ref_logprobs BLOB, old_logprobs BLOB,", "old_logprobs BLOB, ref_logprobs BLOB,"),
        (
            "recorded REAL NOT NULL, step INTEGER, kind TEXT NOT NULL,",
            "kind TEXT NOT NULL, step INTEGER, recorded REAL,",
        ),
        ("start REAL NOT NULL, seconds REAL NOT NULL,", "seconds REAL NOT NULL, start REAL NOT NULL,"),
    ):
        assert columns in schema
        schema = schema.replace(columns, others)
    monkeypatch.setattr(store, "SCHEMA", schema)
    with Run.create(tmp_path, "other", kind="grpo", config=CONFIG) as other:
        for each in (run, other):
            each.record(0, make_groups(), {"loss": 0.5}, {"rollout": 2.0}, ended=1000.0)
            each.record_eval(0, EVAL_ROW, make_groups()[:1])
            each.record_probes(0, [make_probe("42")])
            each.add_finding("kl", "too far", 3)
        assert other.metrics() == run.metrics()
        assert other.evals() == run.evals()
        assert other.probes() == run.probes()
        assert other.spans() == run.spans() == [{"step": 0, "name": "rollout", "start": 998.0, "seconds": 2.0}]
        assert [(row["step"], row["kind"], row["text"]) for row in other.findings()] == [(3, "kl", "too far")]
        for row in other.completions():
            assert row.pop("note") is None
            assert row in run.completions(0)
        for left, right in zip(other.token_arrays(0), run.token_arrays(0), strict=True):
            assert all(np.array_equal(left[name], right[name]) for name in left)


def test_listing_runs_reads_no_completion_and_no_span(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_steps(run, range(3))
    statements: list[str] = []

    def traced(*arguments: object, **options: object) -> sqlite3.Connection:
        db = connect(*arguments, **options)
        db.set_trace_callback(statements.append)
        return db

    monkeypatch.setattr("grpo.record.reader.connect", traced)
    [row] = list_runs(tmp_path)
    assert (row["steps"], row["reward_mean"], row["status"]) == (3, 0.25, "running")
    assert not [text for text in statements if "completions" in text or "spans" in text or "groups" in text]
    assert len([text for text in statements if "FROM steps" in text]) == 1


def test_steps_metrics_and_completions_are_flat_records(run: Run) -> None:
    run.record(0, make_groups(groups=2), {"loss": 0.5}, {"rollout": 2.0, "update": 1.0}, ended=1000.0)
    run.record(1, make_groups(1, groups=1), {"loss": 0.25, "kl": math.nan}, {"rollout": 3.0}, ended=1003.0)
    [first, second] = run.steps()
    recorded = first.pop("recorded")
    assert first == {"step": 0, "seconds": 3.0, "rollout_seconds": 2.0, "update_seconds": 1.0}
    assert (second["step"], second["seconds"], second["recorded"] >= recorded) == (1, 3.0, True)
    assert run.metrics() == [{"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.25, "kl": None}]
    assert run.metrics(since=1) == [{"step": 1, "loss": 0.25, "kl": None}]
    assert [len(run.completions(step)) for step in (None, 0, 1, 2)] == [12, 8, 4, 0]
    assert run.completions()[8:] == run.completions(step=1)
    row = run.completions(step=0)[4]
    assert {name: row[name] for name in ("step", "group_index", "sample_index")} == {
        "step": 0,
        "group_index": 1,
        "sample_index": 0,
    }
    assert (row["problem_id"], row["prompt"], row["answer"]) == ("train-0-1", "1*7=", "7")
    assert (row["text"], row["reward"], row["advantage"]) == ("«10»\n42", 1.0, 0.75)
    assert (row["part_correct"], row["part_format"], row["trait_worked"]) == (1.0, None, 1.0)
    assert not [value for row in run.completions() for value in row.values() if isinstance(value, dict | list)]


def test_records_become_a_pandas_frame_where_pandas_is_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    record_steps(run, range(3))
    frame = run.metrics().to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["loss"]) == [0.0, 0.125, 0.25]
    rewards = run.completions().to_pandas().groupby("step")["reward"].mean()
    assert list(rewards) == [0.25, 0.25, 0.25]
    assert run.evals().to_pandas().empty
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(GrpoError, match=r"^to_pandas needs pandas: pip install pandas$"):
        run.metrics().to_pandas()
