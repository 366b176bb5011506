"""The search over settings: its space, its trials, and what a kill leaves of it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import optuna
import pytest
import yaml

from gramian.experiments.cli.main import main
from gramian.experiments.cli.train_options import parse_train
from gramian.experiments.tune.search_space import bounded, dimension, search_space
from gramian.experiments.tune.tuning import Tuning, reporter
from gramian.gram.errors import NumericalError
from gramian.train.config import ConfigError, config_from_dict
from gramian.train.presets import preset_config
from gramian.train.record.run_folder import FolderInUse
from gramian.train.runtime.signals import Stopped

DIGITS = preset_config("digits")
SMALL = [
    "--data", "digits", "--train_size", "120", "--max_epochs", "2", "--model.num_inducing", "[8,8]",
    "--model.num_samples", "10", "--validation_fraction", "0.1",
]  # fmt: skip


# ---- the space ----


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("lr", "lr: 0.006 to 0.15 (log)"),
        ("lr=0.01:0.05", "lr: 0.01 to 0.05"),
        ("lr=0.001:0.1", "lr: 0.001 to 0.1 (log)"),
        ("batch_size", "batch_size: 13 to 320 (log)"),
        ("max_epochs=5:20", "max_epochs: 5 to 20"),
        ("flip", "flip: false, true"),
        ("optimiser=adam,muon", "optimiser: adam, muon"),
        ("model.unexplained", "model.unexplained: kept, dropped"),
        ("model.skr.gamma_fraction=null,0.25", "model.skr.gamma_fraction: null, 0.25"),
        ("model.whitening=false,patches", "model.whitening: false, patches"),
    ],
)
def test_ranges_follow_the_type_and_the_value(word, text):
    assert str(dimension(DIGITS, word)) == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "no such setting"),
        (["model.nope.deep"], "no such setting"),
        (["lr=3:1"], "LOW must be less than HIGH, got 3:1"),
        (["lr=a:b"], "a range is LOW:HIGH, got a:b"),
        (["lr=1:2:3"], "a range is LOW:HIGH"),
        (["lr=0:inf"], "LOW must be less than HIGH"),
        (["weight_decay"], r"say which values, as weight_decay=LOW:HIGH .* \(it is 0.0\)"),
        (["model.num_inducing"], "say which values"),
        (["lr", "lr=1:2"], "is there twice"),
    ],
)
def test_what_cannot_be_searched(words, message):
    with pytest.raises(ConfigError, match=message):
        search_space(DIGITS, words)


def test_without_words_the_space_is_that_of_the_kind():
    names = [each.name for each in search_space(DIGITS, [])]
    assert names == ["lr", "batch_size", "model.nu", "model.skr.jitter", "model.skr.gamma_fraction"]
    off = replace(
        DIGITS, model=replace(DIGITS.model, skr=replace(DIGITS.model.skr, gamma_fraction=None))
    )
    assert "model.skr.gamma_fraction" not in [each.name for each in search_space(off, [])]


def test_every_kind_of_model_has_a_space_whatever_its_settings():
    network = parse_train(["--data", "digits", "--kind", "network"])[0]
    assert [each.name for each in search_space(network, [])] == ["lr", "batch_size"]
    decayed = replace(network, weight_decay=0.01)
    assert "weight_decay" in [each.name for each in search_space(decayed, [])]
    skr = replace(DIGITS.model.skr, jitter=0.0)
    plain = replace(DIGITS, model=replace(DIGITS.model, nu=float("inf"), skr=skr))
    names = [each.name for each in search_space(plain, [])]
    assert "model.nu" not in names
    assert "model.skr.jitter" not in names


def test_sizes_go_up_to_the_training_points_and_no_further(tmp_path, capsys):
    table = tmp_path / "table.npz"
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(table, x=x, y=x[:, 0])
    assert main(["tune", "--data", str(table), "--dry_run"]) == 0
    shown = capsys.readouterr().err
    assert "  batch_size: 10 to 48 (log)\n" in shown
    assert "  model.num_inducing: 10 to 48 (log)\n" in shown
    words = ["--train_size", "20", "--batch_size", "200", "--model.num_inducing", "300"]
    assert main(["tune", "--data", str(table), "--dry_run", *words]) == 0
    shown = capsys.readouterr().err
    assert "  batch_size: 4 to 20 (log)\n" in shown
    assert "  model.num_inducing: 4 to 20 (log)\n" in shown
    config = bounded(replace(DIGITS, batch_size=500), 90)
    assert config == replace(DIGITS, batch_size=90)
    assert str(dimension(config, "batch_size", 90)) == "batch_size: 18 to 90 (log)"
    assert str(dimension(config, "max_epochs", 90)) == str(dimension(DIGITS, "max_epochs"))


def test_values_of_every_kind_come_back_as_they_were():
    words = ["lr=0.01:0.02", "batch_size=3:4", "flip", "model.skr.gamma_fraction=null,0.5"]
    space = search_space(DIGITS, words)
    trial = optuna.create_study().ask()
    values = {each.name: each.suggest(trial) for each in space}
    assert 0.01 <= values["lr"] <= 0.02
    assert values["batch_size"] in (3, 4)
    assert values["flip"] in (False, True)
    assert values["model.skr.gamma_fraction"] in (None, 0.5)
    for each in space:
        assert each.stored(values[each.name]) == trial.params[each.name]
    assert space[0].stored(1.0) is None
    assert space[3].stored(0.7) is None


# ---- trials ----


def tune(folder, *words):
    return main(["tune", *SMALL, "--output", str(folder), *map(str, words)])


def test_a_search_by_the_program_and_its_best_settings(tmp_path, capsys):
    folder = tmp_path / "search"
    search = ["--search", "lr=0.001:0.1", "--search", "model.skr.jitter"]
    assert tune(folder, *search, "--trials", 3) == 0
    out = capsys.readouterr().out
    assert "3 trials, 0 given up early, 0 failed" in out
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = next(row for row in rows if row["trial"] == "0")
    assert float(first["lr"]) == 0.03  # as the settings have it
    values = [float(row["log_likelihood"]) for row in rows]
    assert values == sorted(values, reverse=True)
    best = config_from_dict(yaml.safe_load((folder / "best.yaml").read_text()))
    assert best.lr == float(rows[0]["lr"])
    assert best.model.skr.jitter == float(rows[0]["model.skr.jitter"])
    assert best.validation_fraction == 0.1
    assert (folder / "tune.png").stat().st_size > 5000
    assert tune(folder, *search, "--trials", 3, "--json", "--quiet") == 0  # nothing left to do
    found = json.loads(capsys.readouterr().out)
    assert [row["log_likelihood"] for row in found["trials"]] == pytest.approx(values)
    assert tune(folder, "--search", "lr", "--trials", 3) == 2
    assert "holds a search of other settings" in capsys.readouterr().err
    assert main(["train", "--config", str(folder / "best.yaml"), "--dry_run", "--output",
                 str(tmp_path / "runs")]) == 0  # fmt: skip


def test_no_cell_of_the_table_is_a_formula(tmp_path):
    tuning = object.__new__(Tuning)
    tuning.folder, tuning.best = tmp_path, lambda: None
    tuning.rows = lambda: [{"trial": 0, "=model.kernel": "@a.B", "lr": -1e-3, "folder": "\x1bx"}]
    tuning.write()
    lines = (tmp_path / "trials.csv").read_text().splitlines()
    assert lines == ["trial,'=model.kernel,lr,folder", r"0,'@a.B,-0.001,\x1bx"]


def test_options_of_one_run_are_refused_and_a_dry_run_only_says_the_space(tmp_path, capsys):
    for word in ("--name=a", "--resume=never", "--plots=false", "--print_config"):
        assert tune(tmp_path / "n", word) == 2
        assert "is for one run" in capsys.readouterr().err
    assert tune(tmp_path / "n", "--dry_run", "--quiet", "--search", "lr") == 0
    assert "lr: 0.006 to 0.15 (log)" in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


def test_a_search_in_which_all_fails_is_a_failure(tmp_path, capsys):
    assert tune(tmp_path / "n", "--search", "train_size=0,1", "--trials", 2, "--quiet") == 1
    assert "no trial has come to its end" in capsys.readouterr().out


def test_a_validation_set_is_held_out_but_not_in_the_best_settings(tmp_path):
    tuning = Tuning(tmp_path, DIGITS, search_space(DIGITS, ["lr"]))
    assert tuning.trial_config.validation_fraction == 0.25
    assert tuning.config.validation_fraction == 0.0
    assert tuning.trial_config.evaluate_every == 2  # of 20 epochs


class Numbers(Tuning):
    """A search whose trials are numbers, not runs."""

    def objective(self, trial, signals):
        lr = self.space[0].suggest(trial)
        if lr > 0.1:
            raise NumericalError("too large")
        for epoch in range(4):
            trial.report(-((lr - 0.02) ** 2) - (epoch < 3), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return -((lr - 0.02) ** 2)


def test_failures_and_trials_given_up_are_counted_and_the_best_is_found(tmp_path):
    tuning = Numbers(tmp_path / "n", DIGITS, search_space(DIGITS, ["lr=0.001:0.2"]))
    tuning.run(30, 1)
    states = [row["state"] for row in tuning.rows()]
    assert len(states) == 30
    assert set(states) == {"complete", "pruned", "fail"}
    best = tuning.best()
    assert best.params["lr"] == pytest.approx(0.02, abs=0.01)
    tuning.write()
    assert tuning.settings_of(best).lr == best.params["lr"]


def test_a_search_that_goes_on_draws_other_values(tmp_path):
    tuning = Numbers(tmp_path / "n", DIGITS, search_space(DIGITS, ["lr=0.001:0.2"]))
    for number in (2, 4, 6):
        tuning.run(number, 1)
    values = [row["lr"] for row in tuning.rows()]
    assert len(set(values)) == 6


def test_two_processes_share_a_search(tmp_path):
    tuning = Numbers(tmp_path / "n", DIGITS, search_space(DIGITS, ["lr=0.001:0.2"]))
    tuning.run(9, 2)
    assert sorted(row["trial"] for row in tuning.rows()) == list(range(9))


def test_two_processes_that_draw_the_same_values_and_a_kernel_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "own_kernel.py").write_text(
        "from gramian.nn.steps.kernels import SquaredExponential\n"
        "class Own(SquaredExponential):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--model.kernel", "own_kernel.Own", "--search", "flip=false", "--jobs", "2"]
    assert tune(tmp_path / "n", *words, "--trials", 3, "--model.bandwidth.start", 1,
                "--model.bandwidth.learned", "false", "--model.output_bandwidth.start", 1,
                "--model.output_bandwidth.learned", "false") == 0  # fmt: skip
    with (tmp_path / "n" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["complete"] * 3
    assert len({row["log_likelihood"] for row in rows}) == 1


def test_one_search_at_a_time(tmp_path):
    tuning = Numbers(tmp_path, DIGITS, search_space(DIGITS, ["lr=0.001:0.2"]))

    class Nested(Numbers):
        def objective(self, trial, signals):
            with pytest.raises(FolderInUse, match="another search"):
                tuning.run(1, 1)
            return 0.0

    Nested(tmp_path, DIGITS, tuning.space).run(1, 1)


def test_a_signal_between_two_runs_is_heard(tmp_path):
    """It would otherwise be noticed by nobody until the next run is over."""

    class Told(Numbers):
        def objective(self, trial, signals):
            signal.raise_signal(signal.SIGTERM)
            reporter(trial, signals)({"epoch": 1})
            return 0.0

    tuning = Told(tmp_path / "n", DIGITS, search_space(DIGITS, ["lr=0.001:0.2"]))
    with pytest.raises(Stopped) as stopped:
        tuning.run(3, 1)
    assert stopped.value.exit_code == 143
    (trial,) = tuning.study().get_trials(states=(optuna.trial.TrialState.RUNNING,))
    assert trial.number == 0  # to be taken up again


def test_a_killed_search_goes_on_and_the_trial_resumes(tmp_path):
    """The trial under way is run again with its values, in its folder, from its checkpoint."""
    folder = tmp_path / "search"
    words = [*SMALL, "--max_epochs", "300", "--evaluate_every", "300", "--output", str(folder)]
    command = [sys.executable, "-m", "gramian", "tune", *words, "--search", "lr", "--trials", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 400  # the machine may be busy
    while not list(folder.glob("trials/*/checkpoints/*")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    config = preset_config("digits")
    tuning = Tuning(folder, config, search_space(config, ["lr"]))
    (running,) = tuning.study().get_trials(states=(optuna.trial.TrialState.RUNNING,))
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        while not tuning_again(tuning):
            assert time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors
    assert f"trial {running.number} was killed: its values are taken up again" in errors
    assert len(list(folder.glob("trials/*"))) == 1  # the same folder


def tuning_again(tuning) -> bool:
    """Whether the second process has begun a trial."""
    return any(trial.number > 0 and trial.params for trial in tuning.study().get_trials())
