"""Checkpoints: exact, whole or found out, and never at the cost of the one before."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo.config import Optimizer
from grpo.errors import DiskFullError, GrpoError
from grpo.model.files import write_model
from grpo.model.load import load_policy
from grpo.model.optimizer import AdamW, Named, make_optimizer, take_step
from grpo.model.policy import Policy
from grpo.model.tensorfile import Mirror
from grpo.record.checkpoints import MANIFEST, Checkpoint, Checkpoints, Snapshot
from grpo.training.training_run import make_snapshot

FILES = [
    "manifest.json",
    "model/config.json",
    "model/generation_config.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "optimizer.safetensors",
    "state.json",
]


def small(value: float = 1.0) -> Snapshot:
    """A checkpoint of a few bytes."""
    return Snapshot(
        files={"config.json": f"config {value}".encode()},
        weights={"weight": torch.full((2, 3), float(value))},
        optimizer_tensors={"exp_avg/weight": torch.full((2, 3), float(value))},
        state={"value": value},
    )


def saved(path: Path, *steps: int, keep: int = 10) -> Checkpoints:
    checkpoints = Checkpoints(path, keep=keep)
    for step in steps:
        save(checkpoints, step, step)
    checkpoints.wait()
    return checkpoints


def save(checkpoints: Checkpoints, step: int, value: float = 1.0, also_keep: int | None = None) -> None:
    checkpoints.save(step, lambda: small(value), also_keep)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(os.listdir(checkpoints.folder))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def value_of(checkpoint: Checkpoint | None) -> float:
    """What `small` put there, which must be the same in all four files."""
    assert checkpoint is not None
    assert checkpoint.damage() == ""
    value = checkpoint.state["value"]
    assert (checkpoint.model / "config.json").read_text() == f"config {value}"
    assert load_file(checkpoint.model / "model.safetensors")["weight"].tolist() == [[value] * 3] * 2
    assert checkpoint.tensors("optimizer")["exp_avg/weight"].tolist() == [[value] * 3] * 2
    return value


def refuse(message: str) -> None:
    pytest.fail(f"nothing is damaged, yet: {message}")


# What comes back


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, list[int]]:
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_content_comes_back_bit_for_bit(tmp_path: Path) -> None:
    odd = torch.tensor([0.1, -0.0, float("nan"), float("-inf"), 1e-45, 3.4e38])
    moments = {
        "exp_avg/a": odd,
        "exp_avg/b": odd.to(torch.bfloat16),
        "exp_avg_sq/a": odd.to(torch.float64),
        "step/a": torch.tensor(7.0),
        "step/b": torch.tensor(2**62),
    }
    weights = {"a": odd.flip(0), "b": torch.arange(6.0).reshape(2, 3).T, "c": torch.zeros(0, 4), "d": odd > 0}
    state = {"policy_version": 2**53 + 1, "nested": {"list": [0.1, 1e-300, None, True, "«ü»"]}}
    content = {"config.json": bytes(range(256)) * 5, "templates/chat.jinja": b"{{ prompt }}"}
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest() is None
    assert checkpoints.newest_whole(refuse) is None
    checkpoints.save(50, lambda: Snapshot(content, weights, moments, state))
    checkpoints.wait()

    checkpoint = checkpoints.newest_whole(refuse)
    assert checkpoint == checkpoints.newest() == checkpoints.at(50)
    assert checkpoint == Checkpoint(50, tmp_path / "checkpoints" / "step-000050")
    assert checkpoints.at(49) is None
    assert checkpoint.state == state
    assert {name: (checkpoint.model / name).read_bytes() for name in content} == content
    for found, expected in (
        (checkpoint.tensors("optimizer"), moments),
        (load_file(checkpoint.model / "model.safetensors"), weights),
    ):
        assert {name: bits(tensor) for name, tensor in found.items()} == {
            name: bits(tensor) for name, tensor in expected.items()
        }


def trained_policy() -> tuple[Policy, AdamW]:
    """One update away from the embedded model, so that Adam has a state."""
    policy = load_policy("nano")
    optimizer = make_optimizer(policy, Optimizer())
    update(policy, optimizer, seed=0)
    return policy, optimizer


def update(policy: Policy, optimizer: AdamW, seed: int) -> None:
    torch.manual_seed(seed)
    for weight in policy.model.parameters():
        weight.grad = torch.randn_like(weight)
    take_step(policy, optimizer, lr=0.01, grad_clip=1.0)


def save_policy(checkpoints: Checkpoints, step: int, policy: Policy, optimizer: AdamW) -> None:
    state = {"policy_version": policy.version}
    checkpoints.save(step, lambda: make_snapshot(policy, Mirror(), state, tensors_of(policy, optimizer)))


def tensors_of(policy: Policy, optimizer: AdamW) -> dict[str, Named]:
    return {"model": optimizer.whole(policy.weights()), "optimizer": optimizer.state()}


def test_a_model_and_its_optimizer_go_on_as_if_never_saved(tmp_path: Path) -> None:
    policy, optimizer = trained_policy()
    checkpoints = Checkpoints(tmp_path)
    save_policy(checkpoints, 1, policy, optimizer)
    checkpoints.wait()
    checkpoint = checkpoints.newest_whole(refuse)
    assert checkpoint is not None
    assert sorted(files(checkpoint.path)) == FILES
    again = load_policy(str(checkpoint.model))
    again_optimizer = make_optimizer(again, Optimizer())
    again_optimizer.restore(checkpoint.tensors("optimizer"))
    again.version = checkpoint.state["policy_version"]
    for seed in (1, 2):
        update(policy, optimizer, seed)
        update(again, again_optimizer, seed)
    assert again.version == policy.version == 3
    left, right = policy.model.state_dict(), again.model.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    left, right = dict(optimizer.state()), dict(again_optimizer.state())
    assert left.keys() == right.keys()
    assert len(left) == 3 * len(list(policy.model.parameters()))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_large_files_are_cut_and_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.model.tensorfile.LARGEST_FILE", 100_000)
    policy, optimizer = trained_policy()
    checkpoints = Checkpoints(tmp_path)
    save_policy(checkpoints, 1, policy, optimizer)
    checkpoints.wait()
    checkpoint = checkpoints.newest_whole(refuse)
    assert checkpoint is not None
    for folder, stem, expected in (
        (checkpoint.model, "model", policy.weights()),
        (checkpoint.path, "optimizer", dict(optimizer.state())),
    ):
        index = json.loads((folder / f"{stem}.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
        parts = {file: load_file(folder / file) for file in sorted(set(index["weight_map"].values()))}
        assert list(parts) == [f"{stem}-{n:05d}-of-{len(parts):05d}.safetensors" for n in range(1, len(parts) + 1)]
        assert sorted(folder.glob("*.safetensors")) == [folder / file for file in parts]
        assert {name: file for file, part in parts.items() for name in part} == index["weight_map"]
        sizes = [[tensor.nbytes for tensor in part.values()] for part in parts.values()]
        assert len(sizes) > 2
        assert all(sum(each) <= 100_000 or len(each) == 1 for each in sizes)
    again = load_policy(str(checkpoint.model))
    assert all(torch.equal(tensor, policy.weights()[name]) for name, tensor in again.weights().items())
    assert checkpoint.has("optimizer")
    assert not checkpoint.has("critic")
    found = checkpoint.tensors("optimizer")
    assert found.keys() == dict(optimizer.state()).keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in optimizer.state())

    second = sorted(checkpoint.path.glob("optimizer-*.safetensors"))[1]
    second.unlink()
    assert checkpoint.damage() == f"{second} is missing"


def test_what_is_written_in_the_background_is_what_was_there_when_save_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, optimizer = trained_policy()
    foreground, background = Checkpoints(tmp_path / "foreground"), Checkpoints(tmp_path / "background")
    for checkpoints in (foreground, background):
        checkpoints.folder.parent.mkdir()
    save_policy(foreground, 1, policy, optimizer)
    foreground.wait()

    training_went_on = threading.Event()

    def held(*arguments: Any) -> None:
        assert training_went_on.wait(30)
        write_model(*arguments)

    monkeypatch.setattr("grpo.model.files.write_model", held)
    save_policy(background, 1, policy, optimizer)
    assert background.newest() is None, "save returned before anything was written"
    for seed in range(5):
        update(policy, optimizer, seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.fill_(float("nan"))
    training_went_on.set()
    background.wait()

    left, right = foreground.newest_whole(refuse), background.newest_whole(refuse)
    assert left is not None
    assert right is not None
    assert files(left.path) == files(right.path)


def test_a_snapshot_is_taken_only_when_the_one_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both use the same memory, so an early one would be written with later numbers."""
    policy, optimizer = trained_policy()
    mirror, checkpoints = Mirror(), Checkpoints(tmp_path, keep=3)
    expected = []

    def slowly(*arguments: Any) -> None:
        time.sleep(0.05)
        write_model(*arguments)

    monkeypatch.setattr("grpo.model.files.write_model", slowly)
    for step in (1, 2, 3):
        update(policy, optimizer, step)
        expected.append({name: weight.clone() for name, weight in policy.weights().items()})
        checkpoints.save(step, lambda: make_snapshot(policy, mirror, {}, tensors_of(policy, optimizer)))
    checkpoints.wait()
    for step in (1, 2, 3):
        found = load_file(checkpoints.folder / f"step-00000{step}" / "model" / "model.safetensors")
        assert found.keys() == expected[step - 1].keys()
        assert all(torch.equal(found[name], expected[step - 1][name]) for name in found)


