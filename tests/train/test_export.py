"""Exported files must give the predictor's numbers, for any batch and without this package."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from gramian import Bandwidth, ConvDKMConfig, DenseDKMConfig, NormChoice, Predictor, VarianceCheck
from gramian.experiments.cli.commands.export import as_text
from gramian.experiments.cli.main import main
from gramian.nn.steps.kernels import ArcCosine, Matern32, Matern52
from gramian.train.config import build_model
from gramian.train.data import Normaliser, RowScaler
from gramian.train.predict import export as exporting
from gramian.train.predict.export import (
    EXTRAS,
    METADATA,
    Export,
    ExportedModel,
    ExportError,
    export,
    largest_difference,
    random_data,
    trace,
)
from tests.samples import generator, random_

CONV = ConvDKMConfig(
    image_shape=(2, 6, 5),
    num_outputs=3,
    num_inducing=(4,),
    strides=(2,),
    blocks_per_stage=1,
    num_samples=10,
)
DENSE = DenseDKMConfig(num_features=3, num_outputs=2, num_inducing=5, num_samples=10)
SMALLEST = replace(DENSE, num_layers=0)
CLASSES = ("cat", "dog", "ü")


def predictor(config, dtype=torch.float32) -> Predictor:
    """A model away from its start values, for data that are far from standardised."""
    torch.manual_seed(0)
    model = build_model(config).to(dtype)
    x = torch.randn(9, *model.data_shape, generator=generator(1), dtype=dtype)
    model.initialise_(x, generator(2))
    random_(model, 3)
    if isinstance(config, ConvDKMConfig):
        return Predictor(model, config, Normaliser((0.4, 0.6), (0.3, 0.2)), CLASSES)
    scaler = RowScaler((2024.0, 0.0, -5.0), (7.0, 0.01, 300.0))
    if config.likelihood in ("auto", "categorical"):
        return Predictor(model, config, scaler, CLASSES[:2])
    model.likelihood.fit_targets_(torch.tensor([[970, 0], [1030, 2]]))
    return Predictor(model, config, scaler)


def assert_same(run, model: Predictor, rtol: float) -> None:
    for size in (1, 3, 8):
        x = random_data(model, size)
        got, want = run(x), model.predictions(x)
        assert list(got) == list(want)
        for name, value in want.items():
            assert got[name].dtype == value.dtype
            torch.testing.assert_close(
                got[name], value, rtol=rtol, atol=rtol * value.abs().max().item()
            )


def onnx_session(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x):
        values = session.run(names, {"x": x.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return session, run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    predictor(SMALLEST).save_pretrained(folder / "model")
    return folder


def outcome(capsys, *words) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- the same numbers ----


def test_images_in_float64(tmp_path):
    beyond = {"bandwidth": Bandwidth(3.0, learned=True), "unexplained": "dropped", "centre": True}
    model = predictor(replace(CONV, pooling="nystrom", whitening=False, **beyond), torch.float64)
    result = export(model, tmp_path / "new" / "model.pt2", "pt2")
    assert result.max_difference < 1e-10  # of the file, which was loaded again
    assert result.bytes == result.path.stat().st_size
    assert [path.name for path in result.path.parent.iterdir()] == ["model.pt2"]


def test_images_as_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    model = predictor(replace(CONV, blocks_per_stage=0, whitening="patches"))
    export(model, tmp_path / "model.onnx", "onnx")
    session, run = onnx_session(tmp_path / "model.onnx")
    (x,) = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(uint8)", ["batch", 2, 6, 5])
    assert_same(run, model, 1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == list(CLASSES)
    assert json.loads(facts["data_shape"]) == [2, 6, 5]
    assert str(tmp_path.cwd()).encode() not in (tmp_path / "model.onnx").read_bytes()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "poisson"])
def test_regressions_keep_their_units(tmp_path, likelihood):
    pytest.importorskip("onnxruntime")
    model = predictor(replace(SMALLEST, likelihood=likelihood))
    model.model.train()
    result = export(model, tmp_path / "model.onnx", "onnx")
    assert model.model.training
    assert result.inputs == {"x": "float64 [batch, 3]"}
    assert result.outputs == {
        "mean": "float32 [batch, 2]",
        "variance": "float32 [batch, 2]",
        "latent_mean": "float32 [batch, 2]",
        "latent_variance": f"float32 [batch, {1 if likelihood == 'poisson' else 2}]",
    }
    assert_same(onnx_session(result.path)[1], model, 1e-4)


def test_sampled_regressions_and_other_kernels(monkeypatch):
    monkeypatch.setattr(
        DenseDKMConfig, "build_kernel", lambda *_: ArcCosine() + Matern32() + Matern52()
    )
    config = replace(SMALLEST, likelihood="gaussian", estimator="monte_carlo")
    model = predictor(config, torch.float64)
    assert_same(trace(model).module(), model, 1e-10)


def test_clamped_variances_count_as_zero_in_the_graph_too():
    model = predictor(replace(SMALLEST, variance_check=VarianceCheck(clamp=True)))
    module, x = ExportedModel(model), random_data(model, 4)
    module.frozen.output.spread.fill_(-1e6)
    output = torch.export.export(module, (x,), strict=False).module()(x)
    assert output["latent_variance"].eq(0).all()
    assert output["probabilities"].isfinite().all()


# ---- the program ----


def test_a_file_from_the_program_needs_nothing_of_this_package(run_folder, tmp_path, capsys):
    code, out, err = outcome(capsys, "export", run_folder, "--format", "pt2", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert list(result) == ["path", "format", "bytes", "max_difference", "inputs", "outputs"]
    assert result["path"] == str(run_folder / "model.pt2")
    assert result["inputs"] == {"x": "float64 [batch, 3]"}
    assert list(result["outputs"]) == ["probabilities", "latent_mean", "latent_variance"]
    extra = {METADATA: ""}
    torch.export.load(result["path"], extra_files=extra)
    facts = json.loads(extra[METADATA])
    assert facts["gramian"].startswith("0.")
    assert (facts["class_names"], facts["data_shape"]) == (["cat", "dog"], [3])
    model = Predictor.from_pretrained(run_folder / "model")
    x = random_data(model, 7)
    np.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import sys, numpy, torch\n"
        "model = torch.export.load(sys.argv[1]).module()\n"
        "x = torch.from_numpy(numpy.load(sys.argv[2]))\n"
        "numpy.save(sys.argv[3], model(x)['probabilities'].numpy())\n"
        "assert not [name for name in sys.modules if name.startswith('gramian')]\n"
    )
    words = [result["path"], str(tmp_path / "x.npy"), str(tmp_path / "p.npy")]
    subprocess.run([sys.executable, "-c", code, *words], check=True, cwd=tmp_path)
    p = torch.from_numpy(np.load(tmp_path / "p.npy"))
    torch.testing.assert_close(p, model.probabilities(x))


def test_the_program_says_what_it_wrote():
    result = Export(Path("a.onnx"), "onnx", 1234567, 2e-7, {"x": "uint8"}, {"mean": "float32"})
    for words in ("a.onnx (1,234,567 bytes)", "2.0e-07 from the model", "input x", "output mean"):
        assert words in as_text(result)


def test_a_file_with_other_numbers_is_not_kept(run_folder, tmp_path, capsys, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"an older file")
    load = exporting.load
    monkeypatch.setattr(
        exporting,
        "load",
        lambda *words: lambda x: {name: 1.01 * y for name, y in load(*words)(x).items()},
    )
    words = ["export", run_folder, "--format", "pt2", "--output", path]
    code, out, err = outcome(capsys, *words)
    assert (code, out) == (1, "")
    assert "differ from the model's by 1.0e-02 of the largest value, more than 1e-04" in err
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"an older file"]


def test_not_a_number_is_a_difference():
    model = predictor(SMALLEST)
    names = ("probabilities", "latent_mean", "latent_variance")
    difference = largest_difference(
        model, lambda x: dict.fromkeys(names, torch.full((len(x), 1), torch.nan))
    )
    assert math.isnan(difference)
    with pytest.raises(ExportError, match="by nan of the largest"):
        exporting._check(difference, torch.float32)


# ---- what cannot be done ----


@pytest.mark.parametrize("missing", EXTRAS)
def test_onnx_without_its_packages(run_folder, tmp_path, capsys, monkeypatch, missing):
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None if name == missing else ModuleType(name))
    words = ["export", run_folder, "--format", "onnx", "--output", tmp_path / "model.onnx"]
    code, out, err = outcome(capsys, *words)
    assert (code, out) == (1, "")
    assert f"ONNX (the package {missing}) needs more packages: pip install 'gramian[export]'" in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_float64_is_not_for_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ExportError, match="ONNX files are for float32"):
        export(predictor(SMALLEST, torch.float64), tmp_path / "model.onnx", "onnx")


def test_too_many_numbers_for_onnx(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(exporting, "LARGEST_ONNX", 100)
    with pytest.raises(ExportError, match=r"too many for an ONNX file \(2 GB\): use pt2"):
        export(predictor(SMALLEST), tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_bad_words(run_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predictor(replace(SMALLEST, norm=NormChoice(statistics="batch"))).save_pretrained("batch")
    for words, code, message in [
        (["nowhere", "--format", "pt2"], 1, "config.json is missing"),
        ([run_folder], 2, "format"),
        ([run_folder, "--format", "tflite"], 2, "tflite"),
        ([run_folder, "--format", "pt2", "--output", tmp_path], 2, "is a folder"),
        (["batch", "--format", "pt2"], 2, "statistics of the batch at hand cannot be frozen"),
    ]:
        got, out, err = outcome(capsys, "export", *words)
        assert (got, out) == (code, "")
        assert message in err
        assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"batch"}
    assert len(list((tmp_path / "batch").iterdir())) == 2
