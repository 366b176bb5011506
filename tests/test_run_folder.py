"""A run folder is a transaction: what is in it always belongs together."""

import json
import os
import pickle
import platform
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from gramian import NotPSDError, Predictor
from gramian.experiments.cli.main import main
from gramian.experiments.plots import run_plots
from gramian.experiments.reproduce.plan import Changes, Plan
from gramian.experiments.reproduce.registry import TABLES
from gramian.experiments.reproduce.table_runs import check_settings
from gramian.train import run as train_run
from gramian.train import trainer as trainer_module
from gramian.train.record import run_folder as run_folder_module
from gramian.train.record.run_folder import FolderInUse, RunFolder, commit
from gramian.train.task import Task
from gramian.train.trainer import Trainer
from tests.train.tiny import assert_same_weights, config, task

TRAIN = [
    "train", "--preset", "digits", "--train_size", "32", "--batch_size", "16", "--device", "cpu",
    "--model.num_inducing", "[8,8]", "--model.num_samples", "10", "--plots", "false", "--json",
    "--schedule", "constant", "--max_epochs", "2", "--name", "run", "--output",
]  # fmt: skip


def outcome(capsys, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    return code, *capsys.readouterr()


def content(folder) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def saved_weights(folder) -> dict[str, torch.Tensor]:
    return dict(Predictor.from_pretrained(folder / "model").model.state_dict())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert main([*TRAIN, str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def runs(finished, tmp_path):
    """A folder with a finished run."""
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


# ---- a new run in the place of an old one ----


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--resume", "never", "--dry_run"], 0, "4 steps"),
        (["--resume", "never", "--memory", "1MB"], 2, "memory"),
        (["--resume", "never", "--data", "nowhere.npz"], 4, "nowhere.npz"),
        (["--resume", "never", "--lr", "1e30"], 3, "step 2"),
        (["--lr", "0.5"], 1, "other settings (lr: 0.03 → 0.5)"),
        (["--model.nu", "0.5"], 1, "other settings (model.nu: 0.001 → 0.5)"),
        (["--max_epochs", "1"], 1, "has done 2 epochs already, more than max_epochs = 1"),
    ],
)
def test_the_old_run_stays_whole_until_the_new_one_has_something_to_show(
    runs, capsys, words, code, message
):
    before = content(runs)
    got, _, err = outcome(capsys, *TRAIN, str(runs), *words)
    assert got == code
    assert message in err
    assert content(runs) == before


def test_a_failed_start_leaves_no_folder_at_all(tmp_path, capsys):
    assert outcome(capsys, *TRAIN, str(tmp_path / "x"), "--lr", "1e30")[0] == 3
    assert not list(tmp_path.iterdir())


def test_a_restart_that_fails_later_leaves_nothing_of_the_old_run(runs, capsys, monkeypatch):
    step = Trainer.train_step

    def fail_in_the_second_epoch(self):
        if self.step == 3:
            raise trainer_module.TrainingFailed(2, 4, NotPSDError("K_ii", "float32", 8, 3, -1.0))
        step(self)

    monkeypatch.setattr(Trainer, "train_step", fail_in_the_second_epoch)
    words = [*TRAIN, str(runs), "--resume", "never", "--lr", "0.02"]
    assert outcome(capsys, *words)[0] == 3
    folder = runs / "run"
    assert yaml.safe_load((folder / "config.yaml").read_text())["lr"] == 0.02
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step=00000002.ckpt"]
    assert not {"result.json", "model", "plots"} & {path.name for path in folder.iterdir()}
    assert outcome(capsys, "evaluate", str(folder))[0] == 1


def test_killed_at_any_moment_of_the_change_the_folder_holds_one_run(tmp_path, monkeypatch):
    old = RunFolder(tmp_path / "old")
    with old.locked():
        old.begin(config(), {"run": "old"}, 9, {"step": 9})
        old.write_metrics([{"epoch": 1}])
        old.write_result({"run": "old"})
    replace, seen = os.replace, set()
    for moment in range(20):
        folder = RunFolder(tmp_path / str(moment))
        shutil.copytree(old.path, folder.path)
        left = iter(range(moment))

        def killed(source, target, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            replace(source, target)

        monkeypatch.setattr(run_folder_module.os, "replace", killed)
        try:
            with folder.locked():
                folder.begin(config(), {"run": "new"}, 1, {"step": 1})
            whole = True
        except KeyboardInterrupt:
            whole = False
        monkeypatch.setattr(run_folder_module.os, "replace", replace)
        with folder.locked():
            run = json.loads((folder.path / "env.json").read_text())["run"]
            newest = folder.checkpoints.newest()
        assert newest == {"step": {"old": 9, "new": 1}[run]}
        assert not {".new", ".ready"} & {path.name for path in folder.path.iterdir()}
        assert (folder.path / "result.json").exists() == (run == "old")
        assert (folder.path / "metrics.jsonl").exists() == (run == "old")
        assert (folder.path / "config.yaml").read_text().startswith(f"# run {run}\n")
        seen.add(run)
        if whole:
            break
    assert whole
    assert run == "new"
    assert seen == {"old", "new"}


# ---- what belongs together ----


def test_all_files_name_their_run_and_its_data(finished):
    folder = finished / "run"
    facts = json.loads((folder / "env.json").read_text())
    origin = {"run": facts["run"], "data": facts["data"]}
    assert len(facts["data"]) == len(facts["source"]) == 64
    result = json.loads((folder / "result.json").read_text())
    assert {key: result[key] for key in origin} == origin
    assert json.loads((folder / "model" / "config.json").read_text())["origin"] == origin
    assert (folder / "config.yaml").read_text().startswith(f"# run {facts['run']}\n")
    state = RunFolder(folder).checkpoints.newest()
    assert {key: state[key] for key in origin} == origin


def test_files_of_different_runs_are_noticed(runs, capsys):
    path = runs / "run" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "another"}))
    code, _, err = outcome(capsys, *TRAIN, str(runs))
    assert code == 1
    assert "holds files of different runs: result.json is of run another" in err


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "result.json"])
def test_a_damaged_file_is_an_error_that_names_the_folder(runs, capsys, name):
    (runs / "run" / name).write_text("{")
    code, _, err = outcome(capsys, *TRAIN, str(runs))
    assert code == 1
    assert f"{runs / 'run'} is damaged" in err


