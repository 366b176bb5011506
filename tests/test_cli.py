"""The program, as a user meets it: every door, and bad input at each."""

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gramian.experiments.cli.main import COMMANDS, main
from gramian.experiments.cli.terminal import as_json
from gramian.train.predict.predictor import Predictor
from gramian.train.record.progress import MessageConsole
from gramian.train.runtime.devices import choose_device

TINY = [
    "--preset", "digits", "--max_epochs", "2", "--train_size", "48", "--batch_size", "16",
    "--model.num_inducing", "[8,8]", "--model.num_samples", "10",
]  # fmt: skip


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", *TINY, "--output", str(folder), "--name", "tiny", "--quiet"]) == 0
    return folder / "tiny"


def outcome(capsys, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- help ----


def test_help_names_every_command(capsys):
    code, out, _ = outcome(capsys, "--help")
    assert code == 0
    for name in COMMANDS:
        assert f"  {name} " in out


def test_version_and_no_words(capsys):
    assert outcome(capsys, "--version")[1].startswith("gramian 0.")
    assert outcome(capsys)[0] == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    code, out, _ = outcome(capsys, command, "--help")
    assert code == 0
    assert f"gramian {command}" in out


# ---- train ----


def test_train_leaves_a_complete_folder(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    expected = {"config.yaml", "env.json", "metrics.jsonl", "metrics.csv", "result.json"}
    assert names == expected | {".gramian-lock", "checkpoints", "model", "plots"}
    plots = {path.stem for path in (run_folder / "plots").iterdir()}
    assert plots >= {"learning_curves", "reliability", "confusion", "certain_images"}
    assert plots >= {"condition_numbers", "inducing_patches"}
    environment = json.loads((run_folder / "env.json").read_text())
    assert {"versions", "commit", "seed", "device"} <= set(environment)
    result = json.loads((run_folder / "result.json").read_text())
    assert 0 <= result["metrics"]["test"]["accuracy"] <= 1


def test_a_run_can_be_repeated_from_its_own_config(run_folder, tmp_path, capsys):
    config = str(run_folder / "config.yaml")
    words = ["--config", config, "--output", str(tmp_path), "--name", "b", "--json", "--quiet"]
    code, out, _ = outcome(capsys, "train", *words, "--plots", "false")
    assert code == 0
    before = json.loads((run_folder / "result.json").read_text())["metrics"]
    assert json.loads(out)["metrics"] == before


def test_print_config_overrides_and_environment(capsys, monkeypatch):
    monkeypatch.setenv("GRAMIAN_TRAIN__SEED", "5")
    words = ["train", "--model.skr.gamma_fraction", "null", "--model.nu", "0.5", "--print_config"]
    code, out, _ = outcome(capsys, *words)
    assert code == 0
    assert "seed: 5" in out
    assert "gamma_fraction: null" in out
    assert "nu: 0.5" in out


def test_dense_models_train_too(tmp_path, capsys):
    words = ["--data", "sine", "--max_epochs", "4", "--model.num_inducing", "20"]
    where = ["--output", str(tmp_path), "--json", "--quiet"]
    code, out, _ = outcome(capsys, "train", *words, *where)
    assert code == 0
    assert json.loads(out)["metrics"]["test"]["num"] == 178


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(tmp_path, capsys):
    code, _, err = outcome(capsys, "train", *TINY, "--dry_run", "--output", str(tmp_path / "x"))
    assert code == 0
    for words in ("48 training points", "parameters", "MB for a step", "6 steps", "about"):
        assert words in err
    assert not (tmp_path / "x").exists()


def test_progress_is_a_line_an_epoch_when_not_a_terminal(tmp_path, capsys):
    words = ["--output", str(tmp_path), "--plots", "false", "--tensorboard", "true"]
    code, out, err = outcome(capsys, "train", *TINY, *words)
    assert code == 0
    assert [line[:9] for line in err.splitlines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]
    assert "run folder" in out
    assert list(tmp_path.glob("digits-conv-seed0/tensorboard/events*"))
    for page in ("README.md", "docs/PROGRAM.md"):  # name the folder that a run has by default
        text = (Path(__file__).parents[1] / page).read_text()
        assert set(re.findall(r"runs/(digits[\w-]*)", text)) == {"digits-conv-seed0"}


# ---- evaluate, predict, info, data ----


def run_without_reader(streams: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run Python with other streams, as the shell says it; 9 is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    shell = f'exec 9>&{writing}; exec "$@" {streams}'
    command = ["bash", "-c", shell, "bash", sys.executable, *words]
    try:
        return subprocess.run(command, pass_fds=[writing], capture_output=True, check=False)
    finally:
        os.close(writing)


def test_a_training_outlives_its_messages(tmp_path):
    words = ["-m", "gramian", "train", *TINY, "--max_epochs", "1", "--plots", "false"]
    done = run_without_reader("2>/dev/full", *words, "--output", str(tmp_path), "--name", "run")
    assert done.returncode == 0
    assert b"run folder" in done.stdout
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("streams", ["2>&-", "0<&- 1>&- 2>&-", "2>&9", "2>/dev/full"])
def test_messages_that_nobody_can_read_vanish(tmp_path, streams):
    code = """if True:
        import logging, os, sys, warnings
        from gramian.experiments.cli.main import set_up_logging
        from gramian.experiments.cli.standard_streams import secure_streams
        secure_streams()
        set_up_logging(quiet=False)
        for _ in range(2):
            logging.getLogger("gramian").info("message")
            warnings.warn("message")
            sys.stderr.write("message")
            sys.stdout.write("result")
        with open(sys.argv[1], "w") as file:
            file.write(f"all went well, {file.fileno() > 2}")
    """
    done = run_without_reader(streams, "-c", code, str(tmp_path / "file"))
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "all went well, True"


def test_the_console_of_the_library_outlives_its_reader(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    console = MessageConsole()
    monkeypatch.setattr(sys, "stderr", Gone())
    console.print("first")
    console.print("second")
    monkeypatch.setattr(sys, "stderr", None)
    MessageConsole().print("third")


def test_evaluate_gives_the_figures_of_the_run(run_folder, capsys):
    code, out, _ = outcome(capsys, "evaluate", str(run_folder), "--json")
    assert code == 0
    test = json.loads((run_folder / "result.json").read_text())["metrics"]["test"]
    assert json.loads(out)["accuracy"] == test["accuracy"]
    assert outcome(capsys, "evaluate", str(run_folder))[1].count("accuracy") == 1


def test_predict_images_and_arrays(run_folder, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8), dtype=np.uint8)
    paths = []
    for number, image in enumerate(pixels):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image).save(paths[-1])
    np.savez(tmp_path / "x.npz", x=pixels)
    code, images, _ = outcome(capsys, "predict", str(run_folder), *paths)
    assert code == 0
    header, *rows = images.splitlines()
    columns = "input,class,probability,entropy,latent_variance,"
    assert header == columns + ",".join(f"p({number})" for number in range(10))
    assert len(rows) == 3
    for row in rows:
        _, best, probability, *_ = row.split(",")
        probabilities = list(map(float, row.split(",")[5:]))
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert float(probability) == max(probabilities) == probabilities[int(best)]
    table = tmp_path / "table.csv"
    words = ["predict", str(run_folder), str(tmp_path / "x.npz"), "--output", str(table)]
    assert outcome(capsys, *words)[0] == 0
    ours = [line.split(",")[1:] for line in rows]
    assert [line.split(",")[1:] for line in table.read_text().splitlines()[1:]] == ours
    code, out, _ = outcome(capsys, "predict", str(run_folder), paths[0], "--json")
    assert json.loads(out)["class"] == ours[0][0]
    assert json.loads(out)["p(3)"] == float(ours[0][7])


def test_predict_a_folder(run_folder, tmp_path, capsys):
    folder = tmp_path / "images"
    (folder / ".hidden").mkdir(parents=True)
    for number, name in enumerate(("b.png", "a.PNG", "c.bmp")):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    single = [str(folder / name) for name in ("a.PNG", "b.png", "c.bmp")]
    whole = outcome(capsys, "predict", str(run_folder), str(folder))
    assert whole[0] == 0
    assert whole == outcome(capsys, "predict", str(run_folder), *single)
    deep = folder / "train" / "cat"  # as train takes it
    deep.mkdir(parents=True)
    shutil.copy(single[0], deep / "1.png")
    code, out, _ = outcome(capsys, "predict", str(run_folder), str(folder))
    assert code == 0
    assert [row.split(",")[0] for row in out.splitlines()[1:]] == [*single, str(deep / "1.png")]
    (deep / "loop").symlink_to(folder)
    code, out, err = outcome(capsys, "predict", str(run_folder), str(folder))
    assert (code, out) == (4, "")
    assert "train/cat/loop is a folder in a folder in a folder: name the folders" in err
    (tmp_path / "empty").mkdir()
    code, out, err = outcome(capsys, "predict", str(run_folder), str(tmp_path / "empty"))
    assert (code, out) == (4, "")
    assert "holds no image file" in err


def test_predict_runs_the_model_once(run_folder, tmp_path, capsys, monkeypatch):
    calls = []
    marginals = Predictor.marginals
    monkeypatch.setattr(
        Predictor, "marginals", lambda *words: calls.append(1) or marginals(*words), raising=True
    )
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 8, 8), np.uint8))
    assert outcome(capsys, "predict", str(run_folder), str(tmp_path / "x.npz"))[0] == 0
    assert len(calls) == 1