# What stays


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (1, None, [999_999, 1_000_000][1:]),
        (2, None, [999_999, 1_000_000]),
        (2, 5, [5, 999_999, 1_000_000]),
        (2, 999_999, [999_999, 1_000_000]),
        (1, 10, [10, 1_000_000]),
        (2, 7, [999_999, 1_000_000]),
        (9, 5, [5, 10, 20, 999_999, 1_000_000]),
    ],
)
def test_the_newest_stay_and_the_best(tmp_path: Path, keep: int, best: int | None, left: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path, keep=keep)
    for step in (5, 10, 20, 999_999, 1_000_000):
        save(checkpoints, step, step, best)
    checkpoints.wait()
    assert names(checkpoints) == sorted(f"step-{step:06d}" for step in left)
    assert [value_of(checkpoints.at(step)) for step in left] == left
    assert value_of(checkpoints.newest()) == 1_000_000


def test_a_best_that_is_overtaken_goes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, best in ((1, None), (2, 2), (3, 2), (4, 2), (5, 5), (6, 5)):
        save(checkpoints, step, step, best)
    checkpoints.wait()
    assert names(checkpoints) == ["step-000005", "step-000006"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 3, 1.0)
    save(checkpoints, 3, 2.0)
    checkpoints.wait()
    assert names(checkpoints) == ["step-000003"]
    assert value_of(checkpoints.newest()) == 2.0


