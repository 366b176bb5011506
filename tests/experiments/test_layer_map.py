"""``gramian map``: kernel PCA as scikit-learn has it, neighbours by a loop, the page."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import KernelPCA

from gramian import DenseDKMConfig, fit
from gramian.experiments.cli.main import main
from gramian.experiments.explanations.layer_map import (
    colours_of,
    layer_maps,
    page,
    picture,
    principal_places,
    same_class_neighbours,
    turned_to,
)
from gramian.experiments.explanations.pictures import sprite_of
from gramian.experiments.web_page import as_script_json

CHANCE = np.random.default_rng(0)
PHI = CHANCE.normal(size=(30, 6)) * [3, 2, 1, 1, 0.5, 0.1] + 5
LABELS = np.arange(30) % 3


def test_places_are_those_of_kernel_pca():
    places, explained = principal_places(PHI)
    pca = KernelPCA(2, kernel="precomputed").fit(PHI @ PHI.T)
    theirs = pca.transform(PHI @ PHI.T)
    for mine, other in zip(places.T, theirs.T, strict=True):
        assert abs(np.corrcoef(mine, other)[0, 1]) == pytest.approx(1, abs=1e-9)
    centred = PHI - PHI.mean(0)
    eigenvalues = np.linalg.eigvalsh(centred.T @ centred)
    assert explained == pytest.approx(eigenvalues[-2:].sum() / eigenvalues.sum())
    assert 0.6 < explained < 1
    assert (places**2).sum(1).mean() == pytest.approx(1)


def test_a_layer_with_one_dimension_or_none_has_a_map_too():
    line, explained = principal_places(PHI[:, :1])
    assert line.shape == (30, 2)
    assert explained == pytest.approx(1)
    nothing, _ = principal_places(np.ones((30, 3)))
    assert np.isfinite(nothing).all()


def test_maps_are_turned_to_the_one_before():
    places = principal_places(PHI)[0]
    angle = 1.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    mirrored = places @ turn * [1, -1]
    np.testing.assert_allclose(turned_to(mirrored, places), places, atol=1e-12)
    other = PHI @ np.diag([1, 3, 1, 1, 1, 1.0])  # whose second axis is the first
    maps = layer_maps({"a": PHI, "b": other}, LABELS)
    assert [each.name for each in maps] == ["a", "b"]
    plain = principal_places(other)[0]
    np.testing.assert_allclose(maps[1].places, turned_to(plain, maps[0].places), atol=1e-12)
    assert np.abs(maps[1].places - plain).max() > 0.5


def test_neighbours_by_a_loop():
    found = same_class_neighbours(PHI, LABELS, count=4)
    agree = []
    for n in range(30):
        cosine = [
            -np.inf if m == n else PHI[n] @ PHI[m] / np.linalg.norm(PHI[n]) / np.linalg.norm(PHI[m])
            for m in range(30)
        ]
        agree += [LABELS[m] == LABELS[n] for m in np.argsort(cosine)[::-1][:4]]
    assert found == pytest.approx(np.mean(agree))
    apart = np.eye(3)[LABELS] + 0.01 * CHANCE.normal(size=(30, 3))
    assert same_class_neighbours(apart, LABELS, count=9) == 1
    assert same_class_neighbours(PHI[:3], np.zeros(3, dtype=int)) == 1  # fewer than asked for
    assert same_class_neighbours(PHI[:3], np.arange(3)) == 0  # nobody is a neighbour of himself


def test_the_page_holds_everything_and_no_name_can_break_it():
    evil = "</script><script>alert(1)</script>"
    images = CHANCE.integers(0, 255, (30, 3, 8, 8)).astype(np.uint8)
    maps = layer_maps({"input": PHI, "output": PHI}, LABELS)
    text = page(maps, LABELS, ["a", evil, "c & d"], f"{evil} on digits", images)
    assert "<script>alert(1)" not in text
    facts = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert facts["classes"] == ["a", evil, "c & d"]
    assert [each["name"] for each in facts["layers"]] == ["input", "output"]
    assert facts["labels"] == LABELS.tolist()
    assert 'content="default-src' in text
    assert not re.search(r"(src|href)=\"https?:", text)
    assert "data:image/png;base64," in text
    assert page(maps, LABELS, ["a", "b", "c"], "rows", None).count("data:image/png") == 0
    assert as_script_json("<&>") == '"\\u003c\\u0026\\u003e"'


def test_a_sprite_has_every_image_in_its_place():
    images = CHANCE.integers(0, 255, (5, 1, 4, 4)).astype(np.uint8)
    sheet = np.array(sprite_of(images))
    assert sheet.shape == (8, 12)
    assert np.array_equal(sheet[4:8, 4:8], images[4, 0])


def test_many_classes_have_different_colours():
    for number in (2, 10, 100):
        assert len(set(colours_of(number))) == number


def test_the_picture_has_a_panel_per_layer():
    names = [f"layer{n}" for n in range(6)]
    figure = picture(layer_maps(dict.fromkeys(names, PHI), LABELS), LABELS, ["a", "b", "$c$"], "x")
    assert [axes.get_title().splitlines()[0] for axes in figure.axes[:6]] == names


def test_the_command(tmp_path, capsys):
    x = np.concatenate([CHANCE.normal(size=(40, 3)) - 2, CHANCE.normal(size=(40, 3)) + 2])
    y = np.repeat([0, 1], 40)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    fit(DenseDKMConfig(num_inducing=8), x, y, max_epochs=2).save_pretrained(tmp_path / "model")
    words = ["map", str(tmp_path / "model"), "--data", str(tmp_path / "rows.npz"), "--points", "12"]
    assert main([*words, "--output", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found["agreement"])) == "input"
    assert found["agreement"]["output"] > 0.4
    with Image.open(tmp_path / "out" / "map.png") as image:
        assert image.size[0] > 300
    assert "12 points of test" in (tmp_path / "out" / "map.html").read_text()
    assert main(words) == 0
    assert (tmp_path / "model" / "map.html").exists()
    assert "of the ten nearest neighbours agree" in capsys.readouterr().out
    assert main([*words[:-1], "2"]) == 2
    assert "3 data points or more" in capsys.readouterr().err
    np.savez(tmp_path / "real.npz", x=x, y=x[:, :1])
    real = fit(DenseDKMConfig(num_inducing=4), x, x[:, :1], max_epochs=1)
    real.save_pretrained(tmp_path / "real")
    assert main(["map", str(tmp_path / "real"), "--data", str(tmp_path / "real.npz")]) == 2
    assert "map is for classifiers" in capsys.readouterr().err
