"""Deep kernel machines: representation learning with Gram matrices, without features or weights.

Public names are imported when they are first used, so that ``gramian --help`` need not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gramian._version import __version__ as __version__

if TYPE_CHECKING:
    from gramian.gram.blocks import GramBlocks as GramBlocks
    from gramian.gram.blocks import Marginals as Marginals
    from gramian.gram.conditional import VarianceCheck as VarianceCheck
    from gramian.gram.deep_linear import deep_linear_optimum as deep_linear_optimum
    from gramian.gram.errors import NegativeVarianceError as NegativeVarianceError
    from gramian.gram.errors import NotPSDError as NotPSDError
    from gramian.gram.errors import NumericalError as NumericalError
    from gramian.gram.skr import SKR as SKR
    from gramian.nn.baseline.network import Network as Network
    from gramian.nn.baseline.network import NetworkConfig as NetworkConfig
    from gramian.nn.contract import DKMResult as DKMResult
    from gramian.nn.conv_dkm import ConvDKM as ConvDKM
    from gramian.nn.conv_dkm import ConvDKMConfig as ConvDKMConfig
    from gramian.nn.dense_dkm import DenseDKM as DenseDKM
    from gramian.nn.dense_dkm import DenseDKMConfig as DenseDKMConfig
    from gramian.nn.frozen.frozen_dkm import FrozenDKM as FrozenDKM
    from gramian.nn.full_rank.full_rank_config import FullRankConfig as FullRankConfig
    from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM as FullRankConvDKM
    from gramian.nn.full_rank.full_rank_dkm import FullRankDKM as FullRankDKM
    from gramian.nn.full_rank.full_rank_dkm import FullRankTerms as FullRankTerms
    from gramian.nn.layers import DKMLayer as DKMLayer
    from gramian.nn.layers import Layer as Layer
    from gramian.nn.likelihoods import LIKELIHOODS as LIKELIHOODS
    from gramian.nn.likelihoods import Categorical as Categorical
    from gramian.nn.likelihoods import Gaussian as Gaussian
    from gramian.nn.likelihoods import Likelihood as Likelihood
    from gramian.nn.likelihoods import PerTarget as PerTarget
    from gramian.nn.likelihoods import Poisson as Poisson
    from gramian.nn.likelihoods import StudentT as StudentT
    from gramian.nn.model import DKM as DKM
    from gramian.nn.steps.kernels import KERNELS as KERNELS
    from gramian.nn.steps.kernels import Bandwidth as Bandwidth
    from gramian.nn.steps.kernels import Jitter as Jitter
    from gramian.nn.steps.kernels import Kernel as Kernel
    from gramian.nn.steps.norm import NormChoice as NormChoice
    from gramian.train.cost.full_rank_cost import Cost as Cost
    from gramian.train.cost.full_rank_cost import estimate as estimate
    from gramian.train.cost.machine import Machine as Machine
    from gramian.train.data.dataset import Dataset as Dataset
    from gramian.train.data.dataset import Splits as Splits
    from gramian.train.estimators.full_rank_estimators import (
        FullRankDKMClassifier as FullRankDKMClassifier,
    )
    from gramian.train.estimators.full_rank_estimators import (
        FullRankDKMRegressor as FullRankDKMRegressor,
    )
    from gramian.train.estimators.full_rank_estimators import NNGPClassifier as NNGPClassifier
    from gramian.train.estimators.full_rank_estimators import NNGPRegressor as NNGPRegressor
    from gramian.train.estimators.image_estimators import ConvDKMClassifier as ConvDKMClassifier
    from gramian.train.estimators.table_estimators import DKMClassifier as DKMClassifier
    from gramian.train.estimators.table_estimators import DKMRegressor as DKMRegressor
    from gramian.train.fit import fit as fit
    from gramian.train.objective import Terms as Terms
    from gramian.train.objective import objective as objective
    from gramian.train.predict.predictor import Predictor as Predictor


_HOME = {
    "DKM": "nn.model",
    "KERNELS": "nn.steps.kernels",
    "LIKELIHOODS": "nn.likelihoods",
    "SKR": "gram.skr",
    "Categorical": "nn.likelihoods",
    "ConvDKM": "nn.conv_dkm",
    "ConvDKMClassifier": "train.estimators.image_estimators",
    "ConvDKMConfig": "nn.conv_dkm",
    "Cost": "train.cost.full_rank_cost",
    "DKMClassifier": "train.estimators.table_estimators",
    "DKMRegressor": "train.estimators.table_estimators",
    "DKMLayer": "nn.layers",
    "DKMResult": "nn.contract",
    "Dataset": "train.data.dataset",
    "DenseDKM": "nn.dense_dkm",
    "DenseDKMConfig": "nn.dense_dkm",
    "FrozenDKM": "nn.frozen.frozen_dkm",
    "FullRankConfig": "nn.full_rank.full_rank_config",
    "FullRankConvDKM": "nn.full_rank.full_rank_dkm",
    "FullRankDKM": "nn.full_rank.full_rank_dkm",
    "FullRankDKMClassifier": "train.estimators.full_rank_estimators",
    "FullRankDKMRegressor": "train.estimators.full_rank_estimators",
    "FullRankTerms": "nn.full_rank.full_rank_dkm",
    "Gaussian": "nn.likelihoods",
    "GramBlocks": "gram.blocks",
    "Bandwidth": "nn.steps.kernels",
    "Jitter": "nn.steps.kernels",
    "Kernel": "nn.steps.kernels",
    "Layer": "nn.layers",
    "Likelihood": "nn.likelihoods",
    "Machine": "train.cost.machine",
    "Marginals": "gram.blocks",
    "NNGPClassifier": "train.estimators.full_rank_estimators",
    "NNGPRegressor": "train.estimators.full_rank_estimators",
    "NegativeVarianceError": "gram.errors",
    "Network": "nn.baseline.network",
    "NetworkConfig": "nn.baseline.network",
    "NormChoice": "nn.steps.norm",
    "NotPSDError": "gram.errors",
    "NumericalError": "gram.errors",
    "PerTarget": "nn.likelihoods",
    "Poisson": "nn.likelihoods",
    "Predictor": "train.predict.predictor",
    "Splits": "train.data.dataset",
    "StudentT": "nn.likelihoods",
    "Terms": "train.objective",
    "VarianceCheck": "gram.conditional",
    "deep_linear_optimum": "gram.deep_linear",
    "estimate": "train.cost.full_rank_cost",
    "fit": "train.fit",
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
