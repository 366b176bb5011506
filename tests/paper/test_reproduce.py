"""The tables of the paper: what is run, what is recorded, and that nothing is run twice."""

import hashlib
import io
import json
import os
import pickle
import signal
import tarfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from gramian.experiments.cli.main import main as program
from gramian.gram.errors import NegativeVarianceError
from gramian.train.data.downloads.releases import REGISTRY
from gramian.train.record.run_folder import RunFolder
from gramian.train.run_settings import changed
from gramian.train.runtime.signals import Stopped
from gramian.train.trainer import Trainer, TrainingFailed
from paper import table_runs
from paper.__main__ import main
from paper.plan import Changes, Plan
from paper.registry import TABLES, Table
from paper.table_runs import run_one, run_plan
from tests.train.tiny import needs_tf32_emulation

SHORT = Changes(epochs=12, data="digits", train_size=48)
TINY = ["--data", "digits", "--train_size", "48", "--epochs", "2", "--quiet"]


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    """A headline that trains in a moment; a whitening of 3,072 pixels alone takes half a minute."""
    sizes = {"num_inducing": (8, 8), "strides": (2, 2), "num_samples": 10, "whitening": False}
    changes = {"train_size": None, **{f"model.{key}": value for key, value in sizes.items()}}
    tiny = changed(TABLES["table1"].headline("small"), changes)
    monkeypatch.setattr(Table, "headline", lambda self, scale: replace(tiny, data=self.data))


def plan(tmp_path, name="table1", **changes) -> Plan:
    settings = {"scale": "small", "seeds": 1, "only": ("headline",)} | changes
    small = Changes(epochs=2, data="digits", train_size=48)
    return Plan(table=TABLES[name], changes=small, output=tmp_path, **settings)