def test_other_things_in_the_folder_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4)
    for name in ("damaged-step-000009", "step-best", "step-", "notes", ".writing-step-000009", ".removing-step-000008"):
        (checkpoints.folder / name).mkdir()
    assert value_of(checkpoints.newest_whole(refuse)) == 4
    save(checkpoints, 5, 5)
    checkpoints.wait()
    assert names(checkpoints) == ["damaged-step-000009", "notes", "step-", "step-000004", "step-000005", "step-best"]


# Order of writing


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    real_fsync, real_rename, real_rmtree = os.fsync, Path.rename, shutil.rmtree

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        happened.append(f"fsync {path.relative_to(tmp_path / 'checkpoints')}")
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        happened.append(f"rename {path.name} {target.name}")
        return real_rename(path, target)

    def rmtree(path: Path) -> None:
        happened.append(f"remove {Path(path).name}")
        real_rmtree(path)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to tell which file was synced")
    checkpoints = saved(tmp_path, 1, keep=1)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    save(checkpoints, 2)
    checkpoints.wait()
    aside = ".writing-step-000002"
    *synced, renamed, parent, pruned, removed = happened
    assert sorted(set(synced)) == [
        f"fsync {aside}",
        f"fsync {aside}/{MANIFEST}",
        f"fsync {aside}/model",
        f"fsync {aside}/model/config.json",
        f"fsync {aside}/model/model.safetensors",
        f"fsync {aside}/optimizer.safetensors",
        f"fsync {aside}/state.json",
    ]
    assert [renamed, parent] == [f"rename {aside} step-000002", "fsync ."]
    assert [pruned, removed] == ["rename step-000001 .removing-step-000001", "remove .removing-step-000001"]


# A save that fails


def fails_halfway(error: Exception) -> Callable[..., None]:
    def write(folder: Path, *_: object) -> None:
        (folder / "half").write_text("half")
        raise error

    return write


@pytest.mark.parametrize("error", [PermissionError("not yours"), ValueError("no such thing")])
def test_a_failing_save_leaves_the_one_before_and_raises_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    checkpoints = saved(tmp_path, 1)
    before = files(checkpoints.folder)
    monkeypatch.setattr("grpo.model.files.write_model", fails_halfway(error))
    save(checkpoints, 2)
    with pytest.raises(GrpoError if isinstance(error, OSError) else type(error), match=str(error)):
        save(checkpoints, 3, 3)
    assert checkpoints.newest() == Checkpoint(1, checkpoints.folder / "step-000001")
    assert {name: data for name, data in files(checkpoints.folder).items() if name[0] != "."} == before
    checkpoints.wait()  # what went wrong is said once
    monkeypatch.undo()
    save(checkpoints, 2, 2)
    checkpoints.wait()
    assert names(checkpoints) == ["step-000001", "step-000002"]
    assert value_of(checkpoints.newest()) == 2
    assert not (checkpoints.folder / "step-000002" / "model" / "half").exists()


