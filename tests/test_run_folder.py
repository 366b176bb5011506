"""A run folder is a transaction: what is in it always belongs together."""

import errno
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

from gramian import NotPSDError, Predictor, fit
from gramian.experiments.cli.main import main
from gramian.experiments.plots import run_plots
from gramian.train import run as train_run
from gramian.train import trainer as trainer_module
from gramian.train.config import ConfigError
from gramian.train.record import files as files_module
from gramian.train.record import run_folder as run_folder_module
from gramian.train.record.run_folder import FILES, LOCK, PLOTS, FolderInUse, RunFolder, commit
from gramian.train.task import Task
from gramian.train.trainer import Trainer
from paper.plan import Changes, Plan
from paper.registry import TABLES
from paper.table_runs import check_settings
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
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
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
        assert not [path for path in folder.path.glob(".gramian-*") if path.name != LOCK]
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
    path = runs / "run" / name
    path.write_text(path.read_text()[:20] + "{" if name == "config.yaml" else "{")
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
        (tmp_path / "run" / "result.json").unlink()
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
        folder.begin(config(), {"run": "x"}, 1, {"step": 1})
    with RunFolder(tmp_path).locked():
        pass


def test_half_written_files_of_dead_writers_are_removed(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        folder.begin(config(), {"run": "x"}, 1, {"step": 1})
    (tmp_path / "model").mkdir()
    dead = [  # above the largest process id
        tmp_path / "model" / ".model.safetensors.4194999.part",
        tmp_path / "checkpoints" / ".step=00000001.ckpt.4194999.part",
    ]
    others = [
        tmp_path / f".result.json.{os.getpid()}.part",
        tmp_path / ".my.part",
        tmp_path / ".film.mp4.4194999.part",
        tmp_path / "model" / ".mine.4194999.part",
    ]
    for path in [*dead, *others]:
        path.write_text("")
    with RunFolder(tmp_path).locked():
        assert not [path for path in dead if path.exists()]
        assert [path for path in others if path.exists()] == others


# ---- what is not ours ----


FOREIGN = {
    "checkpoints/best.pt": "weights",
    "checkpoints/step=00000001.ckpt": "of another program",
    "model/README.md": "my model",
    "model/config.json": "{}",
    "plots/thesis.png": "three days of work",
    "tensorboard/events.out.tfevents.1.x": "events",
    "metrics.csv": "a,b",
    ".train.py.4194999.part": "half",
}


def make_files(folder, files) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("settings", [None, "lr: 1", "[", "kind: conv\nepochs: 3"])
@pytest.mark.parametrize("words", [[], ["--resume", "never"], ["--dry_run"]])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, capsys, settings, words):
    make_files(tmp_path / "run", FOREIGN if settings is None else {"config.yaml": settings})
    before = content(tmp_path)
    code, _, err = outcome(capsys, *TRAIN, str(tmp_path), *words)
    assert code == 2
    assert "is not empty and no run of gramian" in err
    assert "another --output or --name" in err
    assert content(tmp_path) == before
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("name", ["checkpoints/step=00000001.ckpt", "notes.txt", ".git/config"])
def test_one_file_of_somebody_else_is_enough(tmp_path, name):
    make_files(tmp_path, {name: "mine"})
    with pytest.raises(ConfigError, match="not empty"):
        fit(config().model, torch.zeros(4, 1, 8, 8), [0, 1, 0, 1], folder=tmp_path)
    assert content(tmp_path) == {name: b"mine"}


def test_a_new_run_removes_the_files_of_the_old_one_and_no_other(runs, capsys):
    run = runs / "run"
    mine = {"plots/thesis.png": "x", "model/README.md": "y", "checkpoints/best.pt": "z", "a": ""}
    old = {"plots/confusion.png": "old", "tensorboard/events.out.tfevents.1": "old"}
    make_files(run, mine | old)
    assert outcome(capsys, *TRAIN, str(runs), "--resume", "never", "--max_epochs", "1")[0] == 0
    found = content(run)
    assert {name: found[name].decode() for name in mine} == mine
    assert not old.keys() & found.keys()
    assert [name for name in found if "step=" in name] == ["checkpoints/step=00000002.ckpt"]


