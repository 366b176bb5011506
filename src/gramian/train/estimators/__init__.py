"""Deep kernel machines as scikit-learn estimators, for tables and for images."""

from gramian.train.estimators.full_rank_estimators import (
    FullRankDKMClassifier,
    FullRankDKMRegressor,
    NNGPClassifier,
    NNGPRegressor,
)
from gramian.train.estimators.image_estimators import ConvDKMClassifier
from gramian.train.estimators.table_estimators import DKMClassifier, DKMRegressor

__all__ = [
    "ConvDKMClassifier",
    "DKMClassifier",
    "DKMRegressor",
    "FullRankDKMClassifier",
    "FullRankDKMRegressor",
    "NNGPClassifier",
    "NNGPRegressor",
]