def test_a_failing_save_raises_at_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    monkeypatch.setattr("grpo.model.files.write_model", fails_halfway(PermissionError("not yours")))
    save(checkpoints, 2)
    with pytest.raises(GrpoError, match=r"step-000002 cannot be written \(not yours\); older ones are intact$"):
        checkpoints.wait()
    assert names(checkpoints) == ["step-000001"]


# Damage


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the real model, at steps 2 and 4."""
    path = tmp_path_factory.mktemp("two")
    policy, optimizer = trained_policy()
    checkpoints = Checkpoints(path)
    for step in (2, 4):
        update(policy, optimizer, step)
        save_policy(checkpoints, step, policy, optimizer)
    checkpoints.wait()
    assert sorted(files(checkpoints.folder / "step-000004")) == FILES
    return path


def flip(place: float) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[round(place * (len(content) - 1))] ^= 1
        file.write_bytes(content)

    return damage


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "lengthened": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "first byte flipped": flip(0.0),
    "middle byte flipped": flip(0.5),
    "last byte flipped": flip(1.0),
    "deleted": lambda file: file.unlink(),
    "replaced by a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_named_and_the_one_before_is_used(
    two_checkpoints: Path, tmp_path: Path, file: str, damage: str
) -> None:
    path = tmp_path / "run"
    shutil.copytree(two_checkpoints, path)
    checkpoints = Checkpoints(path)
    older = files(path / "checkpoints" / "step-000002")
    damaged = path / "checkpoints" / "step-000004"
    DAMAGE[damage](damaged / file)
    told: list[str] = []
    assert checkpoints.newest_whole(told.append) == Checkpoint(2, path / "checkpoints" / "step-000002")
    [line] = told
    assert line.startswith("checkpoint step-000004 is damaged: ")
    assert line.endswith("; renamed to damaged-step-000004")
    assert "\n" not in line
    # A changed manifest may no longer agree with a file that is as it was; then that file is named.
    assert str(damaged / file) in line or (file == MANIFEST and str(damaged) in line)
    assert names(checkpoints) == ["damaged-step-000004", "step-000002"]
    assert files(path / "checkpoints" / "step-000002") == older
    assert checkpoints.newest_whole(refuse) == Checkpoint(2, path / "checkpoints" / "step-000002")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("truncated", "optimizer.safetensors has 56 bytes, not 112"),
        ("deleted", "optimizer.safetensors is missing"),
        ("last byte flipped", "optimizer.safetensors does not have the content that was written"),
    ],
)
def test_the_damage_itself_is_told(tmp_path: Path, damage: str, says: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, lambda: Snapshot({}, {}, {"a": torch.zeros(2)}, {}))
    checkpoints.wait()
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    DAMAGE[damage](checkpoint.path / "optimizer.safetensors")
    assert checkpoint.damage() == f"{checkpoint.path}/{says}"


def test_every_bit_of_a_manifest_matters_or_is_harmless(tmp_path: Path) -> None:
    """Whatever single bit turns over, the answer is a line that names a file, or the listed files are still right."""
    checkpoint = saved(tmp_path, 5).newest()
    assert checkpoint is not None
    manifest = checkpoint.path / MANIFEST
    whole = manifest.read_bytes()
    listed = json.loads(whole)["files"]
    for place in range(len(whole)):
        for bit in range(8):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            manifest.write_bytes(content)
            damage = checkpoint.damage()
            if damage:
                assert damage.startswith(str(checkpoint.path))
            else:
                assert json.loads(content)["files"] == listed
    manifest.write_bytes(whole)
    assert checkpoint.damage() == ""


@pytest.mark.parametrize("content", ["[]", "null", '{"files": []}', '{"files": {"state.json": 3}}', "{}", '"text"'])
def test_a_manifest_of_something_else_is_damage(tmp_path: Path, content: str) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (checkpoints.folder / "step-000002" / MANIFEST).write_text(content)
    told: list[str] = []
    assert value_of(checkpoints.newest_whole(told.append)) == 1
    assert len(told) == 1
    assert MANIFEST in told[0]


def test_two_damaged_in_a_row(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    (checkpoints.folder / "step-000003" / "state.json").unlink()
    (checkpoints.folder / "step-000002" / MANIFEST).write_text("{")
    told: list[str] = []
    assert value_of(checkpoints.newest_whole(told.append)) == 1
    assert [line.split(" is damaged: ")[0] for line in told] == ["checkpoint step-000003", "checkpoint step-000002"]
    assert "state.json is missing" in told[0]
    assert "manifest.json is missing or unreadable" in told[1]
    assert names(checkpoints) == ["damaged-step-000002", "damaged-step-000003", "step-000001"]


def test_all_damaged(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    for step in (1, 2):
        flip(0.5)(checkpoints.folder / f"step-00000{step}" / "optimizer.safetensors")
    told: list[str] = []
    assert checkpoints.newest_whole(told.append) is None
    assert len(told) == 2
    assert names(checkpoints) == ["damaged-step-000001", "damaged-step-000002"]
    assert checkpoints.newest() is None


def test_damaged_again_replaces_what_was_set_aside(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    for value in (1.0, 2.0):
        save(checkpoints, 2, value)
        checkpoints.wait()
        (checkpoints.folder / "step-000002" / "model" / "config.json").unlink()
        told: list[str] = []
        assert value_of(checkpoints.newest_whole(told.append)) == 1
        assert len(told) == 1
    assert names(checkpoints) == ["damaged-step-000002", "step-000001"]
    assert json.loads((checkpoints.folder / "damaged-step-000002" / "state.json").read_text()) == {"value": 2.0}


# No space left


def assert_full(
    checkpoints: Checkpoints, step: int, caught: pytest.ExceptionInfo[DiskFullError], more: str = ""
) -> None:
    assert str(caught.value) == (
        f"{checkpoints.folder}: the disk is full, step-{step:06d} cannot be written{more}; older ones are intact"
    )
    assert names(checkpoints) == ["step-000001"]
    assert value_of(checkpoints.newest_whole(refuse)) == 1


def test_too_little_space_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: usage(1000, 953, 47))
        with pytest.raises(DiskFullError) as caught:
            save(checkpoints, 2, 2)  # twice 6 numbers of 4 bytes
        assert_full(checkpoints, 2, caught, " (48 bytes needed, 47 bytes free)")
        full.setattr(shutil, "disk_usage", lambda path: usage(1000, 952, 48))
        save(checkpoints, 2, 2)
        checkpoints.wait()
    assert value_of(checkpoints.newest()) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_during_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    checkpoints = saved(tmp_path, 1)
    with monkeypatch.context() as full:
        full.setattr("grpo.model.files.write_model", fails_halfway(OSError(number, os.strerror(number))))
        save(checkpoints, 2)
        with pytest.raises(DiskFullError) as caught:
            checkpoints.wait()
    assert_full(checkpoints, 2, caught)
    save(checkpoints, 2, 2)
    checkpoints.wait()
    assert value_of(checkpoints.newest()) == 2


def test_a_disk_that_refuses_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    with monkeypatch.context() as broken:
        broken.setattr("grpo.model.files.write_model", fails_halfway(OSError(errno.EIO, os.strerror(errno.EIO))))
        save(checkpoints, 2)
        with pytest.raises(GrpoError) as caught:
            checkpoints.wait()
    why = "[Errno 5] Input/output error"
    assert str(caught.value) == f"{checkpoints.folder}: step-000002 cannot be written ({why}); older ones are intact"
    assert names(checkpoints) == ["step-000001"]


def test_a_run_that_was_moved_away(tmp_path: Path) -> None:
    """It is not made anew at its old place."""
    (tmp_path / "run").mkdir()
    checkpoints = saved(tmp_path / "run", 1)
    checkpoints.folder.parent.rename(tmp_path / "elsewhere")
    why = f"[Errno 2] No such file or directory: '{checkpoints.folder}'"
    with pytest.raises(GrpoError, match=re.escape(f"step-000002 cannot be written ({why}); older ones are intact")):
        save(checkpoints, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("full", ["files", "weights", "moments"])
def test_a_small_disk_that_is_full(small_disk: Path, full: str) -> None:
    """It fills up in the file named; what is kept free for the rest is not counted beforehand."""
    checkpoints = saved(small_disk, 1)
    free = shutil.disk_usage(small_disk).free
    million = torch.ones(250_000)  # bytes
    snapshot = {
        "files": Snapshot({"tokenizer.json": b"1" * (free + 1)}, {}, {}, {}),
        "weights": Snapshot({"tokenizer.json": b"1" * (free - 500_000)}, {"a": million}, {}, {}),
        "moments": Snapshot({"tokenizer.json": b"1" * (free - 1_500_000)}, {"a": million}, {"a": million}, {}),
    }[full]
    checkpoints.save(2, lambda: snapshot)
    with pytest.raises(DiskFullError) as caught:
        checkpoints.wait()
    assert_full(checkpoints, 2, caught)
    save(checkpoints, 2, 2)
    checkpoints.wait()
    assert value_of(checkpoints.newest()) == 2
