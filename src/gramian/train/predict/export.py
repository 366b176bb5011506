"""A trained model as one file for prediction, which needs nothing of this package.

The graph takes raw data, as ``Predictor`` does: the scaling, the frozen model and the Monte-Carlo
samples are in it. Every file is loaded again and compared with the predictor before it gets its
name. It checks nothing: where the library raises, because a variance is negative or NaN, the file's
numbers mean nothing.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gramian._version import __version__
from gramian.explained import Explained, MissingExtraError
from gramian.nn.frozen.frozen_kernels import copied
from gramian.train.config import ConfigError
from gramian.train.data import Normaliser
from gramian.train.predict.predictor import Predictor, described
from gramian.train.record.files import write_atomically
from gramian.train.runtime.seeds import generator

Format = Literal["pt2", "onnx"]
Named = dict[str, Tensor]

EXTRAS = ("onnx", "onnxscript", "onnxruntime")
METADATA = "gramian.json"  # the file inside a .pt2 file that says what the model is
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
"""How far a file's outputs may be from the predictor's, relative to the largest one."""
BATCH_SIZES = (1, 2, 5)
LARGEST_ONNX = 2**31 - 2**20  # bytes of numbers, which leaves a little room for the graph


class ExportError(Explained, Exception):
    """A model cannot be written in a format, or the file does not give the model's numbers."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Export:
    """A file that was written, and how far its outputs are from the predictor's."""

    path: Path
    format: Format
    bytes: int
    max_difference: float  # over all outputs, each relative to its largest value
    inputs: dict[str, str]  # by name: dtype and shape, such as "uint8 [batch, 1, 8, 8]"
    outputs: dict[str, str]


class ExportedModel(nn.Module):
    """Raw data → named predictions, as one graph.

    The names and values are those of ``Predictor.predictions``.
    """

    samples: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.frozen = predictor.dkm.freeze()
        self.likelihood = copied(predictor.model.likelihood)
        self.scaler, self.dtype = predictor.scaler, predictor.model.dtype
        self.calibration = predictor.calibration
        self.register_buffer("samples", predictor.samples())

    def forward(self, x: Tensor) -> Named:
        """Predictions for a batch: uint8 images [B, C, H, W] or float64 rows [B, features]."""
        q = self.frozen(self.scaler(x, self.dtype))
        if self.calibration is not None:
            q = self.calibration(q)
        return described(self.likelihood, q, self.samples)


def export(predictor: Predictor, path: str | Path, format: Format) -> Export:
    """Write a model to ``path``: a torch.export archive (pt2) or ONNX, for the CPU.

    If the file does not give the predictor's numbers, or anything else fails, ``path`` is left as
    it was.

    Raises:
        ConfigError: unknown format, or a model that cannot be frozen.
        ExportError: the format cannot hold the model, or the file gives other numbers.
        ImportError: a package that ONNX needs is missing.
    """
    if format not in get_args(Format):
        raise ConfigError(f"unknown format {format!r}; known are {', '.join(get_args(Format))}")
    if format == "onnx":
        _check_onnx(predictor.model.dtype)
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    predictor = replace(predictor, model=copy.deepcopy(predictor.model).cpu())
    program = trace(predictor)
    x = random_data(predictor, 1)
    facts, outputs, difference = describe(predictor), predictor.predictions(x), torch.nan
    content = _pt2(program, facts) if format == "pt2" else _onnx(program, list(outputs), facts)

    def write(file: IO[bytes]) -> None:
        nonlocal difference
        file.write(content)
        file.flush()
        difference = largest_difference(predictor, load(Path(file.name), format))
        _check(difference, predictor.model.dtype)

    write_atomically(path, write)
    return Export(
        path,
        format,
        path.stat().st_size,
        difference,
        {"x": _signature(x)},
        {name: _signature(value) for name, value in outputs.items()},
    )


