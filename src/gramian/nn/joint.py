"""The joint distribution of the outputs at several data points, with all of their covariance.

Models keep of G_tt only what the likelihood needs, the diagonal. Here all of it is taken through
the layers: the new points are handled as pixels of one image, which all meet (``FullBlocks``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from gramian.gram.blocks import GramBlocks
from gramian.gram.conditional import Conditional, VarianceCheck
from gramian.gram.errors import within
from gramian.gram.fast.passes import translate
from gramian.gram.full_blocks import FullBlocks, PairConvolution, condition_full, pool_inducing
from gramian.gram.linalg import solve_lower
from gramian.nn.contract import evaluating
from gramian.nn.full_rank.full_rank_dkm import FullRankModel
from gramian.nn.full_rank.full_rank_layer import kernel_of_pairs
from gramian.nn.layers import DKMLayer, LayerState
from gramian.nn.model import DKM
from gramian.nn.steps.centre import Centre, CentredState
from gramian.nn.steps.inputs import DenseInput
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.norm import GramNorm
from gramian.nn.steps.output import OutputState

ROWS = 256  # whose kernel is worked out at once


@dataclass(frozen=True, slots=True)
class Joint:
    """q(f) of several data points together; the outputs are independent of each other."""

    mean: Float[Tensor, "B C"]
    cov: Float[Tensor, "#C B B"]  # of each output, or one for all

    def sample(self, num_samples: int, generator: torch.Generator) -> Float[Tensor, "S B C"]:
        """Draws of f, whole functions each; variances as small as rounding count as 0."""
        outputs, (B, C) = len(self.cov), self.mean.shape
        shape = (outputs, B, C // outputs, num_samples)
        z = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        z = z.cpu().flatten(2)
        drawn = torch.stack([_times_root(*pair) for pair in zip(self.cov, z, strict=True)])
        drawn = drawn.view(shape).permute(3, 1, 0, 2).flatten(2)  # [S, B, C]
        return self.mean + drawn.to(self.mean)


def _times_root(cov: Float[Tensor, "B B"], z: Float64[Tensor, "B S"]) -> Float64[Tensor, "B S"]:
    """R z with R Rᵀ = cov, by Cholesky with pivots: it ends where the variances left are rounding.

    So it needs neither full rank nor eigenvalues, which cost fifty times as much.
    """
    from scipy.linalg.lapack import dpstrf

    least = cov.diagonal().max().item() * torch.finfo(cov.dtype).eps ** (2 / 3)
    matrix = np.array(cov.mT.cpu().numpy(), dtype=np.float64)
    factor, order, rank, _ = dpstrf(matrix, lower=1, tol=least, overwrite_a=1)
    root = torch.from_numpy(factor.T)[:rank].triu_()
    drawn = torch.empty_like(z)
    drawn[torch.from_numpy(order).long() - 1] = root.mT @ z[:rank]
    return drawn


@torch.no_grad()
def joint(model: DKM | FullRankModel, x: Tensor) -> Joint:
    """q(f) of the data points ``x`` together. Memory grows with the square of their number.

    For every model without inducing points, and for those of rows.
    """
    model.check_data(x)
    if isinstance(model, FullRankModel):
        return _of_full_rank(model, x)
    model.check_initialised()
    with evaluating(model):
        return _of_rows(model, x)


def _of_rows(model: DKM, x: Tensor) -> Joint:
    """A model of rows, with inducing points: ``DKM.propagate`` with all of G_tt."""
    if not isinstance(model.inputs, DenseInput) or model.pooling is not None:
        raise ValueError("the joint distribution is for rows: this model is for images")
    chain, points = model.inducing_chain({}), model._whiten(x)
    ti, _ = model.inputs.rows(points)
    G = FullBlocks(chain.input_ii, ti[None], model.inputs.products(points)[None])
    for name, layer in model._named_layers():
        if type(layer) is not DKMLayer or layer.conv is not None:
            kind = type(layer).__name__
            raise ValueError(f"the joint distribution cannot be taken through {name}, a {kind}")
        with within(name):
            G = _layer(layer, G, chain.layers[name])
    K = _normalised(model.norm, _kernel(model.kernel, G, chain.K_ii), chain.top_ii)
    with within("output"):
        return _output(K, chain.output, model.output.variance_check)


def _layer(layer: DKMLayer, G: FullBlocks, state: LayerState) -> FullBlocks:
    """(centring →) kernel → Gram layer → normalisation."""
    if layer.centre is not None and state.centred is not None:
        G = _centred(layer.centre, G, state.centred)
    K = _kernel(layer.kernel, G, state.phi_ii)
    G = _conditioned(K, state.conditional, layer.gram.unexplained == "dropped")
    G = FullBlocks(G.ii, G.ti, _checked(G.tt, layer.gram.variance_check))
    return _normalised(layer.norm, G, state.ii)


def _centred(centre: Centre, G: FullBlocks, state: CentredState) -> FullBlocks:
    """``Centre.data`` of all of G_tt: G_tt − d 1ᵀ − 1 dᵀ + m, with the diagonal that it has."""
    ti, d = translate(G.ti[0], centre.weights, state.m - state.b)
    tt = G.tt[0] - d[:, None] - d + state.m
    diagonal = centre.squares(G.tt[0].diagonal(), d, state.m)
    return FullBlocks(state.ii, ti[None], (tt + (diagonal - tt.diagonal()).diag())[None])


def _kernel(kernel: Kernel, G: FullBlocks, K_ii: Float[Tensor, "P P"]) -> FullBlocks:
    """As ``kernel_of_pairs``, some rows at once: a kernel needs several times the memory."""
    g_tt, K_tt = G.tt.diagonal(dim1=1, dim2=2), torch.empty_like(G.tt)
    for start in range(0, G.tt.shape[1], ROWS):
        rows = slice(start, start + ROWS)
        K_tt[:, rows] = kernel.every(G.tt[:, rows], g_tt[:, rows, None], g_tt[:, None])
    K = kernel.data(GramBlocks(G.ii, G.ti, g_tt), K_ii)
    K_tt.diagonal(dim1=1, dim2=2).copy_(K.tt_diag)
    return FullBlocks(K_ii, K.ti, K_tt)


def _conditioned(K: FullBlocks, conditional: Conditional, dropped: bool) -> FullBlocks:
    """As ``condition_full``, in place; what is not explained may be dropped: G_tt = U Uᵀ."""
    X = conditional.whiten(K.ti[0])
    U = X @ conditional.whitened_factor
    rest = K.tt[0].zero_() if dropped else K.tt[0].addmm_(X, X.mT, alpha=-1)
    return FullBlocks(conditional.ii, conditional.cross(U)[None], rest.addmm_(U, U.mT)[None])


def _normalised(norm: GramNorm, G: FullBlocks, ii: Float[Tensor, "P P"]) -> FullBlocks:
    """``GramNorm.data`` of all of G_tt."""
    n_t = norm.data_mean(G.tt[0].diagonal())
    u, v = norm.factors(G.ii, n_t)
    column = v[..., None]  # one, or one per data point
    return FullBlocks(ii, column * u * G.ti, column * v * G.tt)


def _output(K: FullBlocks, state: OutputState, check: VarianceCheck) -> Joint:
    """``GPOutput.data`` with K_tt − X Xᵀ + U Uᵀ."""
    X = solve_lower(state.kernel_factor, K.ti[0].mT).mT
    U = X @ state.whitened_factor
    K.tt[0].addmm_(X, X.mT, alpha=-1).addmm_(U, U.mT)
    return Joint(X @ state.whitened_mean, _checked(K.tt, check))


def _of_full_rank(model: FullRankModel, x: Tensor) -> Joint:
    """A model without inducing points, of rows or of images."""
    chain, B = model.inducing_chain(), len(x)
    T, X = (model._points(data).flatten(0, 1) for data in (x, model.train_inputs))
    N = X.shape[1]
    G = FullBlocks(chain.input_ii, (T @ X.mT)[None] / N, (T @ T.mT)[None] / N)
    for name, layer in model._named_layers():
        state = chain.layers[name]
        with within(name):
            K = kernel_of_pairs(layer.kernel, G, state.phi_ii)
            K = K if layer.conv is None else _convolved(layer.conv, K, B, state.K_ii)
            if state.conditional is not None:
                K = condition_full(K, state.conditional)
            G = FullBlocks(K.ii, K.ti, _checked(K.tt, layer.gram.variance_check))
    pooled_ti = G.ti[0].unflatten(0, (B, -1)).unflatten(2, (len(chain.pooled_ii), -1)).mean((1, 3))
    pooled_tt = pool_inducing(G.tt[0], model.num_pixels)
    pooled = FullBlocks(chain.pooled_ii, pooled_ti[None], pooled_tt[None])
    K = kernel_of_pairs(model.kernel, pooled, chain.top_ii)
    with within("output"):
        if model.output is not None:
            at_training = model.output.inducing(chain.top_ii)
            return _output(K, at_training, model.output.variance_check)
        gp = model._exact_gp(chain)
        X_t = solve_lower(gp.factor, K.ti[0].mT.expand(*gp.factor.shape[:-1], -1))  # L⁻¹ K_it
        mean = X_t.mT @ gp.whitened_targets
        cov = _checked(K.tt - X_t.mT @ X_t, model.config.variance_check)
        return Joint(mean if mean.ndim == 2 else mean[..., 0].mT, cov)


def _convolved(
    conv: PairConvolution, K: FullBlocks, B: int, K_ii: Float[Tensor, "n n"]
) -> FullBlocks:
    """Γ(K) of all pixels of ``B`` images together."""
    ti = K.ti[0].unflatten(0, (B, -1))
    blocks = K.tt[0].unflatten(0, (B, -1)).unflatten(2, (B, -1))  # [B, S, B, S]
    own = blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0)
    ti = conv.data(FullBlocks(K.ii, ti, own), K_ii).ti
    return FullBlocks(K_ii, ti.flatten(0, 1)[None], conv.inducing(K.tt[0])[None])


def _checked(
    tt: Float[Tensor, "outputs B B"], check: VarianceCheck
) -> Float[Tensor, "outputs B B"]:
    """With the variance check's word on the diagonals."""
    diagonals = tt.diagonal(dim1=1, dim2=2)
    diagonals.copy_(check(diagonals)[0])
    return tt
