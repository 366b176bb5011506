"""The tables of the paper: what is run, what is recorded, and that nothing is run twice."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from gramian import SKR
from gramian.experiments.cli.main import main
from gramian.experiments.pool import JobsFailed
from gramian.experiments.published import experiments
from gramian.experiments.reproduce.plan import Changes, Plan
from gramian.experiments.reproduce.registry import TABLES, Table, changed
from gramian.experiments.reproduce.table_runs import run_plan
from gramian.gram.errors import NegativeVarianceError
from gramian.train.data.downloads.registry import REGISTRY
from gramian.train.optimise import lr_factor
from gramian.train.runtime.signals import Stopped
from gramian.train.trainer import Trainer, TrainingFailed

SHORT = Changes(epochs=12, data="digits", train_size=48)
TINY = ["--data", "digits", "--train_size", "48", "--epochs", "2", "--quiet"]


def configs(name, scale):
    headline = TABLES[name].headline(scale)
    return {row.key: row.config(headline) for row in TABLES[name].rows}


def plan(tmp_path, name="table1", **changes) -> Plan:
    settings = {"scale": "small", "seeds": 1, "only": ("headline",)} | changes
    small = Changes(epochs=2, data="digits", train_size=48)
    return Plan(table=TABLES[name], changes=small, output=tmp_path, **settings)


def test_what_a_user_changes_is_in_the_settings_and_in_the_name_of_the_folder():
    headline = TABLES["table3"].headline("small")
    changes = Changes(epochs=3, train_size=60, precision="tf32-emulated", batch_size=16)
    changed = changes.apply(headline)
    expected = {"max_epochs": 3, "train_size": 60, "precision": "tf32-emulated", "batch_size": 16}
    assert changed == replace(headline, **expected)
    assert changes.suffix() == "-60points-3epochs-batch16-tf32-emulated"


# ---- the registry ----


def test_the_registries_are_read_without_torch():
    """``gramian reproduce list`` must answer at once."""
    code = """
import sys
from gramian.experiments.conditions.sweep import FIGURES
from gramian.experiments.reproduce.registry import TABLES
assert TABLES and FIGURES
assert not {"torch", "numpy", "scipy", "yaml"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_published_runs_that_are_named_exist_and_keys_are_folder_names(table):
    assert table.rows[0].key == "headline"
    assert not table.rows[0].changes
    for row in table.rows:
        assert row.published is None or row.published in experiments()
        assert row.key.isidentifier()


def test_labels_have_the_numbers_of_their_settings():
    found = {row.key: row for row in TABLES["table3"].rows}
    headline = TABLES["table3"].headline("paper")
    assert found["short"].title(headline) == "200 epochs"
    assert found["short"].title(replace(headline, max_epochs=6)) == "1 epoch"
    assert found["keep_jitter"].title(headline) == "no SKR, but λ = 0.1"
    assert found["gamma_twice"].title(headline) == "twice γ: 0.5 P"


def test_a_setting_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="nonsense"):
        changed(TABLES["table3"].headline("small"), {"model.nonsense": 1})


def test_ablations_differ_from_the_headline_only_in_what_they_say():
    found = configs("table3", "paper")
    headline = found["headline"]
    assert (headline.model.skr, headline.model.nu) == (SKR(0.25, 0.1), 0.001)
    assert headline.model.divergence == "taylor"
    changed = {
        "no_taylor": {"divergence": "exact"},
        "no_skr": {"skr": SKR.off()},
        "neither": {"divergence": "exact", "skr": SKR.off()},
        "keep_jitter": {"skr": SKR(None, 0.1)},
        "zero_nu": {"nu": 0.0},
        "gamma_twice": {"skr": SKR(0.5, 0.1)},
    }
    for key, change in changed.items():
        assert found[key] == replace(headline, model=replace(headline.model, **change))
    assert replace(found["short"], max_epochs=1200, milestones=(2 / 3, 11 / 12)) == headline
    assert set(found) == {"headline", "short", *changed}


@pytest.mark.parametrize(
    ("key", "epochs", "drops"), [("headline", 1200, (800, 1100)), ("short", 200, (160, 180))]
)
def test_published_schedules(key, epochs, drops):
    config = configs("table3", "paper")[key]
    assert config.max_epochs == epochs
    factors = [
        lr_factor(config.schedule, epoch, 1, epochs, config.milestones) for epoch in range(epochs)
    ]
    changes = tuple(e for e in range(1, epochs) if factors[e] != factors[e - 1])
    assert changes == drops
    assert factors[-1] == pytest.approx(0.01)


