"""Files of a stranger: what they name is neither imported nor called, nor built before it fits."""

import json
import resource
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml

from gramian import DenseDKMConfig, FullRankConfig, FullRankDKM
from gramian.experiments.cli.commands.serve import prepared, serve_parser
from gramian.experiments.cli.main import main
from gramian.experiments.cli.train_options import parse_train
from gramian.train.config import ConfigError, build_model, config_from_dict
from gramian.train.data import RowScaler, check_named
from gramian.train.data.data_errors import DataMissingError
from gramian.train.predict.predictor import Predictor
from gramian.train.pretrained import PretrainedError, pretrained

CALLED = "called.txt"
MODULE = f"""
from os import getcwd
from pathlib import Path
Path({CALLED!r}).write_text("imported")
def data():
    from gramian.train.data import load
    Path({CALLED!r}).write_text("called")
    return load("digits")
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A run folder to edit, in the current folder, beside a module that says when it is used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "canary_module.py").write_text(MODULE)
    yield shutil.copytree(pretrained()["digits"], tmp_path / "run")
    sys.modules.pop("canary_module", None)


def edit(folder, name, **changes):
    """Change values of a YAML or JSON file; of a model's description without its digest."""
    values = yaml.safe_load((folder / name).read_text()) | changes
    values.pop("digest", None)
    (folder / name).write_text(json.dumps(values))


# ---- imports ----

IMPORTING = {
    "a string for a group": {"model": {"skr": "canary_module.X"}},
    "a class for a group": {"model": {"skr": {"class_path": "canary_module.X"}}},
    "a class for the model": {"model": {"class_path": "canary_module.X"}},
    "a string for the model": {"model": "canary_module.X"},
    "a name with dots": {"model.skr.class_path": "canary_module.X"},
    "a group with dots": {"model.skr": "canary_module.X"},
    "dots below the model": {"model": {"skr.class_path": "canary_module.X"}},
    "a group of training": {"lr_factors": "canary_module.X"},
    "a kernel": {"model": {"kernel": "canary_module.X"}},
    "a layer": {"model": {"layer": "canary_module.X"}},
    "a likelihood": {"model": {"likelihood": "canary_module.X"}},
    "data": {"data": "canary_module.data"},
    "import": {"import": ["canary_module"]},
}


@pytest.mark.parametrize("values", IMPORTING.values(), ids=IMPORTING)
def test_a_file_makes_no_module_be_imported(stranger, values):
    (stranger / "config.yaml").write_text(yaml.safe_dump(values))
    for more in ([], ["--data", "digits"]):
        words = ["train", "--config", "run/config.yaml", "--quiet", *more, "--print_config"]
        code = main(words)
        assert code == (2 if "data" not in values else 4 if not more else 0)
    assert main(["evaluate", "run", "--quiet"]) in (2, 4)
    if "data" not in values and "import" not in values:
        with pytest.raises(ConfigError):
            config_from_dict(values)
    if isinstance(values.get("model"), dict):
        model = json.loads((stranger / "model/config.json").read_text())["model"]
        edit(stranger / "model", "config.json", model=model | values["model"])
        assert main(["info", "run", "--quiet"]) == 1
    assert "canary_module" not in sys.modules
    assert not (stranger.parent / CALLED).exists()


# ---- functions ----


@pytest.mark.parametrize("name", ["os.abort", "cProfile.main", "canary_module.getcwd"])
def test_a_function_of_a_run_is_called_only_if_its_module_is_named(stranger, name, capsys):
    import cProfile  # noqa: F401  a module that is imported, as many are

    edit(stranger, "config.yaml", data=name)
    own = ["--import", "canary_module"]
    for words in (["evaluate"], ["map", "--points", "9"], ["explain", "--test", "0"]):
        command, *more = words
        assert main([command, "run", *more, *own, "--quiet"]) == 4
        assert f"a file names the function {name}" in capsys.readouterr().err
    options = serve_parser().parse_args(["run", *own])
    assert prepared(options, Predictor.from_pretrained("run")).similar is None  # and it serves
    for more in ([], ["--preset", "none"]):
        with pytest.raises(DataMissingError, match=f"a file names the function {name}"):
            parse_train(["--config", "run/config.yaml", *more, *own])


