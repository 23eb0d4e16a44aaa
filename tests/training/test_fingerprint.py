"""A resume is refused where code that decides the numbers changed, and only there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import grpo
from grpo.errors import GrpoError
from grpo.training import fingerprint
from grpo.training.fingerprint import PACKAGES, code_fingerprints, code_of, model_fingerprint, reward_fingerprints
from helpers.runs import small


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of grpo's own files, which the fingerprint reads."""
    copy = tmp_path / "package"
    shutil.copytree(fingerprint.PACKAGE, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.db", "__pycache__"))
    monkeypatch.setattr(fingerprint, "PACKAGE", copy)
    return copy


def edit(file: Path) -> None:
    file.write_text(file.read_text() + "\n# edited\n")


def test_every_room_is_hashed_or_left_out_on_purpose(package: Path) -> None:
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert rooms == {*PACKAGES, "record", "lab", "cli"}


def test_a_resume_survives_edits_of_pages_and_is_refused_after_edits_of_the_core(tmp_path: Path, package: Path) -> None:
    config = small(tmp_path / "runs", run="job", resume=True, steps=1)
    grpo.train(config).close()
    for file in ("lab/server.py", "lab/static/js/app.js", "core/explain/tabular.py", "cli/main.py", "record/store.py"):
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).touch()
        edit(package / file)
    with grpo.train(replace(config, steps=2)) as run:
        assert run.last_step() == 1
        assert run.findings() == []
    edit(package / "core/advantage.py")
    with pytest.raises(
        GrpoError, match=r"field resume: job began with other inputs: grpo code: core/advantage.py changed; restore"
    ):
        grpo.train(replace(config, steps=3))


@pytest.mark.parametrize("file", ["types.py", *(f"{room}/__init__.py" for room in PACKAGES)])
def test_every_room_that_decides_the_numbers_counts(package: Path, file: str) -> None:
    before = code_fingerprints()["grpo code"]
    edit(package / file)
    assert code_fingerprints()["grpo code"] != before


def test_a_message_names_few_of_many_changed_files(tmp_path: Path, package: Path) -> None:
    config = small(tmp_path / "runs", run="job", resume=True, steps=1)
    grpo.train(config).close()
    for room in PACKAGES:
        edit(package / room / "__init__.py")
    names = ", ".join(f"{room}/__init__.py changed" for room in PACKAGES[:4])
    with pytest.raises(GrpoError, match=f"began with other inputs: grpo code: {names} and 5 more; restore"):
        grpo.train(replace(config, steps=2))


def test_a_hugging_face_id_stands_for_its_downloaded_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert model_fingerprint("owner/name") == {"commit": ""}
    repository = tmp_path / "models--owner--name"
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        assert model_fingerprint("owner/name") == {"commit": commit}


def test_the_files_of_a_reward_model_count(tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "README.md"):
        (tmp_path / name).write_text(name)
    reward = f"model:{tmp_path}#good*0.5, task"
    before = reward_fingerprints("reward code", reward, {})["reward code"]
    assert {*before} == {f"{tmp_path}/model.safetensors", f"{tmp_path}/config.json"}
    edit(tmp_path / "model.safetensors")
    after = reward_fingerprints("reward code", reward, {})["reward code"]
    assert [name for name in before if before[name] != after[name]] == [f"{tmp_path}/model.safetensors"]  # type: ignore[index]


def test_the_code_of_tools_and_environments_counts(tmp_path: Path) -> None:
    """Their files with what these import, and what was handed over."""

    def search(query: str) -> str:
        return query

    (tmp_path / "mine.py").write_text("from beside import limit\n")
    (tmp_path / "beside.py").write_text("limit = 3\n")
    places = [f"{tmp_path}/mine.py:f", f" {tmp_path}/mine.py:g", "python:search"]
    before = code_of("tool code", places, {"search": search})["tool code"]
    assert list(before) == [f"{tmp_path}/beside.py", f"{tmp_path}/mine.py", "python:search"]
    (tmp_path / "beside.py").write_text("limit = 4\n")
    after = code_of("tool code", places, {"search": lambda query: ""})["tool code"]
    assert [name for name in before if before[name] != after[name]] == [f"{tmp_path}/beside.py", "python:search"]
    assert code_of("environment code", [""], {}) == {}