def test_checkpoints_may_lie_elsewhere(tmp_path, capsys):
    """A link to a scratch disk is followed, at the start and when a run takes another's place."""
    scratch, run = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    assert outcome(capsys, *TRAIN, str(tmp_path), "--max_epochs", "1")[0] == 0
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(scratch)
    words = [*TRAIN, str(tmp_path), "--resume", "never"]
    assert outcome(capsys, *words)[0] == 0
    assert outcome(capsys, *words)[0] == 0
    assert (run / "checkpoints").is_symlink()
    assert sorted(path.name for path in scratch.iterdir()) == [
        "step=00000002.ckpt",
        "step=00000004.ckpt",
    ]
    assert outcome(capsys, *TRAIN, str(tmp_path), "--max_epochs", "3")[0] == 0
    assert not list(run.glob(".gramian-[nr]*"))
    shutil.rmtree(scratch)
    before = content(run)
    code, _, err = outcome(capsys, *words)
    assert code == 2
    assert f"{run / 'checkpoints'} is a link to {scratch}, which is not there" in err
    assert content(run) == before


def test_files_move_to_another_disk(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    replace, calls = os.replace, []

    def across(one, other):
        calls.append(one)
        if Path(one) == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(one, other)

    monkeypatch.setattr(files_module.os, "replace", across)
    files_module.move(source, target)
    assert target.read_text() == "new"
    assert not source.exists()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("names", "remove"),
    [
        (["model"], shutil.rmtree),
        (["model/config.json"], Path.unlink),
        (["metrics.jsonl", "metrics.csv"], Path.unlink),
        (["result.json"], Path.unlink),
        (["model/model.safetensors"], lambda path: path.write_bytes(b"")),
    ],
)
def test_what_was_deleted_of_a_finished_run_is_made_again(runs, capsys, names, remove):
    before = content(runs / "run")
    for name in names:
        remove(runs / "run" / name)
    code, _, err = outcome(capsys, *TRAIN, str(runs))
    assert code == 0
    assert names == ["result.json"] or f"lacks {names[0]}" in err
    after = content(runs / "run")
    assert after.keys() == before.keys()
    same = {name for name in after if after[name] == before[name]}
    assert same >= after.keys() - {"result.json", "checkpoints/step=00000004.ckpt", "env.json"}
    results = [json.loads(files["result.json"])["metrics"] for files in (before, after)]
    assert results[0] == results[1]


def test_what_cannot_be_made_again_is_named(runs, capsys):
    shutil.rmtree(runs / "run" / "model")
    shutil.rmtree(runs / "run" / "checkpoints")
    code, _, err = outcome(capsys, *TRAIN, str(runs))
    assert code == 0
    assert "lacks model/model.safetensors, model/config.json, and has no checkpoint" in err


def test_the_result_is_the_last_file(tmp_path, capsys, monkeypatch):
    words = [*TRAIN, str(tmp_path), "--plots", "true"]
    save = run_plots.plots.save
    left = iter(range(3))

    def killed(figure, path):
        if next(left, None) is None:
            raise KeyboardInterrupt
        save(figure, path)

    monkeypatch.setattr(run_plots.plots, "save", killed)
    assert outcome(capsys, *words)[0] == 130
    folder = tmp_path / "run"
    assert not (folder / "result.json").exists()
    monkeypatch.setattr(run_plots.plots, "save", save)
    assert outcome(capsys, *words)[0] == 0
    drawn = {path.stem for path in (folder / "plots").iterdir()}
    assert drawn == set(PLOTS) - {"predictions"}
    last = (folder / "result.json").stat().st_mtime_ns
    assert last >= max(path.stat().st_mtime_ns for path in (folder / "plots").iterdir())
    assert {name for name in content(folder) if "/" not in name} <= set(FILES)


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
