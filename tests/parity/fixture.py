"""Reading the parity fixtures, and comparing with them as tests/fixtures/README.md asks."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gramian import GramBlocks

FOLDER = Path(os.environ.get("GRAMIAN_FIXTURES") or Path(__file__).parents[1] / "fixtures")
LAYER = 1e-9  # relative tolerance of single layers
NETWORK = 1e-8  # of the whole network

Arrays = Mapping[str, Tensor]


def names(start: str) -> list[str]:
    """The fixtures whose names begin with ``start``."""
    found = sorted(path.stem for path in FOLDER.glob(f"{start}*.npz"))
    if not found:
        raise FileNotFoundError(f"no {start}*.npz in the fixture folder {FOLDER}")
    return found


def load(name: str) -> Arrays:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: torch.tensor(arrays[key]) for key in arrays.files}  # on the tests' device


def blocks(arrays: Arrays, prefix: str) -> GramBlocks:
    """The triple ``prefix`` + ii, ti, t, as leaves that collect gradients."""
    ii, ti, t = (arrays[prefix + block].clone().requires_grad_() for block in ("ii", "ti", "t"))
    return GramBlocks(ii, ti, t)


def set_parameters(pairs: Mapping[Tensor, Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in pairs.items():
            parameter.copy_(value.reshape(parameter.shape))


def assert_close(actual: Tensor, expected: Tensor, rtol: float, what: str) -> None:
    """max|a − b| / max|b| ≤ rtol, over the whole array: single entries may be near zero."""
    expected = expected.reshape(actual.shape)
    error = (actual.detach() - expected).abs().max()
    scale = expected.abs().max()
    assert error <= rtol * scale, f"{what}: relative error {error / scale:.2e} > {rtol:.0e}"


def assert_blocks_close(
    actual: GramBlocks, arrays: Arrays, prefix: str, rtol: float = LAYER
) -> None:
    assert_close(actual.ii, arrays[prefix + "ii"], rtol, prefix + "ii")
    assert_close(actual.ti, arrays[prefix + "ti"], rtol, prefix + "ti")
    assert_close(actual.tt_diag, arrays[prefix + "t"], rtol, prefix + "t")


def functional(gram: GramBlocks, arrays: Arrays) -> Tensor:
    """⟨coef_ii, ii⟩ + ⟨coef_ti, ti⟩ + ⟨coef_t, tt⟩."""
    return (
        (arrays["coef_ii"] * gram.ii).sum()
        + (arrays["coef_ti"] * gram.ti).sum()
        + (arrays["coef_t"] * gram.tt_diag).sum()
    )


def assert_gradients(
    scalar: Tensor,
    gram: GramBlocks,
    parameters: Mapping[str, Tensor],
    arrays: Arrays,
    prefix: str = "grad_",
    rtol: float = LAYER,
) -> None:
    """Gradients of ``scalar`` with respect to the input blocks and to named parameters."""
    inputs = {"in_ii": gram.ii, "in_ti": gram.ti, "in_t": gram.tt_diag}
    wanted = {
        name: tensor
        for name, tensor in (inputs | dict(parameters)).items()
        if prefix + name in arrays
    }
    assert wanted, f"the fixture has no {prefix}* arrays"
    gradients = torch.autograd.grad(
        scalar, list(wanted.values()), retain_graph=True, materialize_grads=True
    )
    for name, gradient in zip(wanted, gradients, strict=True):
        symmetric = (gradient + gradient.mT) / 2 if name == "in_ii" else gradient
        assert_close(symmetric, arrays[prefix + name], rtol, prefix + name)


def check_step(
    step: Callable[[GramBlocks], GramBlocks], parameters: Mapping[str, Tensor], arrays: Arrays
) -> None:
    """Outputs, functional and gradients of one step that maps blocks to blocks."""
    set_parameters({parameters[name]: arrays[name] for name in parameters})
    gram = blocks(arrays, "in_")
    out = step(gram)
    assert_blocks_close(out, arrays, "out_")
    scalar = functional(out, arrays)
    assert_close(scalar, arrays["functional"], LAYER, "functional")
    assert_gradients(scalar, gram, parameters, arrays)