def test_networks_are_those_of_the_paper():
    table1, table2 = configs("table1", "paper"), configs("table2", "paper")
    adam, sgd = table1["network_adam"], table1["network_sgd"]
    assert (adam.optimiser, adam.lr, adam.betas, adam.schedule) == (
        "adam",
        1e-3,
        (0.9, 0.999),
        "steps",
    )
    assert (sgd.optimiser, sgd.lr, sgd.momentum, sgd.weight_decay) == ("sgd", 0.01, 0.9, 5e-4)
    assert sgd.schedule == "cosine"
    assert table1["network_sgd_text"] == replace(sgd, lr=0.1)
    adamw = table2["network_adamw"]
    assert (adamw.optimiser, adamw.lr, adamw.weight_decay, adamw.schedule) == (
        "adamw",
        1e-3,
        0.1,
        "cosine",
    )
    for row in (adam, sgd, adamw):
        assert row.model.widths == (512, 1024, 2048)
        assert row.batch_size == 128
        assert row.max_epochs == 1200
    assert table1["previous"].precision == "64-true"
    assert all(row.data == "cifar100" for row in table2.values())


def test_all_rows_of_a_small_table_share_data_epochs_and_augmentation():
    for name in ("table1", "table3"):
        found = configs(name, "small")
        shared = {
            (c.data, c.train_size, c.split_seed, c.crop_padding, c.flip) for c in found.values()
        }
        assert len(shared) == 1
        epochs = {config.max_epochs for key, config in found.items() if key != "short"}
        assert epochs == {found["headline"].max_epochs}


# ---- running ----


def test_a_table_runs_to_its_end_and_is_not_run_again(tmp_path, capsys, monkeypatch):
    words = ["reproduce", "table1", *TINY, "--seeds", "2", "--output", str(tmp_path), "--json"]
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
    words = ["reproduce", "table1", *TINY, "--seeds", "1", "--only", "network_sgd"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "network" in text
    assert "small scale" in text


def test_a_finished_run_of_other_settings_is_not_taken_for_one_of_these(tmp_path, capsys):
    this = plan(tmp_path)
    run_plan(this, quiet=True)
    path = this.folder / "headline/seed0/config.yaml"
    settings = yaml.safe_load(path.read_text()) | {"lr": 0.5}
    path.write_text(yaml.safe_dump(settings))
    words = ["reproduce", "table1", *TINY, "--seeds", "1", "--only", "headline"]
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
    # a whitening of 3,072 pixels takes half a minute to fit, and has tests of its own
    headline = replace(TABLES["table2"].headline("small"), train_size=None)
    headline = replace(headline, model=replace(headline.model, whitening=False))
    monkeypatch.setattr(Table, "headline", lambda self, scale: replace(headline, data=self.data))
    assert main(["data", "fetch", "cifar100", "--data_dir", str(folder)]) == 0
    words = ["reproduce", "table2", "--epochs", "2", "--seeds", "1", "--quiet", "--json"]
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
    assert len(saved["class_names"]) == saved["model"]["num_classes"] == 100


def test_stopped_processes_write_checkpoints_and_the_rest_gives_the_same_numbers(tmp_path):
    """Stop two processes in the middle, go on, and compare with runs that were never stopped."""
    one, other = (
        replace(plan(folder), changes=SHORT, only=("headline", "network_sgd"))
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    headline = one.folder / "headline/seed0"

    def stop() -> None:
        end = time.monotonic() + 120
        while not (headline / "metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(Stopped, match="SIGTERM"):
        run_plan(one, jobs=2, quiet=True)
    assert not (headline / "result.json").exists()
    assert list((headline / "checkpoints").glob("*.ckpt"))
    run_plan(one, quiet=True)
    run_plan(other, quiet=True)
    for row in ("headline", "network_sgd"):
        metrics = [
            json.loads((p.folder / row / "seed0/result.json").read_text())["figures"]["test"]
            for p in (one, other)
        ]
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)  # threads differ


def test_a_run_that_has_no_result_is_named(tmp_path):
    nowhere = replace(plan(tmp_path), changes=Changes(data="no_such_data"))
    with pytest.raises(JobsFailed, match=r"headline, seed 0 \(.*no_such_data") as caught:
        run_plan(nowhere, jobs=2)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "unknown experiment 'table9'; known are table1"),
        (["table1", "--only", "nothing"], "no row nothing; rows are headline"),
        (["table1", "--seeds", "0"], "--seeds must be positive, got 0"),
        (["figure-conditions", "--data", "digits"], "--data is for tables"),
    ],
)
def test_wrong_usage(words, message, capsys, tmp_path):
    assert main(["reproduce", *words, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_list_names_everything(capsys):
    assert main(["reproduce", "list"]) == 0
    text = capsys.readouterr().out
    for name in (*TABLES, "figure-conditions", "figure-conditions-10k"):
        assert name in text


def test_a_figure_by_the_command(tmp_path, capsys):
    words = ["reproduce", "figure-conditions-10k", "--epochs", "2", "--quiet"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    assert (tmp_path / "figure-conditions-10k-2epochs/figure.png").exists()