def test_a_function_of_a_named_module_is_called(stranger, capsys):
    edit(stranger, "config.yaml", data="canary_module.data")
    assert main(["evaluate", "run", "--quiet"]) == 4
    assert "--import canary_module" in capsys.readouterr().err
    assert not (stranger.parent / CALLED).exists()
    assert main(["evaluate", "run", "--quiet", "--import", "canary_module", "--json"]) == 0
    assert (stranger.parent / CALLED).read_text() == "called"
    assert main(["evaluate", "run", "--quiet", "--data", "canary_module.data"]) == 0  # typed


def test_data_sets_and_paths_of_a_file_need_no_import(tmp_path):
    for name in ("digits", "cifar10", str(tmp_path), "./missing.npz", "missing"):
        check_named(name, [])
    check_named(f"{__name__}.edit", [__name__.partition(".")[0]])
    with pytest.raises(DataMissingError, match="--import json"):
        check_named("json.nothing", [])


# ---- clear messages ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model must hold settings by name, got None"),
        ({"model": ["x"]}, "model must hold settings by name"),
        ({"model": {"kind": "conv", "kernel": None}}, "kernel must not be null"),
        ({"model": {"kind": "conv", "num_outputs": None}}, "num_outputs must not be null"),
        ({"model": {"kind": "conv", "skr": {"jitter": None}}}, "skr.jitter must not be null"),
        ({"model": {"kind": ["conv"]}}, r"unknown kind of model \['conv'\]"),
        ({"model": {"kind": "full_rank", "kernel_jitter": None}}, "kernel_jitter must hold"),
    ],
)
def test_what_a_description_lacks_is_named(stranger, changes, message):
    edit(stranger / "model", "config.json", **changes)
    with pytest.raises(PretrainedError, match=message):
        Predictor.from_pretrained(stranger)


# ---- sizes ----

DENSE = DenseDKMConfig(num_features=2, num_inducing=4, likelihood="categorical")
FULL = FullRankConfig(likelihood="categorical", num_classes=2, num_layers=1)


def saved(folder, kind):
    """A small saved model of a kind."""
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "full_rank":
        model, config = FullRankDKM(x, torch.arange(6) % 2, FULL), FULL
    else:
        model, config = build_model(DENSE), DENSE
    Predictor(model, config, RowScaler.none(2), ("a", "b")).save_pretrained(folder)
    Predictor.from_pretrained(folder)
    return folder


SIZES = [
    ("digits", {"blocks_per_stage": 1_000_000}, "blocks_per_stage must be at most"),
    ("digits", {"num_outputs": 10**8}, "num_outputs cannot be right"),
    ("digits", {"num_inducing": [30_000, 30_000]}, "num_inducing cannot be right"),
    ("digits", {"num_inducing": [10**15, 10**15]}, r"num_inducing = \[1000000000000000"),
    ("digits", {"num_inducing": [8] * 10**6}, "num_inducing holds 1,000,000 values"),
    ("digits", {"num_samples": 10**7}, "num_samples must be at most 100,000"),
    ("digits", {"image_shape": [1, 10**5, 10**5]}, "image_shape must be at most"),
    ("digits", {"blocks_per_stage": 7}, "it lacks layers.stage1_block"),
    ("dense", {"num_layers": 10**6}, "num_layers must be at most"),
    ("dense", {"num_features": 10**9}, "num_features cannot be right"),
    ("dense", {"num_inducing": 10**5}, "num_inducing cannot be right"),
    ("dense", {"num_outputs": 10**8}, "num_outputs cannot be right"),
    ("full_rank", {"num_layers": 10**6}, "num_layers must be at most"),
    ("full_rank", {"num_classes": 10**8}, "num_classes cannot be right"),
    ("full_rank", {"num_samples": 10**7}, "num_samples must be at most"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), SIZES)
def test_sizes_that_the_weights_do_not_have_are_refused_before_they_are_built(
    tmp_path, kind, changes, message
):
    if kind == "digits":
        folder = shutil.copytree(pretrained()["digits"] / "model", tmp_path / "model")
    else:
        folder = saved(tmp_path, kind)
    model = json.loads((folder / "config.json").read_text())["model"]
    edit(folder, "config.json", model=model | changes)
    started = time.thread_time()
    with bounded_memory(100_000_000), pytest.raises(PretrainedError, match=message) as caught:
        Predictor.from_pretrained(folder)
    assert time.thread_time() - started < 1
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000


@contextmanager
def bounded_memory(size):
    """No more address space than ``size`` bytes beyond what is in use."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
