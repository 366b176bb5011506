"""Settings that suit the data: what a run starts from when nobody has named any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gramian.train.data import Dataset

BATCH, FULL_BATCH = 512, 2048
"""Rows per step of tables where more than FULL_BATCH rows would make a step too long."""

IMAGE_BATCH, IMAGE_STEPS = 64, 1200

IMAGE_TRAINING: dict[str, Any] = {
    "optimiser": "muon",
    "momentum": 0.95,
    "lr": 0.03,
    "schedule": "one_cycle",
}
IMAGE_MODEL: dict[str, Any] = {
    "whiten_inducing": True,
    "inducing_start": "clusters",
    "mixing_start": "near_identity",
    "output_start": "kernel",
    "residual_weights": "mean",
    "bias_var": 0.001,
    "bandwidth": {"start": 3.0, "learned": True},
    "output_bandwidth": {"start": 1.0, "learned": True},
    "unexplained": "dropped",
}
"""The recipe for images: with it a model learns several times faster than as published."""


@dataclass(frozen=True)
class TableStart:
    """Where a dense model starts, and for how many steps it trains; chosen on other data.

    Up to 2,048 rows the model is small: one Gram layer, 100 inducing points, few steps over all
    rows. Beyond, the sizes grow with the rows, within a few minutes of one processor.

    Args:
        nu_rows: up to so many rows ν is ``NU``. From there it falls as 1/rows: few rows cannot tell
            more about a Gram matrix than a kernel does, many can.
        weight_var: start of the kernel's variance.
        bias_var: start of the bias's variance.
        steps: with few rows; with many there are ``MANY_STEPS``.
    """

    nu_rows: int
    weight_var: float
    bias_var: float
    steps: int

    def sizes(self, num_data: int, batch: int | None = None) -> TableSizes:
        """Sizes for so many rows; the batch is chosen, too, unless somebody has."""
        is_large = num_data > FULL_BATCH
        if batch is None:
            batch = BATCH if is_large else num_data
        steps = MANY_STEPS if is_large else self.steps
        return TableSizes(
            num_inducing=min(int(100 * max(1.0, num_data / FULL_BATCH) ** 0.5), 256, num_data),
            num_layers=2 if is_large else 1,
            nu=NU * min(1.0, self.nu_rows / num_data),
            batch_size=batch,
            max_epochs=epochs_for(steps, num_data, batch, at_least=10),
            precision="64-true" if num_data <= WIDE_ROWS else "32-true",
        )


@dataclass(frozen=True)
class TableSizes:
    """Settings of a dense model that depend on the number of rows."""

    num_inducing: int
    num_layers: int
    nu: float
    batch_size: int
    max_epochs: int
    precision: Literal["64-true", "32-true", "tf32"]


MANY_STEPS, NU = 500, 10.0
WIDE_ROWS = 20_000
"""Up to so many rows tables have float64; beyond, half of the time counts more than digits do."""

TABLES = {
    "classes": TableStart(nu_rows=1500, weight_var=2.0, bias_var=1.0, steps=100),
    "real": TableStart(nu_rows=4500, weight_var=1.0, bias_var=0.1, steps=150),
    "counts": TableStart(nu_rows=4500, weight_var=1.0, bias_var=0.1, steps=150),
}


def settings_for(train: Dataset, kind: str | None = None) -> dict[str, Any]:
    """Settings as a preset has them, for a kind of model or for the one that suits the data."""
    if kind is None:
        kind = "conv" if train.images else "dense"
    if (kind == "dense") == train.images:
        return {}  # the model cannot take these data, and says so
    if kind == "dense":
        return dense_settings(len(train), train.targets)
    return image_settings(kind, len(train), side=min(train.x.shape[2:]))


def dense_settings(num_data: int, targets: str) -> dict[str, Any]:
    """Tables: the settings of the estimators. q follows natural gradients, the rest Adam."""
    start = TABLES[targets]
    sizes = start.sizes(num_data)
    return {
        "kind": "dense",
        "natural": True,
        "precision": sizes.precision,
        "max_epochs": sizes.max_epochs,
        "batch_size": sizes.batch_size,
        "lr": 0.1,
        "betas": [0.9, 0.999],
        "schedule": "one_cycle",
        "evaluate_every": 10,
        "model": {
            "num_inducing": sizes.num_inducing,
            "num_layers": sizes.num_layers,
            "lengthscales": "per_feature",
            "nu": sizes.nu,
            "weight_var": start.weight_var,
            "bias_var": start.bias_var,
            "divergence": "exact",
            "skr": {"gamma_fraction": None, "jitter": 0.0},
            "num_samples": 100,
            "output_start": "prior",
        },
    }


def image_settings(kind: str, num_data: int, side: int) -> dict[str, Any]:
    """Images: stages that halve the map until 2 to 4 pixels a side are left, widths that grow."""
    stem_stride = 2 if side >= 24 else 1
    stages = max(1, min(3, math.ceil(math.log2(max(side, 4) / stem_stride / 4)) + 1))
    widths = {1: [64], 2: [64, 64], 3: [24, 48, 96]}[stages]
    shape = {"strides": [2] * stages, "stem_stride": stem_stride, "blocks_per_stage": 1}
    settings: dict[str, Any] = {
        "kind": kind,
        "max_epochs": min(60, epochs_for(IMAGE_STEPS, num_data, IMAGE_BATCH, at_least=5)),
        "batch_size": min(IMAGE_BATCH, num_data),
        **IMAGE_TRAINING,
    }
    if kind == "network":
        factors = {"output": 0.1, "scales": 0.1}
        rates = {"lr": 0.015, "betas": [0.9, 0.999], "lr_factors": factors}
        return {**settings, **rates, "model": {"widths": widths, **shape}}
    model = {"num_inducing": widths, **shape, "num_samples": 100, "whitening": False}
    skr = {"gamma_fraction": None, "jitter": 0.1}
    return {**settings, "model": {**model, **IMAGE_MODEL, "centre": True, "skr": skr}}


def epochs_for(steps: int, num_data: int, batch: int, at_least: int) -> int:
    """Epochs that make about so many steps."""
    return max(at_least, math.ceil(steps / math.ceil(num_data / batch)))


def in_words(settings: dict[str, Any], train: Dataset) -> str:
    """One line on the settings of a run, and how to have others."""
    model = settings["model"]
    points = "images" if train.images else "rows"
    shape = "×".join(map(str, train.x.shape[1:]))
    what = {"conv": "a convolutional DKM", "dense": "a dense DKM", "network": "a network"}
    widths = model.get("num_inducing") or model.get("widths")
    targets = f"{len(train.class_names)} classes" if train.class_names else train.targets
    sizes = "-".join(map(str, widths)) if isinstance(widths, list) else widths
    units = "channels" if settings["kind"] == "network" else "inducing points"
    return (
        f"{len(train):,} {points} of {shape}, {targets}: {what[settings['kind']]} with {sizes} "
        f"{units}, {settings['max_epochs']} epochs of batches of {settings['batch_size']} "
        "(what no option says is chosen to suit the data; --print_config shows all)"
    )
