"""Why a deep kernel machine says what it says: sums over inducing points, pixels and similar data.

Without features or weights, a prediction is a sum over inducing points, and each layer is a learned
similarity between any two data points. Nothing here is an approximation of the model, but for the
similarity of two new points, of which the model knows what the inducing points explain.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from gramian.gram.blocks import GramBlocks
from gramian.gram.linalg import cholesky, solve_lower, solve_upper
from gramian.nn.contract import InducingChain, evaluating
from gramian.nn.frozen.frozen_kernels import copied
from gramian.nn.model import DKM

TOP = "output"
NODES = 16
"""Of the Gauss–Legendre rule along the way from the reference to an image, in the last map."""
INPUT_NODES = 32
"""The same, in the image."""


class LayerFeatures:
    """Features whose dot products are each layer's similarities, as the inducing points see them.

        G_tt' ≈ φ_t · φ_t'  with  φ_t = G_ti V Λ^{−½}  and  G_ii = V Λ Vᵀ

    For images G_ti is the mean over the pixels. ``input``, every layer by name, and ``output``, the
    kernel on which the output's Gaussian process rests. Directions with an eigenvalue below 1e-9 of
    the largest are left out: they are rounding. Later changes of the model do
    not reach them: what does not depend on the data is worked out once.
    """

    def __init__(self, model: DKM) -> None:
        model.check_initialised()
        self.model = copied(model)
        with torch.no_grad():
            self.chain = chain = self.model.inducing_chain({})
        layers = {name: state.ii for name, state in chain.layers.items()}
        inducing = {"input": chain.input_ii, **layers, TOP: chain.top_ii}
        self.projections = {name: _inverse_root(ii) for name, ii in inducing.items()}

    @torch.no_grad()
    def __call__(self, x: Tensor) -> dict[str, Float64[Tensor, "B P"]]:
        """By layer."""
        model, chain = self.model, self.chain
        model.check_data(x)
        gram = model.first_gram(x, chain)
        blocks = {"input": gram.ti}
        for name, layer in model._named_layers():
            gram, _ = layer.data(gram, chain.layers[name])
            blocks[name] = gram.ti
        blocks[TOP] = model.top(gram, chain)[0].ti
        means = {
            name: ti.double().flatten(1, -2).mean(1) if ti.ndim > 2 else ti.double()
            for name, ti in blocks.items()
        }
        return {name: G_ti @ self.projections[name] for name, G_ti in means.items()}


@torch.no_grad()
def _inverse_root(G_ii: Float[Tensor, "P P"]) -> Float64[Tensor, "P P"]:
    """V Λ^{−½}."""
    eigenvalues, V = torch.linalg.eigh(G_ii.double())
    return V * torch.where(eigenvalues > 1e-9 * eigenvalues[-1], eigenvalues, torch.inf).rsqrt()


@torch.no_grad()
def contributions(model: DKM, x: Tensor) -> tuple[Float64[Tensor, "B P C"], Float64[Tensor, "B P"]]:
    """The share of each inducing point in each output, K_tp (K_ii⁻¹ μ)_pc, and K_ti.

    The sum over p is mean_c of q(f). What follows K_ti is taken in float64: shares of both signs
    cancel.
    """
    model.check_initialised()
    model.check_data(x)
    with evaluating(model):
        chain = model.inducing_chain({})
        K, _ = model.top(last_maps(model, x, chain), chain)
        L_K = cholesky(chain.top_ii.double(), what="K_ii")
        mu = model.output._coordinates(chain.output.kernel_factor)[0].double()
        weights = solve_upper(L_K, solve_lower(L_K, mu))
    K_ti = K.ti.double()
    return K_ti[..., None] * weights, K_ti


def pixel_shares(
    model: DKM, x: Tensor, reference: Tensor
) -> tuple[Float[Tensor, "B H W C"], Float[Tensor, "1 C"]]:
    """The share of each pixel of the last map in each output, and the outputs of the reference.

    Between the mean maps of the ``reference`` images and the maps of an image lies a straight line;
    along it the output changes by the sum, over pixels, of integrals of its derivatives (integrated
    gradients, Sundararajan et al. 2017). So the shares of all pixels add up to the output of the
    image less that of the reference.
    """
    if model.pooling is None:
        raise ValueError("pixel shares are for images: this model is for rows")
    check_alone(model)
    model.check_initialised()
    model.check_data(x)
    model.check_data(reference)
    with evaluating(model):
        with torch.no_grad():
            chain = model.inducing_chain({})
            maps, average = last_maps(model, x, chain), last_maps(model, reference, chain)
            start = [value.mean(0, keepdim=True) for value in (average.ti, average.tt_diag)]
            steps = [maps.ti - start[0], maps.tt_diag - start[1]]
            ends = _outputs(model, chain, *start)
        shares = maps.ti.new_zeros(*maps.tt_diag.shape, model.num_outputs)
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            here = [(a + node * d).requires_grad_() for a, d in zip(start, steps, strict=True)]
            with torch.enable_grad():
                f = _outputs(model, chain, *here)
            for c in range(model.num_outputs):
                slopes = torch.autograd.grad(f[:, c].sum(), here, retain_graph=True)
                change = (slopes[0] * steps[0]).sum(-1) + slopes[1] * steps[1]
                shares[..., c] += weight * change
    return shares, ends


def check_alone(model: DKM) -> None:
    """Raise if a prediction depends on its batch: then the shares of one image are not its own."""
    if not model.can_freeze:
        raise ValueError(
            "shares of pixels are for models that normalise by running statistics: with "
            "NormChoice(statistics='batch') the other images of a batch have shares too"
        )


def input_shares(
    model: DKM, x: Float[Tensor, "B C H W"], reference: Float[Tensor, "C H W"], outputs: Tensor
) -> Float[Tensor, "B H W"]:
    """The share of each pixel of the image itself in one output, beside a reference image.

    Integrated gradients along the straight line from the reference to the image, summed over the
    channels: they add up to the output of the image less that of the reference, but for the rule's
    error, since the way through all layers is no polynomial.

    Args:
        model: for images.
        x: images, as the model takes them.
        reference: an image.
        outputs: [B], whose output is explained: one for each image.
    """
    check_alone(model)
    model.check_initialised()
    model.check_data(x)
    step = x - reference
    total = torch.zeros_like(x)
    nodes, weights = np.polynomial.legendre.leggauss(INPUT_NODES)
    with evaluating(model):
        with torch.no_grad():
            chain = model.inducing_chain({})
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            here = (reference + node * step).requires_grad_()
            with torch.enable_grad():
                K, _ = model.top(last_maps(model, here, chain), chain)
                f = model.output.data(K, chain.output).mean
                chosen = f.gather(1, outputs[:, None]).sum()
            total += weight * torch.autograd.grad(chosen, here)[0]
    return (total * step).sum(1)


def last_maps(model: DKM, x: Tensor, chain: InducingChain) -> GramBlocks:
    """The Gram blocks after all layers, before pooling."""
    gram = model.first_gram(x, chain)
    for name, layer in model._named_layers():
        gram, _ = layer.data(gram, chain.layers[name])
    return gram


def _outputs(
    model: DKM, chain: InducingChain, ti: Float[Tensor, "B H W P"], tt_diag: Float[Tensor, "B H W"]
) -> Float[Tensor, "B C"]:
    """The means of q(f), from maps."""
    ii = list(chain.layers.values())[-1].ii if chain.layers else chain.input_ii
    K, _ = model.top(GramBlocks(ii, ti, tt_diag), chain)
    return model.output.data(K, chain.output).mean