@pytest.mark.parametrize("checkpoint_only", [False, True])
def test_other_data_are_refused(tmp_path, capsys, checkpoint_only):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    data = tmp_path / "data.npz"
    np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["train", "--data", str(data), "--kind", "dense", "--model.num_inducing", "10"]
    words += ["--max_epochs", "1", "--plots", "false", "--name", "run", "--output", str(tmp_path)]
    assert outcome(capsys, *words)[0] == 0
    if checkpoint_only:
        for name in ("result.json", "config.yaml"):
            (tmp_path / "run" / name).unlink()
    before = content(tmp_path / "run")
    x[7, 1] += 1e-9
    np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
    code, _, err = outcome(capsys, *words)
    assert code == 1
    assert "the data have changed since this run: their digest was" in err
    assert "--resume never" in err
    assert content(tmp_path / "run") == before


def test_the_digest_sees_all_data():
    this = task(config(), validation=True)
    for change in ("train", "validation", "test"):
        parts = {name: getattr(this, name) for name in ("train", "validation", "test")}
        parts[change] = parts[change].subset(torch.arange(39, -1, -1))
        other = Task(**parts, scaler=this.scaler, augmentation=this.augmentation)
        assert other.digest() != this.digest()


def test_a_commit_is_that_of_a_repository_that_tracks_the_file(tmp_path):
    assert commit(tmp_path / "nothing.py") is None
    package = tmp_path / "venv" / "gramian.py"
    package.parent.mkdir()
    package.write_text("")
    git = f"git -C {tmp_path} -c user.name=a -c user.email=a@b"
    assert os.system(f"git init -q {tmp_path} && {git} commit -q --allow-empty -m a") == 0
    assert commit(package) is None
    assert os.system(f"{git} add venv && {git} commit -q -m b") == 0
    assert len(commit(package)) == 12


# ---- going on ----


def test_a_finished_run_says_so_without_training(runs, capsys, monkeypatch):
    before = content(runs)
    monkeypatch.setattr(train_run, "Engine", lambda *_: pytest.fail("an engine was started"))
    code, out, err = outcome(capsys, *TRAIN, str(runs), "--checkpoint_minutes", "1")
    assert code == 0
    assert "is finished" in err
    assert json.loads(out)["metrics"] == json.loads(before["run/result.json"])["metrics"]
    assert content(runs) == before