def test_a_table_runs_to_its_end_and_is_not_run_again(tmp_path, capsys, monkeypatch):
    words = ["table1", *TINY, "--seeds", "2", "--output", str(tmp_path), "--json"]
    words += ["--only", "headline,network_sgd"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["Failed, ours"] for row in found["rows"]][:1] == ["0/2"]
    folder = Path(found["folder"])
    assert folder.name == "table1-small-digits-48points-2epochs"
    result = json.loads((folder / "headline/seed1/result.json").read_text())
    assert result["epochs"] == 2
    assert not (folder / "headline/seed1/checkpoints").exists()
    env = json.loads((folder / "headline/seed1/env.json").read_text())
    assert env["seed"] == 1
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("a finished run was repeated"))
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_the_terminal_shows_the_table(tmp_path, capsys):
    words = ["table1", *TINY, "--seeds", "1", "--only", "network_sgd"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "network" in text
    assert "small scale" in text


@needs_tf32_emulation
def test_stability_is_run_in_both_precisions_seed_by_seed(tmp_path, capsys, monkeypatch):
    order, run_one = [], table_runs.run_one

    def run_and_note(planned, quiet):
        order.append((planned.config.seed, planned.config.precision))
        return run_one(planned, quiet)

    monkeypatch.setattr(table_runs, "run_one", run_and_note)
    words = ["stability", *TINY, "--seeds", "2", "--only", "headline"]
    words += ["--output", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert order == [(s, p) for s in (0, 1) for p in ("32-true", "tf32-emulated")]
    assert [Path(folder).name for folder in found["folders"]] == [
        "stability-small-digits-48points-2epochs-32-true",
        "stability-small-digits-48points-2epochs-tf32-emulated",
    ]
    first = found["rows"][0]
    assert (first["Failed, float32"], first["Failed, TF32 (emulated)"]) == ("0/2", "0/2")
    assert first["Failed, published, full size, TF32"] == "0/4"
    assert main(words) == 0
    assert "float32, TF32 (emulated)" in capsys.readouterr().out
    assert len(order) == 4


def test_stability_in_one_precision_is_a_plain_table(tmp_path, capsys):
    words = ["stability", *TINY, "--seeds", "1", "--only", "headline", "--json"]
    assert main([*words, "--precision", "32-true", "--output", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["Failed, ours"] == "0/1"


def test_a_finished_run_of_other_settings_is_not_taken_for_one_of_these(tmp_path, capsys):
    this = plan(tmp_path)
    run_plan(this, quiet=True)
    path = this.folder / "headline/seed0/config.yaml"
    settings = yaml.safe_load(path.read_text()) | {"lr": 0.5}
    path.write_text(yaml.safe_dump(settings))
    words = ["table1", *TINY, "--seeds", "1", "--only", "headline"]
    assert main([*words, "--output", str(tmp_path)]) == 1
    assert "other settings (lr: 0.5" in capsys.readouterr().err


def test_a_numerical_failure_is_a_result_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    fit, error = Trainer.fit, NegativeVarianceError(3, 10, -1.0, -1e-10)
    error.layer = "stem"

    def fail_with_seed_0(self, resume=True):
        if self.config.seed == 0:
            raise TrainingFailed(7, 512, error)
        return fit(self, resume)

    monkeypatch.setattr(Trainer, "fit", fail_with_seed_0)
    this = plan(tmp_path, seeds=2)
    run_plan(this, quiet=True)
    failure = json.loads((this.folder / "headline/seed0/failure.json").read_text())
    assert (failure["epoch"], failure["step"], failure["layer"]) == (7, 512, "stem")
    assert "3 of 10 variances" in failure["reason"]
    assert (this.folder / "headline/seed1/result.json").exists()
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("a failed run was repeated"))
    run_plan(this, quiet=True)


def test_a_numerical_error_of_an_evaluation_is_a_failure_too(tmp_path, monkeypatch):
    def fail(self, resume=True):
        self.step = 2 * self.steps_per_epoch
        raise NegativeVarianceError(1, 10, -1.0, -1e-10)

    monkeypatch.setattr(Trainer, "fit", fail)
    this = plan(tmp_path)
    run_plan(this, quiet=True)
    assert json.loads((this.folder / "headline/seed0/failure.json").read_text())["epoch"] == 2


def test_a_run_that_another_table_has_is_not_repeated(tmp_path, monkeypatch):
    one, other = (plan(tmp_path, name) for name in ("table1", "table3"))
    run_plan(one, quiet=True)
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("a finished run was repeated"))
    run_plan(other, quiet=True)
    results = [(p.folder / "headline/seed0/result.json").read_text() for p in (one, other)]
    assert results[0] == results[1]


def test_more_seeds_later(tmp_path):
    run_plan(plan(tmp_path, seeds=2, only=("network_sgd",), name="table1"), quiet=True)
    this = plan(tmp_path, seeds=1, only=("network_sgd",), name="table1")
    this.write()
    assert json.loads((this.folder / "experiment.json").read_text())["seeds"] == 2


def cifar100_archive(path, counts, seed=0):
    """An archive in the exact format of cifar-100-binary.tar.gz: coarse label, fine label, pixels.

    Each class is a shade of grey, with noise.
    """
    draw = np.random.default_rng(seed)
    with tarfile.open(path, "w:gz") as archive:
        for name, count in zip(("train.bin", "test.bin"), counts, strict=True):
            fine = np.arange(count) % 100
            pixels = draw.normal(2.5 * fine[:, None], 20, (count, 3 * 32 * 32)).clip(0, 255)
            records = np.concatenate([fine[:, None] // 5, fine[:, None], pixels], 1)
            blob = records.astype(np.uint8).tobytes()
            entry = tarfile.TarInfo(f"cifar-100-binary/{name}")
            entry.size = len(blob)
            archive.addfile(entry, io.BytesIO(blob))


def test_table2_runs_end_to_end_on_files_in_the_format_of_cifar100(tmp_path, monkeypatch, capsys):
    """Real CIFAR-100 cannot be had on every machine: as many bytes an image, fewer images."""
    folder, counts = tmp_path / "data", (200, 100)
    archive = folder / "cifar100" / "cifar-100-binary.tar.gz"
    archive.parent.mkdir(parents=True)
    cifar100_archive(archive, counts)
    real = REGISTRY["cifar100"]
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    file = replace(real.sources[0].files[0], md5=md5, size=archive.stat().st_size)
    small = replace(
        real,
        counts=counts,
        format=replace(real.format, num_train=counts[0], num_test=counts[1]),
        sources=(replace(real.sources[0], files=(file,)),),
    )
    monkeypatch.setitem(REGISTRY, "cifar100", small)
    assert program(["data", "fetch", "cifar100", "--data_dir", str(folder)]) == 0
    words = ["table2", "--epochs", "2", "--seeds", "1", "--quiet", "--json"]
    words += ["--data_dir", str(folder), "--output", str(tmp_path)]
    capsys.readouterr()
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    ours = {row["row"]: row["Accuracy (%), ours"] for row in found["rows"]}
    for label in (
        "DKM with SKR",
        "DKM before SKR",
        "network, AdamW",
        "network, SGD + weight decay",
    ):
        assert "(1 run)" in ours[label]
    assert any("Milsom" in row for row in ours)
    config = yaml.safe_load(
        (tmp_path / "table2-small-2epochs/headline/seed0/config.yaml").read_text()
    )
    assert config["data"] == "cifar100"
    saved = json.loads(
        (tmp_path / "table2-small-2epochs/headline/seed0/model/config.json").read_text()
    )
    assert len(saved["class_names"]) == saved["model"]["num_outputs"] == 100


def test_what_another_program_has_done_or_is_doing_is_left_alone(tmp_path):
    mine = replace(plan(tmp_path), changes=replace(SHORT, epochs=1))
    first, *_ = mine.runs()
    waiting = partial(run_one, first, True)
    run_plan(mine, quiet=True)  # another program, since this one looked
    before = (first.folder.path / "result.json").read_bytes()
    assert waiting() == f"{first.name}: done by another program"
    assert (first.folder.path / "result.json").read_bytes() == before
    (first.folder.path / "result.json").unlink()
    other = RunFolder(first.folder.path)
    with other.locked():
        assert waiting() == f"{first.name}: another program is at it"


def test_a_stopped_process_writes_a_checkpoint_and_the_rest_gives_the_same_numbers(tmp_path):
    """Stop a process in the middle, go on, and compare with a run that was never stopped."""
    longer = replace(SHORT, epochs=60)  # so that the signal comes before the end
    one, other = (replace(plan(tmp_path / name), changes=longer) for name in "ab")
    headline, over = one.folder / "headline/seed0", threading.Event()

    def stop() -> None:
        end = time.monotonic() + 120
        while not (headline / "metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.01)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    try:
        with pytest.raises(Stopped, match="SIGTERM"):
            run_plan(one, jobs=2)
    finally:
        over.set()
    assert not (headline / "result.json").exists()
    assert list((headline / "checkpoints").glob("*.ckpt"))
    run_plan(one, quiet=True)
    run_plan(other, quiet=True)
    ours, expected = (
        json.loads((p.folder / "headline/seed0/result.json").read_text())["metrics"]["test"]
        for p in (one, other)
    )
    assert ours == pytest.approx(expected, rel=1e-4)  # threads differ


def test_runs_are_jobs_with_names_that_other_processes_can_do(tmp_path, monkeypatch):
    jobs = {}
    monkeypatch.setattr(table_runs, "run_jobs", lambda found, _: iter([jobs.update(found)]))
    run_plan(plan(tmp_path, seeds=2), jobs=2)
    assert list(jobs) == ["headline, seed 0", "headline, seed 1"]
    run_one, (planned, quiet) = jobs["headline, seed 1"].func, jobs["headline, seed 1"].args
    assert (run_one, planned.config.seed, quiet) == (table_runs.run_one, 1, True)
    assert pickle.loads(pickle.dumps(planned)).config == planned.config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "unknown experiment 'table9'; known are table1"),
        (["table1", "--only", "nothing"], "no row nothing; rows are headline"),
        (["table1", "--seeds", "0"], "--seeds: expected a positive integer or null, got 0"),
        (["table1", "--seed", "-1"], "--seed: expected an integer of 0 or more or null, got -1"),
        (["table1", "--jobs", "1.5"], "--jobs: "),
        (["report", "x", "--nope"], "unknown option --nope"),
        (["figure-conditions", "--data", "digits"], "--data is for tables"),
        (["few", "--epochs", "2"], "--epochs: the rows of few have numbers of their own"),
        (["few", "--train_size", "9"], "--train_size: the rows of few have numbers of their own"),
    ],
)
def test_wrong_usage(words, message, capsys, tmp_path):
    assert main([*words, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_list_names_everything(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in (*TABLES, "figure-conditions", "figure-conditions-10k"):
        assert name in text
    assert main(["list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["table1"]["rows"][0] == "headline"
    assert entries.keys() >= {*TABLES, "figure-conditions"}


def test_a_figure_by_the_command(tmp_path, capsys):
    words = ["figure-conditions-10k", "--epochs", "2", "--quiet"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    assert (tmp_path / "figure-conditions-10k-2epochs/figure.png").exists()
