"""Layers whose way for the data PyTorch compiles, region by region: a whole model takes minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gramian.nn.layers import DKMLayer

BACKEND = "inductor"
MOST_SHAPES = 64  # of one region, each compiled once


def compile_(model: nn.Module, whole: bool = True) -> None:
    """Compile the data's way through each layer, when it is first met, once for each shape.

    ``whole``: without a break, which is an error. Between processes, normalisations have to meet.
    """
    for module in model.modules():
        if isinstance(module, DKMLayer):
            compiled = torch.compile(module.data, fullgraph=whole, dynamic=False, backend=BACKEND)
            module.data = compiled  # type: ignore[method-assign]


def undo_compile_(model: nn.Module) -> None:
    """The layers as they were."""
    for module in model.modules():
        if isinstance(module, DKMLayer):
            vars(module).pop("data", None)


@contextmanager
def compiling() -> Iterator[None]:
    """Within this context a region may have as many shapes as a deep model has layers."""
    with torch._dynamo.config.patch(recompile_limit=MOST_SHAPES):
        yield


@contextmanager
def as_written() -> Iterator[None]:
    """Within this context nothing is compiled, so that an error says where it is."""
    with torch.compiler.set_stance("force_eager"):
        yield