def trace(predictor: Predictor) -> ExportedProgram:
    """The graph of a predictor on the CPU, for any size of batch."""
    try:
        model = ExportedModel(predictor)
    except ValueError as error:  # says why the model cannot be frozen
        raise ConfigError(str(error)) from error
    sizes = Dim(
        "batch", max=2**31
    )  # PyTorch 2.7 wants a bound, and strict=False is no default there
    with torch.no_grad():
        program = torch.export.export(
            model, (random_data(predictor, 2),), dynamic_shapes={"x": {0: sizes}}, strict=False
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def describe(predictor: Predictor) -> dict[str, Any]:
    """What is stored beside the graph."""
    return {
        "gramian": __version__,
        "data_shape": list(predictor.model.data_shape),
        "dtype": str(predictor.model.dtype).removeprefix("torch."),
        "class_names": list(predictor.class_names),
    }


def load(path: Path, format: Format) -> Callable[[Tensor], Named]:
    """The function that a file holds; for ONNX by onnxruntime."""
    if format == "pt2":
        with path.open("rb") as file:
            return torch.export.load(file).module()
    session = _extra("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x: Tensor) -> Named:
        values = session.run(names, {"x": x.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return run


def random_data(predictor: Predictor, size: int) -> Tensor:
    """Raw data with the mean and the standard deviation that the scaler removes."""
    shape, scaler = predictor.model.data_shape, predictor.scaler
    draw = generator(predictor.seed, "export", size)
    normals = torch.randn(size, *shape, generator=draw, dtype=torch.float64)
    mean, std = (
        torch.tensor(values, dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
        for values in (scaler.mean, scaler.std)
    )
    x = mean + std * normals
    return (255 * x).clamp(0, 255).byte() if isinstance(scaler, Normaliser) else x


def largest_difference(predictor: Predictor, run: Callable[[Tensor], Named]) -> float:
    """The largest difference from the predictor, relative to the largest value of each output."""
    batches = [random_data(predictor, size) for size in BATCH_SIZES]
    outputs, differences = [run(x) for x in batches], []
    for name, expected in predictor.predictions(torch.cat(batches)).items():
        value = torch.cat([output[name] for output in outputs])
        largest = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
        differences.append((value - expected).abs().max() / largest)
    return torch.stack(differences).max().item()  # NaN if one is


def _check(difference: float, dtype: torch.dtype) -> None:
    """Refuse a file that gives other numbers."""
    if not difference <= TOLERANCE[dtype]:
        raise ExportError(
            f"the file's predictions differ from the model's by {difference:.1e} of the largest "
            f"value, more than {TOLERANCE[dtype]:.0e}; it was removed"
        )


def _check_onnx(dtype: torch.dtype) -> None:
    """Refuse what cannot be done before it is begun."""
    for name in EXTRAS:
        _extra(name)
    if dtype != torch.float32:
        raise ExportError(
            "ONNX files are for float32: torch.onnx rounds constants to it, and onnxruntime has no "
            "other convolution. Use pt2, or train with precision 32-true."
        )


def _pt2(program: ExportedProgram, facts: dict[str, Any]) -> bytes:
    """The graph as a torch.export archive. (Straight to a full disk, torch would abort.)"""
    archive = io.BytesIO()
    with _quiet():
        torch.export.save(program, archive, extra_files={METADATA: json.dumps(facts)})
    return archive.getvalue()


def _onnx(program: ExportedProgram, names: list[str], facts: dict[str, Any]) -> bytes:
    """The graph in the ONNX format."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors)
    if size > LARGEST_ONNX:
        raise ExportError(
            f"{size / 1e9:.1f} GB of numbers are too many for an ONNX file (2 GB): use pt2"
        )
    try:
        with _quiet():
            converted = torch.onnx.export(
                program,
                input_names=["x"],
                output_names=names,
                dynamic_shapes={"x": {0: "batch"}},
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:  # an operation of a custom kernel, say
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ExportError(f"the model cannot be written as ONNX, use pt2: {reason}") from error
    assert converted is not None
    passes = _extra("onnx_ir.passes.common")
    passes.NameFixPass()(converted.model)  # inner values may be called mean too
    passes.ClearMetadataAndDocStringPass()(converted.model)  # paths of this machine
    converted.model.metadata_props.update({key: json.dumps(facts[key]) for key in facts})
    return converted.model_proto.SerializeToString()


def _extra(name: str) -> Any:
    """Import a package that only ONNX needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"ONNX (the package {name})", "export") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notes on its own parts, and on matrices stored by columns."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
            yield
    finally:
        logger.setLevel(level)


def _signature(value: Tensor) -> str:
    """The dtype and the shape, whatever the size of the batch."""
    shape = ", ".join(["batch", *map(str, value.shape[1:])])
    return f"{str(value.dtype).removeprefix('torch.')} [{shape}]"