def test_evaluate_on_the_points_that_the_run_had(tmp_path, capsys):
    words = ["--validation_fraction", "0.1", "--plots", "false", "--max_epochs", "1"]
    where = ["--output", str(tmp_path), "--name", "split", "--quiet"]
    assert outcome(capsys, "train", *TINY, *words, *where)[0] == 0
    run, counts = str(tmp_path / "split"), {}
    for split in ("train", "validation", "test"):
        code, out, err = outcome(capsys, "evaluate", run, "--split", split, "--json")
        assert code == 0, err
        counts[split] = json.loads(out)["num"]
        result = json.loads((tmp_path / "split" / "result.json").read_text())["metrics"]
        if split in result:
            assert json.loads(out)["accuracy"] == result[split]["accuracy"]
    assert counts == {"train": 48, "validation": 136, "test": 450}
    code, out, _ = outcome(
        capsys, "evaluate", run, "--data", "digits", "--split", "train", "--json"
    )
    assert json.loads(out)["num"] == 1347
    for more, message in [
        (["--data", "digits", "--split", "validation"], "leave out --data"),
        (["--data", "sine"], "the model knows the classes"),
    ]:
        code, out, err = outcome(capsys, "evaluate", run, *more)
        assert (code, out) == (2, "")
        assert message in err
    for text, message in [("[1", "cannot be read"), ("- a", "is a list"), ("lr: x", "lr")]:
        (tmp_path / "split" / "config.yaml").write_text(text)
        code, out, err = outcome(capsys, "evaluate", run)
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1
    code, _, err = outcome(capsys, "evaluate", str(tmp_path / "split" / "model"))
    assert code == 2
    assert "is no run folder, so say which data: --data NAME" in err


