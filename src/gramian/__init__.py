"""Deep kernel machines: representation learning with Gram matrices, without features or weights.

Public names are imported when they are first used, so that ``gramian --help`` need not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gramian.gram.blocks import GramBlocks as GramBlocks
    from gramian.gram.blocks import Marginals as Marginals
    from gramian.gram.conditional import VarianceCheck as VarianceCheck
    from gramian.gram.errors import NegativeVarianceError as NegativeVarianceError
    from gramian.gram.errors import NotPSDError as NotPSDError
    from gramian.gram.errors import NumericalError as NumericalError
    from gramian.gram.skr import SKR as SKR
    from gramian.nn.conv_dkm import ConvDKM as ConvDKM
    from gramian.nn.conv_dkm import ConvDKMConfig as ConvDKMConfig
    from gramian.nn.deep_linear import deep_linear_optimum as deep_linear_optimum
    from gramian.nn.dense_dkm import DenseDKM as DenseDKM
    from gramian.nn.dense_dkm import DenseDKMConfig as DenseDKMConfig
    from gramian.nn.frozen import FrozenDKM as FrozenDKM
    from gramian.nn.full_rank import FullRankConvDKM as FullRankConvDKM
    from gramian.nn.full_rank import FullRankDKM as FullRankDKM
    from gramian.nn.full_rank import FullRankTerms as FullRankTerms
    from gramian.nn.full_rank_config import FullRankConfig as FullRankConfig
    from gramian.nn.full_rank_cost import Cost as Cost
    from gramian.nn.full_rank_cost import estimate as estimate
    from gramian.nn.kernels import KERNELS as KERNELS
    from gramian.nn.kernels import Jitter as Jitter
    from gramian.nn.kernels import Kernel as Kernel
    from gramian.nn.likelihoods import Categorical as Categorical
    from gramian.nn.likelihoods import Gaussian as Gaussian
    from gramian.nn.model import DKM as DKM
    from gramian.nn.network import Network as Network
    from gramian.nn.network import NetworkConfig as NetworkConfig
    from gramian.nn.norm import NormChoice as NormChoice
    from gramian.nn.result import DKMResult as DKMResult
    from gramian.train.estimators.full_rank import FullRankDKMClassifier as FullRankDKMClassifier
    from gramian.train.estimators.full_rank import FullRankDKMRegressor as FullRankDKMRegressor
    from gramian.train.estimators.full_rank import NNGPClassifier as NNGPClassifier
    from gramian.train.estimators.full_rank import NNGPRegressor as NNGPRegressor
    from gramian.train.estimators.images import ConvDKMClassifier as ConvDKMClassifier
    from gramian.train.estimators.tables import DKMClassifier as DKMClassifier
    from gramian.train.estimators.tables import DKMRegressor as DKMRegressor
    from gramian.train.machine import Machine as Machine
    from gramian.train.objective import Terms as Terms
    from gramian.train.objective import objective as objective
    from gramian.train.predictor import Predictor as Predictor

__version__ = "0.1.0.dev0"

_HOME = {
    "DKM": "nn.model",
    "KERNELS": "nn.kernels",
    "SKR": "gram.skr",
    "Categorical": "nn.likelihoods",
    "ConvDKM": "nn.conv_dkm",
    "ConvDKMClassifier": "train.estimators.images",
    "ConvDKMConfig": "nn.conv_dkm",
    "Cost": "nn.full_rank_cost",
    "DKMClassifier": "train.estimators.tables",
    "DKMRegressor": "train.estimators.tables",
    "DKMResult": "nn.result",
    "DenseDKM": "nn.dense_dkm",
    "DenseDKMConfig": "nn.dense_dkm",
    "FrozenDKM": "nn.frozen",
    "FullRankConfig": "nn.full_rank_config",
    "FullRankConvDKM": "nn.full_rank",
    "FullRankDKM": "nn.full_rank",
    "FullRankDKMClassifier": "train.estimators.full_rank",
    "FullRankDKMRegressor": "train.estimators.full_rank",
    "FullRankTerms": "nn.full_rank",
    "Gaussian": "nn.likelihoods",
    "GramBlocks": "gram.blocks",
    "Jitter": "nn.kernels",
    "Kernel": "nn.kernels",
    "Machine": "train.machine",
    "Marginals": "gram.blocks",
    "NNGPClassifier": "train.estimators.full_rank",
    "NNGPRegressor": "train.estimators.full_rank",
    "NegativeVarianceError": "gram.errors",
    "Network": "nn.network",
    "NetworkConfig": "nn.network",
    "NormChoice": "nn.norm",
    "NotPSDError": "gram.errors",
    "NumericalError": "gram.errors",
    "Predictor": "train.predictor",
    "Terms": "train.objective",
    "VarianceCheck": "gram.conditional",
    "deep_linear_optimum": "nn.deep_linear",
    "estimate": "nn.full_rank_cost",
    "objective": "train.objective",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOME:
        raise AttributeError(f"module 'gramian' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gramian.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
