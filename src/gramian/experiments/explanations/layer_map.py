"""Kernel PCA of the learned Gram matrix at each layer: how classes come apart on the way up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from numpy.typing import NDArray

from gramian.experiments.explanations.pictures import data_url, sprite_of
from gramian.experiments.plots.style import STYLE, Figure, class_labels, set_title
from gramian.experiments.web_page import render

Array = NDArray[np.float64]
NEIGHBOURS = 10


@dataclass(frozen=True)
class LayerMap:
    """One layer's similarities in two dimensions.

    Attributes:
        name: of the layer.
        places: of the data points, [N, 2]; each map is turned to fit the one before it.
        explained: share of the variance of the features that two dimensions show.
        agreement: share of the nearest neighbours, under the layer's kernel, of the same class.
    """

    name: str
    places: Array
    explained: float
    agreement: float


def layer_maps(features: Mapping[str, Array], labels: NDArray[np.int64]) -> list[LayerMap]:
    """From the features of each layer (``Predictor.features``), in order."""
    maps: list[LayerMap] = []
    for name, phi in features.items():
        places, explained = principal_places(phi)
        if maps:
            places = turned_to(places, maps[-1].places)
        maps.append(LayerMap(name, places, explained, same_class_neighbours(phi, labels)))
    return maps


def principal_places(phi: Array) -> tuple[Array, float]:
    """The first two principal components of kernel PCA, of mean square 1, and their share.

    The dot products of the centred features are the centred Gram matrix, so its eigenvectors are
    the left singular vectors of the features.
    """
    centred = phi - phi.mean(0)
    U, S, _ = np.linalg.svd(centred, full_matrices=False)
    variances = S**2
    places = U[:, :2] * S[:2]
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    scale = math.sqrt(float((places**2).sum(1).mean())) or 1.0
    return places / scale, float(variances[:2].sum() / max(variances.sum(), 1e-300))


def turned_to(places: Array, before: Array) -> Array:
    """Turned and mirrored so that each point moves as little as possible (Procrustes)."""
    U, _, Vt = np.linalg.svd(places.T @ before)
    return places @ (U @ Vt)


def same_class_neighbours(phi: Array, labels: NDArray[np.int64], count: int = NEIGHBOURS) -> float:
    """Share of each point's ``count`` nearest others, by the cosine, that have its class."""
    unit = phi / np.maximum(np.linalg.norm(phi, axis=1, keepdims=True), 1e-300)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    count = min(count, len(phi) - 1)
    nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    return float((labels[nearest] == labels[:, None]).mean())


def colours_of(number: int) -> list[str]:
    """As different as they can be, one per class."""
    chosen = matplotlib.colormaps["tab10" if number <= 10 else "turbo"]
    values = range(number) if number <= 10 else np.linspace(0.05, 0.95, number)
    return [matplotlib.colors.to_hex(chosen(value)) for value in values]


@matplotlib.rc_context(STYLE)
def picture(
    maps: Sequence[LayerMap], labels: NDArray[np.int64], class_names: Sequence[str], title: str
) -> Figure:
    """One panel per layer."""
    columns = min(4, len(maps))
    rows = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(2.6 * columns, 2.7 * rows + 0.8))
    set_title(figure, title)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    colours, shown = colours_of(len(class_names)), class_labels(class_names)
    for axes, each in zip(panels, maps, strict=False):
        for number, (name, colour) in enumerate(zip(shown.texts, colours, strict=True)):
            mine = each.places[labels == number]
            axes.plot(mine[:, 0], mine[:, 1], ".", markersize=2.5, color=colour, label=name)
        axes.set_title(f"{each.name}\n{100 * each.agreement:.0f} % of neighbours agree", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
    for axes in panels[len(maps) :]:
        axes.set_axis_off()
    handles, texts = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, texts, loc="outside lower center", ncols=5, markerscale=4, fontsize=8
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_fontfamily(shown.fonts)
    return figure


def page(
    maps: Sequence[LayerMap],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    title: str,
    images: NDArray[np.uint8] | None,
) -> str:
    """An interactive page: one map at a time, points that move from layer to layer, and images."""
    facts = {
        "layers": [
            {
                "name": each.name,
                "places": np.round(each.places, 3).tolist(),
                "agreement": each.agreement,
                "explained": each.explained,
            }
            for each in maps
        ],
        "labels": labels.tolist(),
        "classes": list(class_names),
        "colours": colours_of(len(class_names)),
        "size": [0, 0] if images is None else [images.shape[3], images.shape[2]],
        "columns": 0 if images is None else math.ceil(math.sqrt(len(images))),
    }
    sprite = "" if images is None else data_url(sprite_of(images))
    files = ("map.html.j2", "explanations.css", "map.js")
    return render(str(__package__), *files, title=title, facts_json=facts, sprite=sprite)
