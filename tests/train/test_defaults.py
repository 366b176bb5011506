"""Settings that suit the data: sizes, words, and results beside the estimators'."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_wine

from gramian import DenseDKMConfig, DKMClassifier
from gramian.experiments.cli.main import main
from gramian.train.config import TrainConfig, build_model, config_from_dict
from gramian.train.cost.expectation import expectation
from gramian.train.data import Augmentation, Dataset, RowScaler, load
from gramian.train.defaults import IMAGE_MODEL, IMAGE_TRAINING, TABLES, in_words, settings_for
from gramian.train.presets import preset_config
from gramian.train.task import Task


def images(count, side, channels=1):
    x = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    return Dataset(x, torch.arange(count) % 3, ("a", "b", "c"))


def rows(count, targets="classes"):
    x = torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if targets == "classes":
        return Dataset(x, torch.arange(count) % 2, ("a", "b"))
    return Dataset(x, x[:, :1])


@pytest.mark.parametrize("kind", [None, "network"])
@pytest.mark.parametrize("side", [4, 8, 13, 28, 32, 64])
def test_a_size_that_suits_the_data(side, kind):
    """The last map has 2 to 8 pixels a side, and nothing is as large as the paper's model."""
    settings = settings_for(images(3000, side), kind)
    model = config_from_dict(settings).model
    last = side / model.stem_stride / 2 ** len(model.strides)
    assert 1 <= last <= 8
    assert max(settings["model"].get("num_inducing") or settings["model"]["widths"]) <= 128
    assert 5 <= settings["max_epochs"] <= 60
    assert kind == "network" or model.centre


def test_tables_have_the_settings_of_the_estimators():
    settings = settings_for(rows(40))
    assert settings["natural"]
    assert settings["model"]["num_inducing"] == 40
    assert settings_for(rows(5000, "real"))["batch_size"] == 512
    config_from_dict(settings)


def test_sizes_of_tables_grow_with_the_rows():
    """Small tables have the small model; ν falls and the rest grows, up to a budget of time."""
    counts = (50, 500, 2048, 2049, 10_000, 100_000)
    sizes = [TABLES["real"].sizes(count) for count in counts]
    assert [size.num_inducing for size in sizes] == [50, 100, 100, 100, 220, 256]
    assert [size.num_layers for size in sizes] == [1, 1, 1, 2, 2, 2]
    assert [size.batch_size for size in sizes] == [50, 500, 2048, 512, 512, 512]
    assert [size.max_epochs for size in sizes] == [150, 150, 150, 100, 25, 10]
    assert [round(size.nu, 2) for size in sizes] == [10, 10, 10, 10, 4.5, 0.45]
    assert [size.precision for size in sizes] == ["64-true"] * 5 + ["32-true"]


def test_a_kind_that_cannot_take_the_data_is_left_to_complain():
    assert settings_for(rows(40), "conv") == {}
    assert settings_for(images(9, 8), "dense") == {}


def test_the_words():
    data = images(30, 28, channels=3)
    line = in_words(settings_for(data), data)
    assert line.startswith("30 images of 3×28×28, 3 classes: a convolutional DKM with 24-48-96 ind")
    assert "--print_config" in line


def folder_of_images(path, side=12):
    random = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (path / name).mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 255, (side, side), dtype=np.uint8)
            Image.fromarray(pixels).save(path / name / f"{number}.png")
    return path


def test_the_program_says_what_it_chose(tmp_path, capsys):
    """A folder of one's own, without any option: a small model, and a line before the work."""
    folder = folder_of_images(tmp_path / "pets")
    assert main(["train", "--data", str(folder), "--dry_run", "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "10 images of 1×12×12, 2 classes: a convolutional DKM" in lines[1]
    assert "parameters" in lines[2]


def test_the_plan_is_that_of_the_options(tmp_path, capsys):
    table = tmp_path / "table.npz"
    x = np.random.default_rng(0).normal(size=(50, 2))
    np.savez(table, x=x, y=x[:, 0])
    words = ["--max_epochs", "30", "--batch_size", "8", "--model.num_inducing", "7"]
    assert main(["train", "--data", str(table), "--dry_run", *words]) == 0
    chosen, plan = capsys.readouterr().err.splitlines()[1:]
    assert "a dense DKM with 7 inducing points, 30 epochs of batches of 8 (" in chosen
    assert re.search(r" 30 epochs = 150 steps of [\d.]+ s: with evaluations and checkpoints", plan)


def test_the_time_of_a_plan_has_evaluations_and_checkpoints():
    data = rows(40)
    settings = TrainConfig(
        kind="dense", data="own", max_epochs=100, batch_size=40, evaluate_every=10, patience=3,
        validation_fraction=0.5, model=DenseDKMConfig(num_inducing=5),
    )  # fmt: skip
    model = build_model(settings.model)
    whole = Task(data, rows(4000), None, RowScaler.none(4), Augmentation(0, False))
    said = partial(expectation, whole, settings, model, 40, 100, 0.3)
    # 100 steps of 0.3 s; 10 times 4,000 rows without gradients, 100 times those of a step
    assert "at most 100 epochs = 100 steps of 0.3 s: with evaluations " in said(recorded=False)
    assert said(recorded=False).endswith(" about 2.2 min")
    assert said(recorded=True).endswith(" with evaluations and checkpoints about 2.2 min")
    alone = replace(whole, validation=None)
    assert expectation(alone, settings, model, 40, 100, 0.3, False).endswith(" about 30 s")
    assert expectation(alone, settings, model, 40, 100, 0.3, True).endswith(" about 33 s")


@pytest.mark.parametrize(
    "name", ["cifar10", "digits", "fashion_mnist", "mnist", "small_cifar10", "widths"]
)
def test_the_presets_follow_the_recipe(name):
    settings = preset_config(name).to_dict()
    for recipe, chosen in ((IMAGE_TRAINING, settings), (IMAGE_MODEL, settings["model"])):
        assert {key: chosen[key] for key in recipe} == recipe


def test_options_still_win(tmp_path, capsys):
    folder = folder_of_images(tmp_path / "pets")
    words = ["--data", str(folder), "--model.num_inducing", "[5,6,7]", "--print_config"]
    assert main(["train", *words]) == 0
    shown = capsys.readouterr().out
    assert "- 5\n" in shown
    assert "mixing_start: near_identity" in shown


def test_the_program_does_as_well_as_the_estimators_on_tables(tmp_path, capsys):
    wine = load_wine()
    np.savez(tmp_path / "wine.npz", x=wine.data, y=wine.target)
    words = ["--data", str(tmp_path / "wine.npz"), "--output", str(tmp_path), "--plots", "false"]
    assert main(["train", *words, "--max_epochs", "25", "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    splits = load(tmp_path / "wine.npz")
    ours = DKMClassifier(max_epochs=25, random_state=0).fit(
        splits.train.x.numpy(), splits.train.y.numpy()
    )
    p = ours.predict_proba(splits.test.x.numpy())
    expected = np.log(p[np.arange(len(p)), splits.test.y.numpy()]).mean()
    assert result["metrics"]["test"]["accuracy"] >= 0.97
    assert result["metrics"]["test"]["log_likelihood"] == pytest.approx(expected, abs=0.05)
    assert main(["evaluate", result["folder"], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    test = result["metrics"]["test"]
    assert again["log_likelihood"] == pytest.approx(test["log_likelihood"], rel=1e-9)
