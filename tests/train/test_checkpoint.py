import copy
import errno
import os
import re

import pytest
import torch

from gramian.train.config import TrainConfig
from gramian.train.record.checkpoint import (
    CheckpointError,
    CheckpointFolder,
    check_same_settings,
    check_state,
    differences,
    digest,
    load,
    save,
)
from gramian.train.record.files import write_text_atomically

STATE = {
    "model": {"weight": torch.arange(6.0).view(2, 3), "flag": torch.tensor(True)},
    "step": 7,
    "rows": [{"epoch": 1, "loss": float("nan"), "nu": float("inf")}],
    "best": None,
    "betas": (0.8, 0.9),
}


def same(a, b) -> bool:
    return digest(a) == digest(b)


def test_round_trip_without_running_code_from_the_file(tmp_path):
    path = tmp_path / "a.ckpt"
    save(path, STATE)
    assert same(load(path), STATE)
    assert torch.equal(
        torch.load(path, weights_only=True)["state"]["model"]["weight"], STATE["model"]["weight"]
    )
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]


def test_the_digest_sees_every_value():
    for change in (
        {"step": 8},
        {"betas": (0.8, 0.91)},
        {"model": {"weight": torch.arange(6.0).view(3, 2), "flag": torch.tensor(True)}},
        {"model": {"weight": torch.arange(6.0).view(2, 3), "flag": torch.tensor(False)}},
        {"best": 0},
    ):
        assert not same(STATE, STATE | change)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text", "missing"])
def test_damage_is_detected_and_the_one_before_is_used(tmp_path, damage, caplog):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, STATE)
    newest = folder.save(2, STATE | {"step": 8})
    data = bytearray(newest.read_bytes())
    place = data.index(torch.arange(6.0).numpy().tobytes())
    data[place + 9] ^= 1
    content = {
        "truncated": bytes(data[: len(data) // 2]),
        "flipped": bytes(data),
        "empty": b"",
        "text": b"hello",
    }
    if damage == "missing":
        newest.unlink()
    else:
        newest.write_bytes(content[damage])
        with pytest.raises(CheckpointError, match=r"step=00000002\.ckpt"):
            load(newest)
    assert same(folder.newest(), STATE)
    if damage != "missing":
        assert len([r for r in caplog.records if "using the one before" in r.message]) == 1


def test_only_the_newest_are_kept_and_half_written_files_do_not_count(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2, 30):
        folder.save(step, STATE | {"step": step})
    (tmp_path / ".step=00000031.ckpt.123.part").write_bytes(b"half")
    assert [path.name for path in folder.paths()] == ["step=00000030.ckpt", "step=00000002.ckpt"]
    assert folder.newest()["step"] == 30
    assert CheckpointFolder(tmp_path / "none").newest() is None


def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_half_written(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save(1, STATE)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = "cannot write, what was there before is unchanged: No space left on device: '{}'"
    with pytest.raises(OSError, match=re.escape(said.format(tmp_path / "step=00000002.ckpt"))):
        folder.save(2, STATE)
    with pytest.raises(OSError, match=re.escape(said.format(tmp_path / "text"))):
        write_text_atomically(tmp_path / "text", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["step=00000001.ckpt"]
    assert same(folder.newest(), STATE)


def test_a_folder_that_cannot_be_written_is_named_and_not_its_hidden_file(tmp_path):
    path = tmp_path / "file" / "text"
    path.parent.write_text("no folder")
    with pytest.raises(NotADirectoryError) as caught:
        write_text_atomically(path, "new")
    assert caught.value.filename == str(path)
    assert ".part" not in str(caught.value)


def test_another_version_is_refused(tmp_path):
    torch.save({"format": 99, "digest": "", "state": {}}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="has format 99, this program 1"):
        load(tmp_path / "a.ckpt")
    torch.save({"format": 1, "digest": digest([1]), "state": [1]}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="no training state"):
        load(tmp_path / "a.ckpt")


def test_other_settings_are_named():
    before, now = {"lr": 0.1, "device": "cpu", "seed": 1}, {"lr": 0.2, "device": "cuda", "seed": 1}
    check_same_settings(before, now, {"lr", "device"})
    with pytest.raises(CheckpointError, match=r"\(lr: 0\.1 → 0\.2\)"):
        check_same_settings(before, now, {"device"})


def test_a_setting_that_was_not_there_yet_had_its_default():
    now = TrainConfig(milestones=(0.5,)).to_dict()
    before = copy.deepcopy(now)
    del before["flip"], before["weight_decay"], before["model"]["skr"]["jitter"]
    assert differences(before, now, ()) == differences(now, before, ()) == []
    now["flip"], now["model"]["skr"]["jitter"] = True, 0.5
    expected = ["flip: False → True", "model.skr.jitter: 0.1 → 0.5"]
    assert sorted(differences(before, now, ())) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": None}, "has a strange step"),
        ({"rows": {}}, "has a strange rows"),
        ({"config": {"lr": torch.zeros(2)}}, "has a strange config"),
    ],
)
def test_a_state_with_something_else_in_it_is_refused_by_name(change, message):
    state = dict.fromkeys(("step", "attempt", "num_errors"), 0)
    state |= {"model": {}, "optimiser": {}, "sums": {}, "config": {}, "rows": [], "best": None}
    check_state(state)
    with pytest.raises(CheckpointError, match=message):
        check_state(state | change)


def test_settings_of_no_kind_of_model_are_damaged():
    with pytest.raises(CheckpointError, match="the settings are damaged"):
        differences({"kind": "graph"}, {}, ())
