"""Deep kernel machines: representation learning with Gram matrices, without features or weights."""

from gramian.gram.blocks import GramBlocks, Marginals
from gramian.gram.conditional import VarianceCheck
from gramian.gram.errors import NegativeVarianceError, NotPSDError, NumericalError
from gramian.gram.skr import SKR
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.nn.dense_dkm import DenseDKM, DenseDKMConfig
from gramian.nn.kernels import KERNELS, Jitter, Kernel
from gramian.nn.likelihoods import Categorical, Gaussian
from gramian.nn.model import DKM, DKMResult
from gramian.nn.norm import NormChoice
from gramian.train.objective import Terms, objective

__version__ = "0.1.0.dev0"

__all__ = [
    "DKM",
    "KERNELS",
    "SKR",
    "Categorical",
    "ConvDKM",
    "ConvDKMConfig",
    "DKMResult",
    "DenseDKM",
    "DenseDKMConfig",
    "Gaussian",
    "GramBlocks",
    "Jitter",
    "Kernel",
    "Marginals",
    "NegativeVarianceError",
    "NormChoice",
    "NotPSDError",
    "NumericalError",
    "Terms",
    "VarianceCheck",
    "__version__",
    "objective",
]