def test_no_validation_set(run_folder, capsys):
    code, out, err = outcome(capsys, "evaluate", str(run_folder), "--split", "validation")
    assert (code, out) == (2, "")
    assert "the run had none (validation_fraction 0.0)" in err


# ---- numbers that mean nothing ----


@pytest.fixture
def broken_model(run_folder, tmp_path):
    """Change one tensor of a saved model."""

    def change(part: str, value: float) -> str:
        folder = tmp_path / "broken"
        predictor = Predictor.from_pretrained(run_folder / "model")
        weights = predictor.model.state_dict()
        weights[next(name for name in weights if part in name)].fill_(value)
        predictor.save_pretrained(folder)
        return str(folder)

    return change


@pytest.mark.parametrize("command", ["predict", "evaluate", "export"])
def test_numerical_errors_without_training(broken_model, tmp_path, capsys, command):
    pytest.importorskip("onnx") if command == "export" else None
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    folder = broken_model("inducing_gram", 1e30)
    words = {
        "predict": [folder, str(tmp_path / "x.npz"), "--json"],
        "evaluate": [folder, "--data", "digits", "--json"],
        "export": [folder, "--format", "pt2", "--json"],
    }
    code, out, err = outcome(capsys, command, *words[command])
    assert (code, out) == (3, ""), err
    assert len(err.splitlines()) == 2, err  # the message, and where to read on
    assert "learning rate" not in err
    assert "Check that the data have the units" in err


def test_weights_that_are_not_numbers(broken_model, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8), np.uint8))
    folder = broken_model("output.q_mean", math.nan)
    code, out, err = outcome(capsys, "predict", folder, str(tmp_path / "x.npz"), "--json")
    assert (code, out) == (1, "")
    assert "output.q_mean" in err


def test_json_has_no_nan():
    text = as_json({"a": math.nan, "b": [1.5, -math.inf], "c": {"d": (math.inf, None, "NaN")}})
    assert json.loads(text) == {"a": None, "b": [1.5, None], "c": {"d": [None, None, "NaN"]}}
    assert "NaN," not in text


