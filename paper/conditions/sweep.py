"""What the figures on condition numbers are made of: one training of the sine toy for each curve.

The defaults of ``Curve`` are the toy without any regularisation of its Gram layer; each line of the
lists below says what a curve has instead. As published, each curve has other data, so that
neighbouring curves differ by their data too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True)
class Curve:
    """One training of the toy."""

    key: str  # names its folder
    label: str  # in the legend
    gamma: int | None = None  # γ, degrees of freedom of SKR; None: γ = ∞, no noise and no jitter
    nu: float = 0.0  # ν of the Gram layer
    divergence: Literal["taylor", "exact"] = (
        "taylor"  # of the Gram layer; the output layer always has taylor
    )
    data_seed: int = 0
    published: str = "0.0"  # its row in the panel's published curves


@dataclass(frozen=True)
class Panel:
    """Curves that are drawn together."""

    key: str  # names its folder
    title: str
    published: str  # the published curves to compare with, an entry of published.json
    curves: tuple[Curve, ...]
    printed: str | None = None  # what the paper's figure shows instead, which nobody can reproduce


@dataclass(frozen=True)
class Figure:
    """Panels side by side."""

    name: str
    title: str
    epochs: int
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Published:
    """Published condition numbers of one panel, by row.

    Epochs count from 0: the number of epoch e is the one after e + 1 steps of Adam.
    """

    epochs: list[int]  # at which there are points
    rows: dict[str, list[float]]  # the points
    first_epoch_above: dict[str, dict[str, int | None]]  # thresholds 1e8, 1e12, 1e16
    median_last_100: dict[str, float]
    first_61: dict[str, list[float]]  # all of the first 61 epochs; none if not reproducible


def load_published() -> dict[str, Published]:
    """The published curves, by name."""
    text = files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return {name: Published(**entry) for name, entry in json.loads(text).items()}


GAMMA = (
    Curve("gamma_inf", "γ = ∞ (no SKR)"),
    Curve("gamma_100", "γ = P", gamma=100, data_seed=1, published="1.0"),
    Curve("gamma_10", "γ = P/10", gamma=10, data_seed=2, published="10.0"),
    Curve("gamma_1", "γ = P/100", gamma=1, data_seed=3, published="100.0"),
)

NU_TAYLOR = (
    Curve("nu_0", "ν = 0"),
    Curve("nu_1e-15", "ν = 10⁻¹⁵", nu=1e-15, data_seed=1, published="1e-15"),
    Curve("nu_1e-12", "ν = 10⁻¹²", nu=1e-12, data_seed=2, published="1e-12"),
    Curve("nu_1e-9", "ν = 10⁻⁹", nu=1e-9, data_seed=3, published="1e-09"),
    Curve("nu_1e-6", "ν = 10⁻⁶", nu=1e-6, data_seed=4, published="1e-06"),
    Curve("nu_1e-3", "ν = 10⁻³", nu=1e-3, data_seed=5, published="0.001"),
    Curve("nu_1", "ν = 1", nu=1.0, data_seed=6, published="1.0"),
    Curve("nu_1e3", "ν = 10³", nu=1e3, data_seed=7, published="1000.0"),
    Curve("nu_1e6", "ν = 10⁶", nu=1e6, data_seed=8, published="1000000.0"),
)

NU_EXACT = tuple(replace(curve, divergence="exact") for curve in NU_TAYLOR)

BY_GAMMA = Panel("gamma", "SKR's γ, with ν = 0", "gamma_10000", GAMMA)
BY_NU_TAYLOR = Panel("nu_taylor", "ν, with the Taylor KL", "nu_taylor_2000", NU_TAYLOR)
BY_NU_EXACT = Panel("nu_exact", "ν, with the exact KL", "nu_trueKL_2000", NU_EXACT)

FIGURES = {
    "figure-conditions": Figure(
        "figure-conditions",
        "Figure: condition numbers of the learned Gram matrix, sine toy",
        2001,
        (replace(BY_GAMMA, printed="gamma_2000"), BY_NU_TAYLOR, BY_NU_EXACT),
    ),
    "figure-conditions-10k": Figure(
        "figure-conditions-10k",
        "Figure: condition numbers by SKR's γ, five times as long",
        10001,
        (BY_GAMMA,),
    ),
}
"""Fig. conditions_taylor and Fig. condition_numbers_10k of the paper."""
