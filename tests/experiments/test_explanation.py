"""``gramian explain``: what is on the page is what the model says, and what is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from gramian import DenseDKMConfig, fit
from gramian.experiments.cli.main import main
from gramian.experiments.explanations.deletion import deletion_curves
from gramian.experiments.explanations.explanation import Explainer, explanation_page, heat_map
from gramian.train.data import load
from tests.train.tiny import digits_predictor


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    data = load("digits")
    predictor = digits_predictor()
    folder = tmp_path_factory.mktemp("model")
    predictor.save_pretrained(folder)
    return data, predictor, folder


@pytest.fixture(scope="module")
def explainer(digits):
    data, predictor, _ = digits
    return Explainer(predictor, data.train.subset(torch.arange(200)), data.test.x[:100], 3)


def test_an_explanation_says_what_the_model_says(digits, explainer):
    data, predictor, _ = digits
    image = data.test.x[3]
    found = explainer.explain("an image", image)
    p = predictor.predictions(image[None])["probabilities"][0]
    assert found.classes[0][0] == predictor.class_names[int(p.argmax())]
    assert found.classes[0][1] == pytest.approx(p.max().item(), abs=1e-5)
    assert [each[1] for each in found.classes] == sorted(
        (each[1] for each in found.classes), reverse=True
    )
    shares = predictor.contributions(image[None])[0, :, int(p.argmax())]
    assert found.in_favour[0].value == pytest.approx(shares.max().item())
    assert found.against[0].value == pytest.approx(shares.min().item())
    logit = predictor.latent(image[None]).mean.max().item()
    assert found.logit == pytest.approx(logit, rel=1e-3)
    assert list(found.neighbours) == ["input", *predictor.dkm.layers, "output"]
    places, values = predictor.similar(image[None], data.train.x[:200], k=3)
    nearest = found.neighbours["output"]
    assert [n.similarity for n in nearest] == pytest.approx(values[0].tolist(), abs=1e-6)
    assert nearest[0].label == data.train.class_names[int(data.train.y[places[0, 0]])]
    assert all(0 <= share <= 1 for share in found.strangeness.values())


def test_noise_is_found_strange_and_a_training_image_is_not(digits, explainer):
    data, _, _ = digits
    strange = explainer.explain("a stripe", torch.full((1, 8, 8), 255, dtype=torch.uint8))
    usual = explainer.explain("trained on", data.train.x[0])
    assert max(strange.strangeness.values()) > max(usual.strangeness.values())
    assert replace(usual, strangeness={"x": 0.995}).strange
    assert not replace(usual, strangeness={"x": 0.5}).strange


def test_heat_is_blue_where_shares_are_positive():
    shares = np.array([[1.0, -1.0], [0.0, 0.0]])
    picture = np.asarray(heat_map(np.full((1, 8, 8), 200, np.uint8), shares)).astype(int)
    size = len(picture)
    blue, red, none = picture[5, 5], picture[5, size - 5], picture[size - 5, 5]
    assert blue[2] > blue[0] + 50
    assert red[0] > red[2] + 50
    assert np.ptp(none) < 30
    flat = np.asarray(heat_map(np.full((3, 8, 8), 9, np.uint8), np.zeros((2, 2))))
    assert flat.max() < 20


def test_no_name_can_break_the_page(explainer, digits):
    found = explainer.explain("<script>alert(1)</script>", digits[0].test.x[0])
    text = explanation_page("<b>title</b>", [found])
    assert "<script" not in text
    assert "&lt;b&gt;title" in text
    assert not re.search(r"(src|href)=\"https?:", text)
    assert text.count("data:image/png;base64,") > 20


def test_the_command(digits, tmp_path, capsys):
    data, _, folder = digits
    Image.fromarray(data.test.x[1, 0].numpy()).save(tmp_path / "mine.png")
    words = ["--data", "digits", "--among", "100"]
    start, mine = ["explain", str(folder)], str(tmp_path / "mine.png")
    out = ["--output", str(tmp_path / "out")]
    assert main([*start, mine, *words, "--test", "1", *out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for number in (1, 2):
        with Image.open(tmp_path / "out" / f"explanation_{number}.png") as picture:
            assert picture.size == (3 * 160 + 16, 160)  # the image, and heat for two classes
    first, second = found["images"]
    assert first["class"] == second["class"]  # the same image, from a file and from the test set
    assert first["logit"] == pytest.approx(second["logit"])
    assert second["input"].startswith("test image 1 (")
    assert "Most similar training images" in (tmp_path / "out" / "explanation.html").read_text()
    assert main([*start, *words, "--test", "0"]) == 0
    assert (folder / "explanation.html").exists()
    assert "test image 0" in capsys.readouterr().out


def test_pixels_that_are_said_to_matter_matter(digits, tmp_path, capsys):
    """Without them the probability falls faster than without random ones; also by the command."""
    data, predictor, folder = digits
    draw = torch.Generator().manual_seed(0)
    curves = deletion_curves(predictor, data.test.x[:40], data.train.x[:50], draw, repeats=2)
    gain = curves.gain()
    assert gain.mean > 5 * gain.standard_error > 0
    p = predictor.probabilities(data.test.x[:40]).max(1).values
    for curve in (curves.by_share, curves.at_random):
        np.testing.assert_allclose(curve[:, 0], p, atol=1e-6)  # nothing is gone yet
    np.testing.assert_allclose(curves.by_share[:, -1], curves.at_random[:, -1])  # all is gone
    words = [str(folder), "--data", "digits", "--check", "10", "--output", str(tmp_path)]
    assert main(["explain", *words]) == 0
    assert "lower by" in capsys.readouterr().out
    assert main(["explain", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num"] == 10
    with Image.open(tmp_path / "deletion.png") as picture:
        assert picture.width > 300


def test_what_is_refused(digits, tmp_path, capsys):
    _, _, folder = digits
    x = np.random.default_rng(0).normal(size=(20, 3))
    fit(DenseDKMConfig(num_inducing=4), x, np.arange(20) % 2, max_epochs=1).save_pretrained(
        tmp_path / "rows"
    )
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "large.png")
    for words, code, message in [
        ([str(folder), "--data", "digits"], 2, "nothing to explain"),
        ([str(folder), "--data", "digits", "--test", "5000"], 2, "the test set has 450 images"),
        ([str(folder), str(tmp_path / "large.png"), "--data", "sine"], 2, "takes data of shape"),
        ([str(folder), "--test", "0"], 2, "say which data"),
        ([str(tmp_path / "rows"), "--test", "0"], 2, "classifiers of 8-bit images"),
        ([str(folder), "missing.png", "--data", "digits"], 4, "missing.png"),
    ]:
        assert main(["explain", *words]) == code, words
        err = capsys.readouterr().err
        assert message in err
        assert "Traceback" not in err