# ---- devices and custom modules ----


def test_auto_takes_no_device_without_float64(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    assert choose_device("mps") == "mps"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert choose_device("auto") == "cuda"


def test_a_saved_model_with_a_custom_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "saved_kernel.py").write_text(
        "from gramian import Kernel\n"
        "class Own(Kernel):\n"
        "    def pairs(self, c, x, y):\n"
        "        return (1 + c).square()\n"
    )
    words = ["--kind", "dense", "--data", "sine", "--max_epochs", "1", "--model.num_inducing", "8"]
    where = ["--output", "runs", "--name", "own", "--quiet", "--plots", "false"]
    assert main(["train", *words, "--model.kernel", "saved_kernel.Own", *where]) == 0
    del sys.modules["saved_kernel"]
    np.savez("x.npz", x=np.zeros((2, 2)))
    for command, more in [("info", []), ("evaluate", []), ("predict", ["x.npz"])]:
        code, _, err = outcome(capsys, command, "runs/own", *more)
        assert code != 0
        assert "--import saved_kernel" in err
        sys.modules.pop("saved_kernel", None)
        code, _, err = outcome(capsys, command, "runs/own", *more, "--import", "saved_kernel")
        assert code == 0, err
        del sys.modules["saved_kernel"]


def test_info(run_folder, capsys):
    code, out, _ = outcome(capsys, "info", str(run_folder), "--json")
    assert code == 0
    assert json.loads(out)["input"] == [1, 8, 8]
    assert "torch" in outcome(capsys, "info")[1]


def test_data_list_and_verify(capsys, tmp_path):
    code, out, _ = outcome(capsys, "data", "list", "--json", "--data_dir", str(tmp_path))
    assert code == 0
    assert {"digits", "sine", "cifar10", "cifar100", "mnist", "fashion_mnist"} == {
        info["name"] for info in json.loads(out)
    }
    assert "digits" in outcome(capsys, "data", "list")[1]
    code, _, err = outcome(capsys, "data", "verify", "cifar10", "--data_dir", str(tmp_path))
    assert code == 4
    assert "gramian data fetch cifar10" in err


# ---- bad input at every door ----


def npz(folder, **arrays):
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return str(path)


ROWS = np.random.default_rng(0).normal(size=(20, 3))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tain"], 2, "unknown command 'tain'"),
        (["train", "--max_epoch", "3"], 2, "max_epoch"),
        (["train", "--model.nuu", "3"], 2, "nuu"),
        (["train", "--lr", "fast"], 2, "fast"),
        (["train", "--lr", "-1"], 2, "lr must be positive, got -1"),
        (["train", "--model.kernel", "linear"], 2, "unknown kernel 'linear'"),
        (["train", "--preset", "imagenet"], 2, "unknown preset 'imagenet'"),
        (["train", "--kind", "graph"], 2, "unknown kind 'graph'"),
        (["train", "--config", "missing.yaml"], 2, "missing.yaml"),
        (["train", "--data", "imagenet"], 4, "imagenet"),
        (["train", "--data", "cifar10", "--data_dir", "nowhere"], 4, "gramian data fetch cifar10"),
        (["train", "--kind", "dense", "--preset", "none"], 2, "use kind conv"),
        (["train", "--data", "sine", "--kind", "conv", "--preset", "none"], 2, "use kind dense"),
        (["train", "--train_size", "1"], 2, "train_size must be between 2 and"),
        (["train", "--precision", "tf32"], 2, "tf32 needs a CUDA device"),
        (["train", "--resume", "nowhere"], 2, "no run with checkpoints"),
        (["evaluate", "nowhere"], 1, "config.json is missing"),
        (["predict", "nowhere", "a.png"], 1, "config.json is missing"),
        (["info", "nowhere"], 1, "config.json is missing"),
        (["data", "fetch"], 2, "needs the name"),
        (["data", "fetch", "imagenet"], 4, "imagenet"),
        (["data", "burn"], 2, "burn"),
    ],
)
def test_bad_words(capsys, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    got, out, err = outcome(capsys, *words)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": ROWS}, "must hold the arrays"),
        ({"x": ROWS, "y": np.zeros(20, int)}, "class"),
        ({"x": ROWS * np.nan, "y": np.arange(20) % 2}, "NaN"),
        ({"x": ROWS[:0], "y": np.arange(0)}, "empty"),
        ({"x": ROWS, "y": np.arange(19) % 2}, "19"),
        ({"x": ROWS.astype(complex), "y": np.arange(20) % 2}, "complex"),
        ({"x": np.array([{}] * 20), "y": np.arange(20) % 2}, "Python objects"),
    ],
)
def test_bad_own_data(capsys, tmp_path, arrays, message):
    words = ["train", "--kind", "dense", "--data", npz(tmp_path, **arrays)]
    code, _, err = outcome(capsys, *words, "--output", str(tmp_path / "runs"))
    assert code == 4
    assert message in err
    assert "Traceback" not in err


