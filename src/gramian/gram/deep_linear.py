"""The deep linear kernel machine: Gram matrices at the global optimum, without training.

With K(G) = G, L Gram layers of one ν, the exact divergence and C Gaussian outputs Y, the objective
of a full-rank model (Eq. dkm_obfr) is, up to a constant and with M = G_L + σ² I,

    ℒ = −½ (C logdet M + tr M⁻¹ Y Yᵀ) − ½ ν Σ_ℓ (tr G_{ℓ−1}⁻¹ G_ℓ − logdet G_{ℓ−1}⁻¹ G_ℓ − P).

**Inner layers.** dℒ/dG_ℓ = 0 for ℓ < L is G_{ℓ−1}⁻¹ = G_ℓ⁻¹ G_{ℓ+1} G_ℓ⁻¹, so G_{ℓ+1} is
G_ℓ G_{ℓ−1}⁻¹ G_ℓ and G_ℓ = G_0 (G_0⁻¹ G_1)^ℓ: a geometric sequence. If G_0 = I, G_ℓ = A^ℓ.

**Last layer**, G_0 = I: ν (A^{1−L} − A^{−L}) = M⁻¹ (Y Yᵀ) M⁻¹ − C M⁻¹. So Y Yᵀ is a function of A,
they share eigenvectors, and each eigenvalue λ of Y Yᵀ gives its a, with m = a^L + σ²:

    ν (a − 1) m² + C m a^L = λ a^L;    without noise:  ν a^{L+1} + (C − ν) a^L = λ.

**Which stationary point.** Without noise there is one positive root if λ > 0 or ν > C: the left
side first falls below 0, if ν > C, and then rises for ever. It is the global optimum, because −ℒ
is convex along the geodesics of positive definite matrices: logdet is linear there, and tr A⁻¹ B
is jointly convex, being ⟨v, (A⁻¹ ⊗ B) v⟩ with v = vec I, and # the geometric mean,
(A₁ # A₂)⁻¹ ⊗ (B₁ # B₂) = (A₁⁻¹ ⊗ B₁) # (A₂⁻¹ ⊗ B₂) and ⟨v, (X # Y) v⟩² ≤ ⟨v, X v⟩ ⟨v, Y v⟩.
For λ = 0 and ν ≤ C there is no optimum: ℒ only grows as a → 0, where G is singular.

With noise ℒ is bounded, and goes to −∞ where a Gram matrix becomes singular or infinite, so there
is a global optimum for every ν > 0, and it is stationary; but the equation may have several roots,
of which the one is taken with the largest share of ℒ,

    φ(a) = −½ (C log m + λ/m) − ½ ν L (a − log a − 1).

**G_0 in general.** Let G_0 = R Rᵀ and write G_ℓ = R A^ℓ Rᵀ. Without noise R drops out of ℒ if Y
becomes R⁻¹ Y. Noise would become σ² (Rᵀ R)⁻¹, which is a multiple of I only if G_0 is: G_0 = g I.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from numpy.polynomial import Polynomial
from torch import Tensor

from gramian.gram.errors import within
from gramian.gram.linalg import cholesky, solve_lower

SINGULAR = 1e-12
"""Below this fraction of the largest, an eigenvalue of Y Yᵀ is rounding, and counts as 0."""


def deep_linear_optimum(
    input_gram: Float[Tensor, "P P"],
    targets: Float[Tensor, "P C"],
    nu: float,
    num_layers: int,
    noise_var: float = 0.0,
) -> list[Float[Tensor, "P P"]]:
    """G_1 … G_L that maximise the objective of a deep linear model (see the module's text).

    G_ℓ = R V diag(a)^ℓ Vᵀ Rᵀ, with G_0 = R Rᵀ and R⁻¹ Y Yᵀ R⁻ᵀ = V diag(λ) Vᵀ, in float64 whatever
    the inputs are: in float32 a λ of 0 cannot be told from a small one.

    Args:
        input_gram: G_0, positive definite; with noise a multiple of the identity.
        targets: Y.
        nu: ν of all layers.
        num_layers: L.
        noise_var: σ², fixed.

    Raises:
        ValueError: there is no optimum, or none in closed form.

    Example:
        >>> import torch
        >>> from gramian import deep_linear_optimum
        >>> G_0, Y = torch.eye(1), torch.tensor([[8.0]])  # ν = C, so a^3 = λ = 64
        >>> deep_linear_optimum(G_0, Y, nu=1.0, num_layers=2)
        [tensor([[4.]]), tensor([[16.]])]
    """
    G_0, Y = (values.detach().cpu().double() for values in (input_gram, targets))
    C = Y.shape[1]
    if not 0 < nu < math.inf or num_layers < 1 or noise_var < 0:
        raise ValueError(
            "nu must be positive and finite, num_layers 1 or more and noise_var 0 or more, "
            f"got {nu}, {num_layers} and {noise_var}"
        )
    with within("deep_linear_optimum"):
        R = cholesky(G_0, what="the input Gram matrix")
    g = float(G_0[0, 0])
    eye = torch.eye(len(G_0), dtype=torch.float64)
    if noise_var > 0 and not torch.allclose(G_0, g * eye, rtol=0.0, atol=1e-12 * g):
        raise ValueError(
            f"with noise_var = {noise_var:g} there is a closed form only for an input Gram matrix "
            "g·I; this one is no multiple of the identity. Take noise_var = 0, or train the model"
        )
    whitened = solve_lower(R, Y)
    eigenvalues, V = torch.linalg.eigh(whitened @ whitened.mT)
    eigenvalues = torch.where(eigenvalues > SINGULAR * eigenvalues[-1], eigenvalues, 0.0)
    num_zeros = int((eigenvalues == 0).sum())
    if noise_var == 0 and num_zeros and nu <= C:
        raise ValueError(
            f"no optimum: {num_zeros} eigenvalues of Y Yᵀ are 0 and nu = {nu:g} is not above the "
            f"number of outputs C = {C}, so the Gram matrices become singular there. Take nu > C, "
            "noise_var > 0, or as many outputs as there are points"
        )
    roots = [best_root(float(lam), nu, num_layers, C, noise_var / g) for lam in eigenvalues]
    a = torch.tensor(roots, dtype=torch.float64)
    powers = range(1, num_layers + 1)
    return [((R @ V * a**power) @ (R @ V).mT).to(input_gram) for power in powers]


def best_root(lam: float, nu: float, L: int, C: int, noise_var: float) -> float:
    """a > 0 with the largest φ(a), among the roots of the equation in a.

    Of all roots the real part is tried, because rounding may move a multiple root off the real
    line. That does no harm: nowhere is φ larger than at its maximum.
    """
    a = Polynomial([0.0, 1.0])
    if noise_var > 0:
        m = a**L + noise_var
        equation = nu * (a - 1) * m**2 + (C * m - lam) * a**L
    else:
        equation = (nu * a + (C - nu)) * a**L - lam
    real = equation.roots().real

    def share(a: float) -> float:
        m = a**L + noise_var
        return -0.5 * (C * math.log(m) + lam / m) - 0.5 * nu * L * (a - math.log(a) - 1)

    return max((float(root) for root in real if root > 0), key=share)
