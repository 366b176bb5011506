"""A trained model for prediction only: what ``DKM.freeze`` returns."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gramian.gram.blocks import Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.gram.errors import within
from gramian.nn.frozen.frozen_kernels import copied
from gramian.nn.frozen.frozen_layers import FrozenOutput
from gramian.nn.steps.inputs import DenseInput, PatchInput
from gramian.nn.steps.pooling import PooledState, Pooling
from gramian.nn.steps.whitening import ZCA, AnyZCA


class FrozenWhitening(nn.Module):
    """Whitening of whole images as one affine map of them, with channels last."""

    matrix: Tensor
    bias: Tensor

    def __init__(self, whitening: ZCA) -> None:
        super().__init__()
        shape = whitening.image_shape
        D = whitening.matrix.shape[0]
        start = whitening(torch.zeros(1, *shape).to(whitening.matrix))
        std, white_std = (
            deviation[:, None, None].expand(shape).flatten()
            for deviation in (whitening.channel_std, whitening.white_std)
        )
        order = torch.arange(D).view(shape).permute(1, 2, 0).flatten()  # pixels, then channels
        matrix = whitening.matrix / std[:, None] / white_std
        self.register_buffer("matrix", matrix[order][:, order].contiguous())
        self.register_buffer("bias", start.flatten()[order])

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Whiten images."""
        pixels = images.permute(0, 2, 3, 1)
        white = torch.addmm(self.bias, pixels.flatten(1), self.matrix)
        return white.view(pixels.shape).permute(0, 3, 1, 2)


class FrozenDKM(nn.Module):
    """Data → marginals: those of the model in evaluation mode, without gradients.

        K_ii = T Tᵀ and G̃_ii = T diag(d) Tᵀ, so Y = K_ti T⁻ᵀ, G_ti = Y diag(d) Tᵀ

    The data are [B, channels, H, W] or [B, features], the marginals [B, C].

    The file ``frozen_layers`` says how. Later changes of the model do not reach the frozen form.
    Negative variances are an error, or count as 0, as the model's ``variance_check`` has it.

    Args:
        whitening, inputs, pooling: of the model (copied).
        layers: frozen, by name.
        pooled: what the pooling needs of the inducing points.
        output: frozen.
        variance_check: of the layers and the output.

    Example:
        >>> import torch
        >>> from gramian import DenseDKM, DenseDKMConfig
        >>> x, draw = torch.eye(6, 3), torch.Generator().manual_seed(0)
        >>> model = DenseDKM.from_config(DenseDKMConfig(num_features=3, num_inducing=5))
        >>> model.initialise_(x, draw)
        >>> frozen = model.freeze()  # a FrozenDKM
        >>> torch.allclose(frozen(x).mean, model.predict(x).mean, atol=1e-4)
        True
    """

    inverse_factor: Tensor | None

    def __init__(
        self,
        *,
        whitening: AnyZCA | None,
        inputs: DenseInput | PatchInput,
        layers: dict[str, nn.Module],
        pooling: Pooling | None,
        pooled: PooledState,
        output: FrozenOutput,
        variance_check: VarianceCheck,
    ) -> None:
        super().__init__()
        self.whitening: nn.Module | None = whitening
        if isinstance(whitening, ZCA):
            self.whitening = FrozenWhitening(whitening)
        elif whitening is not None:
            self.whitening = copied(whitening)
        self.inputs = copied(inputs)
        self.layers = nn.ModuleDict(layers)
        self.pooling = None if pooling is None else copied(pooling)
        self.register_buffer("inverse_factor", pooled.inverse_factor)
        self.output = output
        self.variance_check = variance_check
        self.eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Marginals:
        """Marginals of a batch, ``[B, *data_shape]``."""
        data = self.inputs.rows(x if self.whitening is None else self.whitening(x))
        variances: dict[str, Tensor] = {}
        for name, layer in self.layers.items():
            data, seen = layer(data)
            variances.update((f"{name}{path}", variance) for path, variance in seen.items())
        if self.pooling is not None:
            ti, tt_diag = data
            data = self.pooling.pool(ti.flatten(1, -2), tt_diag.flatten(1), self.inverse_factor)
            variances["pooling"] = data[1]
            if self.variance_check.clamp:
                data = data[0], data[1].clamp_min(0.0)
        q = self.output(data)
        if torch.compiler.is_exporting():
            return Marginals(q.mean, q.var.clamp_min(0.0)) if self.variance_check.clamp else q
        self._check(variances)
        with within("output"):
            var, _ = self.variance_check(q.var)
        return Marginals(q.mean, var)

    def _check(self, variances: dict[str, Tensor]) -> None:
        """Raise where the model would have: at the first layer with a bad variance.

        One look at the smallest of all; most of the time there is nothing more to see.
        """
        if variances:
            smallest = torch.cat([variance.flatten() for variance in variances.values()]).amin()
            if not smallest > self.variance_check.threshold:  # or NaN
                for path, variance in variances.items():
                    with within(path):
                        self.variance_check(variance)
