"""``gramian evaluate`` beyond accuracy: corrupted and unlike data, pictures, and wrong words."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from gramian import ConvDKMConfig, DenseDKMConfig, NetworkConfig, fit
from gramian.experiments.cli.main import main
from gramian.metrics import classification_scores, detection, mutual_information
from gramian.nn.likelihoods.likelihood import sample
from gramian.train.data import DataError, load
from gramian.train.data.other_images import as_images_of, noise_images
from gramian.train.predict.uncertainty import SCORES, probabilities_and_scores
from tests.samples import generator


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model of digits, and its predictor."""
    digits = load("digits")
    config = ConvDKMConfig(
        num_inducing=(8,), strides=(2,), whitening=False, blocks_per_stage=1, num_samples=20,
        mixing_start="near_identity", output_start="kernel",
    )  # fmt: skip
    names = np.array(digits.train.class_names)[digits.train.y.numpy()]
    predictor = fit(config, digits.train.x, names, max_epochs=3, lr=0.03, schedule="one_cycle")
    folder = tmp_path_factory.mktemp("digits")
    predictor.save_pretrained(folder)
    return folder, predictor


def evaluate(capsys, *words):
    code = main(["evaluate", *map(str, words), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


def test_scores_of_a_model_are_those_of_the_library(saved):
    _, predictor = saved
    x = load("digits").test.x[:50]
    q = predictor.latent(x)
    p, scores = probabilities_and_scores(predictor, q)
    assert list(scores) == list(SCORES)
    members = sample(q, predictor.samples()).softmax(-1)
    np.testing.assert_allclose(scores["mutual_information"], mutual_information(members), atol=1e-6)
    np.testing.assert_allclose(p, predictor.predictions(x)["probabilities"], atol=1e-6)
    assert (scores["mutual_information"] > -1e-6).all()
    assert (scores["mutual_information"] <= scores["entropy"] + 1e-6).all()


def test_a_network_has_no_variance_to_tell_by(saved):
    x = torch.randint(0, 255, (40, 1, 8, 8), generator=generator(), dtype=torch.uint8)
    config = NetworkConfig(widths=(4,), strides=(2,), blocks_per_stage=1)
    network = fit(config, x, np.arange(40) % 3, max_epochs=1)
    _, scores = probabilities_and_scores(network, network.latent(x))
    assert "latent_variance" not in scores
    assert {"entropy", "doubt"} <= set(scores)


def test_metrics_corruption_and_unlike_data(saved, capsys, tmp_path):
    folder, predictor = saved
    test = load("digits").test
    code, plain, _ = evaluate(capsys, folder, "--data", "digits")
    assert code == 0
    scores = classification_scores(predictor.predictions(test.x)["probabilities"], test.y)
    for name in ("accuracy", "log_likelihood", "ece", "ece_mass", "classwise_ece", "aurc"):
        assert plain[name] == pytest.approx(scores[name], rel=1e-4)
    assert "ood" not in plain
    code, spoilt, _ = evaluate(capsys, folder, "--data", "digits", "--corrupt", "noise:5")
    assert spoilt["data"] == "digits, noise:5"
    assert spoilt["log_likelihood"] < plain["log_likelihood"]
    for number in range(5):  # other images, of another size and in colour
        pixels = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        path = tmp_path / "other" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    other, plots = tmp_path / "other", tmp_path / "plots"
    code, found, err = evaluate(
        capsys, folder, "--data", "digits", "--ood", "noise", other, "--plots", plots
    )
    assert code == 0, err
    assert list(found["ood"]) == ["noise", str(other)]
    q = predictor.latent(test.x)
    x = noise_images(len(test), (1, 8, 8), _noise_generator())
    _, like = probabilities_and_scores(predictor, q)
    _, unlike = probabilities_and_scores(predictor, predictor.latent(x))
    for name in SCORES:
        expected = detection(like[name], unlike[name])
        assert found["ood"]["noise"][name]["auroc"] == pytest.approx(expected.auroc, abs=1e-4)
        assert found["ood"]["noise"][name]["fpr95"] == pytest.approx(expected.fpr95, abs=1e-3)
    assert sorted(path.name for path in plots.iterdir()) == [
        "calibration_by_class.png",
        "risk_coverage.png",
        "unlike_1_noise.png",
        "unlike_2_other.png",
    ]
    for path in plots.iterdir():
        with Image.open(path) as picture:
            assert picture.size[0] > 300
    assert main(["evaluate", str(folder), "--data", "digits", "--ood", "noise"]) == 0
    shown = capsys.readouterr().out
    assert "Is noise unlike the training data?" in shown
    assert "mutual information" in shown


def _noise_generator():
    from gramian.train.runtime.seeds import generator

    return generator(0, "unlike noise")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--corrupt", "fog:3"], 4, "such as blur:3, got fog:3"),
        (["--corrupt", "blur"], 4, "such as blur:3"),
        (["--ood", "nothing_there"], 4, "nothing_there"),
        (["--ood", "sine"], 4, "only uint8 images"),
    ],
)
def test_wrong_words_are_refused(saved, capsys, words, code, message):
    found, _, err = evaluate(capsys, saved[0], "--data", "digits", *words)
    assert found == code
    assert message in err
    assert "Traceback" not in err


def test_a_regression_has_no_unlike_data(tmp_path, capsys):
    x = np.linspace(-1, 1, 20)[:, None]
    np.savez(tmp_path / "rows.npz", x=x, y=np.sin(x))
    fit(DenseDKMConfig(num_inducing=4), x, np.sin(x), max_epochs=1).save_pretrained(tmp_path / "m")
    for words in (["--ood", "noise"], ["--plots", str(tmp_path / "plots")]):
        code, _, err = evaluate(capsys, tmp_path / "m", "--data", tmp_path / "rows.npz", *words)
        assert code == 2
        assert "this model is a regression" in err
    assert not (tmp_path / "plots").exists()


def test_images_are_made_to_fit():
    grey = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    assert as_images_of(grey, (1, 8, 8)) is grey
    coloured = as_images_of(grey, (3, 8, 8))
    assert torch.equal(coloured, grey.expand(-1, 3, -1, -1))
    red = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    red[:, 0] = 200
    assert torch.equal(as_images_of(red, (1, 8, 8)), torch.full((1, 1, 8, 8), 60).byte())
    flat = torch.full((2, 1, 28, 20), 77, dtype=torch.uint8)
    assert torch.equal(as_images_of(flat, (3, 32, 32)), torch.full((2, 3, 32, 32), 77).byte())
    with pytest.raises(DataError, match="only uint8 images"):
        as_images_of(torch.rand(2, 4), (1, 8, 8))
    with pytest.raises(DataError, match="only 1 and 3 can"):
        as_images_of(torch.zeros(1, 2, 8, 8, dtype=torch.uint8), (3, 8, 8))
    noise = noise_images(5, (3, 4, 4), generator())
    assert torch.equal(noise, noise_images(5, (3, 4, 4), generator()))
    assert noise.float().std() == pytest.approx(74, abs=8)