def test_bad_inputs_to_predict(capsys, run_folder, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    good = tmp_path / "good.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(good)
    for inputs, code, message in [
        ([str(broken)], 4, "broken.png"),
        ([str(tmp_path / "none.png")], 4, "none.png"),
        ([str(good), str(broken)], 4, "broken.png"),
        ([str(tmp_path / "none.npz")], 4, "none.npz"),
        ([str(good), "x.npz"], 2, "either image files or one .npz"),
    ]:
        got, out, err = outcome(capsys, "predict", str(run_folder), *inputs)
        assert (got, out) == (code, ""), err
        assert message in err
        assert "Traceback" not in err


def test_an_output_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, err = outcome(capsys, "train", *TINY, "--output", str(tmp_path / "file"), "--quiet")
    assert code == 1
    assert "file" in err
    assert "Traceback" not in err


def test_a_checkpoint_of_other_settings(capsys, run_folder):
    words = ["--output", str(run_folder.parent), "--name", run_folder.name, "--lr", "0.02"]
    code, _, err = outcome(capsys, "train", *TINY, *words, "--quiet")
    assert code == 1
    assert "lr: 0.03 → 0.02" in err


def test_a_damaged_model(capsys, run_folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((run_folder / "model" / name).read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    code, _, err = outcome(capsys, "info", str(tmp_path))
    assert code == 1
    assert "cannot be read" in err
    (tmp_path / "config.json").write_text("{")
    assert outcome(capsys, "info", str(tmp_path))[0] == 1


def test_data_with_other_classes(capsys, run_folder):
    code, _, err = outcome(capsys, "evaluate", str(run_folder), "--data", "sine")
    assert code == 2
    assert "the model knows the classes" in err


def test_an_unexpected_error_shows_its_traceback(capsys, monkeypatch):
    monkeypatch.setattr(
        "gramian.experiments.cli.commands.info.describe_installation", lambda: 1 / 0, raising=True
    )
    code, _, err = outcome(capsys, "info")
    assert code == 1
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "no more could be had"),
        (MemoryError("Unable to allocate 7 GiB\nand more"), "Unable to allocate 7 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "DefaultCPUAllo"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 7 GiB"), "CUDA out of memory"),
    ],
)
def test_too_little_memory_is_one_line_and_an_address(capsys, monkeypatch, error, reason):
    def fail() -> None:
        raise error

    monkeypatch.setattr("gramian.experiments.cli.commands.info.describe_installation", fail)
    code, _, err = outcome(capsys, "info")
    first, second = err.splitlines()
    assert code == 1
    assert first.startswith(f"gramian: the memory does not suffice: {reason}")
    assert second == "  docs/ERRORS.md#memoryerror (gramian help memoryerror)"


def test_data_that_have_changed_or_moved_since_a_run(capsys, tmp_path):
    """More points change the test set, which may then hold what was trained on."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 2)), np.arange(40) % 2
    data, moved = tmp_path / "own.npz", tmp_path / "moved.npz"
    np.savez(data, x=x, y=y)
    run = tmp_path / "run"
    words = ["--max_epochs", "2", "--output", str(tmp_path), "--name", "run", "--quiet"]
    assert main(["train", "--data", str(data), *words]) == 0
    assert main(["evaluate", str(run)]) == 0
    shutil.copy(data, moved)
    capsys.readouterr()
    assert main(["train", "--data", str(moved), *words]) == 0  # the same data: nothing left to do
    np.savez(moved, x=draw.normal(size=(60, 2)), y=np.arange(60) % 2)
    assert main(["evaluate", str(run)]) == 2
    assert "other data than the run had" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--data", str(moved)]) == 0
    np.savez(data, x=draw.normal(size=(40, 3)), y=np.arange(40) % 2)
    for command in ("evaluate", "map"):
        assert main([command, str(run), "--data", str(data)]) == 2
        assert "takes data of shape (2,)" in capsys.readouterr().err
