"""Data as tensors: embedded, fetched or custom; splits, augmentation and scaling."""

from gramian.train.data.augment import Augmentation, random_crop, random_flip
from gramian.train.data.data_errors import DataError, DataIntegrityError, DataMissingError
from gramian.train.data.dataset import Dataset, Splits, hold_out
from gramian.train.data.downloads.fetch import fetch, verify
from gramian.train.data.embedded import digits, sine
from gramian.train.data.images import read_images
from gramian.train.data.load import DatasetInfo, available, check_named, load
from gramian.train.data.own_npz import read_inputs
from gramian.train.data.scaling import (
    CIFAR_NORMALISER,
    Normaliser,
    RowScaler,
    Scaler,
    scaler_from_dict,
)

__all__ = [
    "CIFAR_NORMALISER",
    "Augmentation",
    "DataError",
    "DataIntegrityError",
    "DataMissingError",
    "Dataset",
    "DatasetInfo",
    "Normaliser",
    "RowScaler",
    "Scaler",
    "Splits",
    "available",
    "check_named",
    "digits",
    "fetch",
    "hold_out",
    "load",
    "random_crop",
    "random_flip",
    "read_images",
    "read_inputs",
    "scaler_from_dict",
    "sine",
    "verify",
]