def test_more_epochs_give_the_run_that_had_them_from_the_start(runs, tmp_path, capsys):
    """The learning rate is constant here; another schedule goes on as if it had been longer."""
    first = json.loads((runs / "run" / "result.json").read_text())
    more = ["--max_epochs", "4", "--evaluate_every", "2"]
    changed = ["--recompute_activations", "true", "--memory", "3GB"]
    code, _, err = outcome(capsys, *TRAIN, str(runs), *more, *changed)
    assert code == 0
    assert "resuming at epoch 2.00" in err
    assert "from here on max_epochs: 2 → 4" in err
    assert "from here on evaluate_every: 5 → 2" in err
    assert "learning rate" not in err
    assert main([*TRAIN, str(tmp_path / "other"), *more, "--quiet"]) == 0
    folder = runs / "run"
    assert_same_weights(saved_weights(folder), saved_weights(tmp_path / "other" / "run"))
    result = json.loads((folder / "result.json").read_text())
    assert result["run"] == first["run"]
    assert result["epochs"] == 4
    assert yaml.safe_load((folder / "config.yaml").read_text())["max_epochs"] == 4


def test_a_finished_run_without_checkpoints_cannot_be_continued_but_shown(runs, capsys):
    shutil.rmtree(runs / "run" / "checkpoints")
    assert outcome(capsys, *TRAIN, str(runs))[0] == 0
    before = content(runs)
    code, _, err = outcome(capsys, *TRAIN, str(runs), "--max_epochs", "4")
    assert code == 1
    assert "a finished run without checkpoints" in err
    assert content(runs) == before


def test_all_checkpoints_damaged_is_an_error_and_no_start_from_zero(runs, capsys):
    (runs / "run" / "result.json").unlink()
    for path in (runs / "run" / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    before = content(runs)
    code, _, err = outcome(capsys, *TRAIN, str(runs))
    assert code == 1
    assert "using the one before, step=00000002.ckpt" in err
    assert f"No checkpoint in {runs / 'run' / 'checkpoints'} can be used" in err
    assert content(runs) == before


def test_our_own_results_are_still_runs_of_their_settings():
    output = Path(__file__).parents[1] / "results"
    plan = Plan(TABLES["widths"], "small", 3, Changes(), output)
    over = [planned for planned in plan.runs() if planned.is_over]
    assert over
    for planned in over:
        check_settings(planned)


# ---- one writer ----


def test_a_second_writer_is_refused_and_told_who_is_first(tmp_path):
    folder = pickle.loads(pickle.dumps(RunFolder(tmp_path)))  # a job of another process
    with folder.locked(), folder.locked():
        with pytest.raises(FolderInUse, match=f"{os.getpid()} on {platform.node()}:"):
            RunFolder(tmp_path).locked().__enter__()
        folder.write_metrics([{"epoch": 1}])
    with RunFolder(tmp_path).locked():
        pass


def test_half_written_files_of_dead_writers_are_removed(tmp_path):
    (tmp_path / "model").mkdir()
    dead = tmp_path / "model" / ".model.safetensors.4194999.part"  # above the largest process id
    mine, other = tmp_path / f".result.json.{os.getpid()}.part", tmp_path / ".my.part"
    for path in (dead, mine, other):
        path.write_text("")
    with RunFolder(tmp_path).locked():
        assert not dead.exists()
        assert mine.exists()
        assert other.exists()


# ---- once is enough ----


def test_the_test_set_is_evaluated_once_for_result_and_plots(tmp_path, monkeypatch):
    calls = []
    for module, name in ((trainer_module, "evaluate_together"), (run_plots, "evaluate")):
        evaluate = getattr(module, name)

        def counted(*values, evaluate=evaluate):
            calls.append(time.perf_counter())
            return evaluate(*values)

        monkeypatch.setattr(module, name, counted)
    words = [*TRAIN, str(tmp_path), "--quiet", "--max_epochs", "1", "--plots", "true"]
    assert main([*words, "--estimate_statistics", "false"]) == 0
    assert len(calls) == 1  # for the last epoch, the result and the plots
    assert main([*words, "--resume", "never"]) == 0
    assert len(calls) == 3  # exact statistics make another model of the last epoch's
