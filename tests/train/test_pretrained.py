"""The models that come with the package: whole, small, described, as good as their cards say."""

import io
import re

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from gramian import Predictor
from gramian.experiments.cli.main import main
from gramian.experiments.explanations.comparison import Usual
from gramian.train.config import config_from_dict
from gramian.train.data import load
from gramian.train.predict.evaluate import as_numbers, evaluate
from gramian.train.pretrained import PretrainedError, pretrained


@pytest.mark.parametrize("name", pretrained())
def test_a_model_is_whole_small_and_described(name):
    folder = pretrained()[name]
    predictor = Predictor.from_pretrained(f"pretrained:{name}")
    images = torch.randint(0, 256, (3, *predictor.model.data_shape)).byte()
    p = predictor.probabilities(images)
    torch.testing.assert_close(p.sum(1), torch.ones(3))
    assert (folder / "model" / "model.safetensors").stat().st_size < 2_000_000
    config = config_from_dict(yaml.safe_load((folder / "config.yaml").read_text()))
    assert config.data == name
    card = (folder / "README.md").read_text()
    for row in ("Data", "Command", "Commit", "Test accuracy", "Test log-likelihood"):
        assert f"| {row} | " in card
    assert re.search(r"Commit \| [0-9a-f]{12} \|", card)  # and nothing uncommitted beside it
    assert "**Limits.**" in card
    usual = Usual.load(folder)
    assert set(usual.scores) == {"entropy", "doubt", "latent_variance", "mutual_information"}


def test_digits_are_as_good_as_the_card_says():
    predictor = Predictor.from_pretrained("pretrained:digits")
    found = as_numbers(evaluate(predictor, load("digits").test))
    card = (pretrained()["digits"] / "README.md").read_text()
    assert f"{found['accuracy']:.2%}" in card
    said = float(re.search(r"Test log-likelihood \| (\S+) \|", card)[1])
    assert found["log_likelihood"] == pytest.approx(said, abs=2e-4)


def test_an_unknown_name_says_which_there_are(capsys):
    with pytest.raises(PretrainedError, match=r"no pretrained:dogs; known are .*digits"):
        Predictor.from_pretrained("pretrained:dogs")
    assert main(["predict", "pretrained:dogs", "x.png"]) == 1
    assert "pretrained:dogs" in capsys.readouterr().err


def test_commands_take_the_name(tmp_path, monkeypatch, capsys):
    """Any picture is brought to the model's size; nothing is written into the package."""
    monkeypatch.chdir(tmp_path)
    image = load("digits").test.x[0, 0].numpy()
    Image.fromarray(image).resize((90, 60)).convert("RGB").save("digit.png")
    assert main(["predict", "pretrained:digits", "digit.png"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("input,class,probability")
    assert "scaled to 8×8 pixels, grey: digit.png had 90×60 pixels, RGB" in captured.err
    assert main(["predict", "pretrained:digits", "digit.png", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["evaluate", "pretrained:digits", "--json"]) == 0
    assert main(["info", "pretrained:digits"]) == 0
    before = sorted(pretrained()["digits"].rglob("*"))
    words = ["--among", "50", "--test", "0"]
    assert main(["explain", "pretrained:digits", *words]) == 0
    assert main(["map", "pretrained:digits", "--points", "50"]) == 0
    assert {"explanation.html", "map.html", "map.png"} <= {p.name for p in tmp_path.iterdir()}
    assert sorted(pretrained()["digits"].rglob("*")) == before


def test_pictures_are_cut_to_the_models_shape_not_squeezed(tmp_path, capsys):
    """A wide picture loses its sides: the square in its middle decides."""
    image = load("digits").test.x[4, 0].numpy()
    large = np.kron(image, np.ones((10, 10), np.uint8))
    sides = np.random.default_rng(0).integers(0, 256, (80, 60), dtype=np.uint8)
    names = []
    for name, picture in {"alone": large, "wide": np.hstack([sides, large, sides])}.items():
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
        names.append(str(tmp_path / f"{name}.png"))
    assert main(["predict", "pretrained:digits", *names]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[1].split(",")[1:] == lines[2].split(",")[1:]
    assert "and 1 more" in captured.err
    file = io.BytesIO()
    np.savez(file, x=large[None])
    (tmp_path / "x.npz").write_bytes(file.getvalue())
    assert main(["predict", "pretrained:digits", str(tmp_path / "x.npz")]) == 2  # arrays are not
    assert "takes data of shape (1, 8, 8)" in capsys.readouterr().err
