"""Deep kernel machines as scikit-learn estimators, for tables and for images."""

from gramian.train.estimators.full_rank import (
    FullRankDKMClassifier,
    FullRankDKMRegressor,
    NNGPClassifier,
    NNGPRegressor,
)
from gramian.train.estimators.images import ConvDKMClassifier
from gramian.train.estimators.tables import DKMClassifier, DKMRegressor

__all__ = [
    "ConvDKMClassifier",
    "DKMClassifier",
    "DKMRegressor",
    "FullRankDKMClassifier",
    "FullRankDKMRegressor",
    "NNGPClassifier",
    "NNGPRegressor",
]
