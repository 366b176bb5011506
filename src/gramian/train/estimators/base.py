"""What all scikit-learn estimators of this library share: a fitted predictor, and its files."""

from __future__ import annotations

import datetime
import json
from abc import abstractmethod
from dataclasses import fields, is_dataclass
from inspect import get_annotations
from numbers import Integral, Number, Real
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from gramian.train.data.targets import as_array
from gramian.train.predict.predictor import Predictor
from gramian.train.pretrained import PretrainedError
from gramian.train.record.files import write_text_atomically
from gramian.train.record.run_folder import Row

ESTIMATOR = "estimator.json"
PAIRS = "pairs"
Array = NDArray[Any]
Me = TypeVar("Me", bound="Estimator")


class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator around a predictor. Subclasses are dataclasses: their fields are the parameters.

    ``Classifier`` and ``Regressor`` add what depends on the kind of targets.
    """

    __no_type_check__ = True  # scikit-learn wants ``fit`` to complain, not ``__init__``

    predictor_: Predictor
    history_: list[Row]
    n_iter_: int

    @abstractmethod
    def _raw(self, X: Any, reset: bool) -> Tensor:
        """X, checked, as the predictor wants it."""

    @abstractmethod
    def _encode(self, y: Any, reset: bool, classes: Any = None) -> tuple[Tensor, tuple[str, ...]]:
        """y, checked, as class numbers or as targets [n, T] in their own units; class names."""

    @property
    def model_(self) -> Any:
        """The trained model, a torch module."""
        if "predictor_" not in vars(self):
            raise AttributeError("model_: this estimator is not fitted yet")
        return self.predictor_.model

    def _check_types(self) -> None:
        """Refuse a parameter of another type, by its name and with what it may be.

        Words and ranges are checked where they are used.
        """
        hints: dict[str, Any] = {}
        for base in filter(is_dataclass, reversed(type(self).__mro__)):
            hints |= get_annotations(base, eval_str=True)
        for each in filter(attrgetter("init"), fields(self)):
            hint, value = hints[each.name], getattr(self, each.name)
            kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            words = float not in kinds and any(get_origin(kind) is Literal for kind in kinds)
            if any(_suits(value, kind) for kind in kinds) or (words and isinstance(value, str)):
                continue
            choices = " or ".join(map(_in_words, kinds))
            if isinstance(each.default, Number | tuple):
                choices += f", such as {each.default!r}"
            raise ValueError(f"{each.name} must be {choices}, got {value!r}")

    def _inputs(self, X: Any, y: Any, reset: bool) -> Tensor:
        """X, checked, and as long as y."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        x = self._raw(X, reset)
        check_consistent_length(x, y)
        return x

    def _predictions(self, X: Any) -> dict[str, Array]:
        """All that the predictor says about X."""
        check_is_fitted(self, "predictor_")
        found = self.predictor_.predictions(self._raw(X, reset=False))
        return {name: value.cpu().numpy() for name, value in found.items()}

    # ---- files ----

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the fitted estimator: safetensors and JSON, no pickle.

        Training data are written only if they are part of the model, as without inducing points.
        ``random_state`` is kept if it is an integer or None.
        """
        check_is_fitted(self, "predictor_")
        self.predictor_.save_pretrained(folder)
        params = self.get_params(deep=False)
        for name, value in params.items():
            if isinstance(value, dict):  # keys of JSON are strings, classes may be anything
                params[name] = {PAIRS: list(value.items())}
        if not isinstance(params["random_state"], Integral | None):
            params["random_state"] = None
        description = {"class": type(self).__name__, "params": params, **self._facts()}
        text = json.dumps(description, indent=2, default=_plain)
        write_text_atomically(Path(folder) / ESTIMATOR, text + "\n")

    @classmethod
    def from_pretrained(cls: type[Me], folder: str | Path, device: str = "cpu") -> Me:
        """Read what ``save_pretrained`` wrote."""
        path = Path(folder) / ESTIMATOR
        try:
            facts = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise PretrainedError(f"{folder} holds no saved estimator: no {ESTIMATOR}") from error
        except json.JSONDecodeError as error:
            raise PretrainedError(f"{path} cannot be read: {error}") from error
        if facts.get("class") != cls.__name__:
            raise PretrainedError(f"{folder} holds a {facts.get('class')}, not a {cls.__name__}")
        estimator = cls(**{name: _unpacked(value) for name, value in facts["params"].items()})
        estimator.predictor_ = Predictor.from_pretrained(folder, device)
        estimator._restore(facts)
        return estimator

    def _facts(self) -> dict[str, Any]:
        """Fitted attributes that the predictor does not hold, as JSON values."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "history": self.history_,
            "n_iter": self.n_iter_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": None if names is None else names.tolist(),
        }

    def _restore(self, facts: dict[str, Any]) -> None:
        """The inverse of ``_facts``."""
        self.history_, self.n_iter_ = facts["history"], facts["n_iter"]
        self.n_features_in_ = facts["n_features_in"]
        if facts["feature_names_in"] is not None:
            self.feature_names_in_: Array = np.array(facts["feature_names_in"], dtype=object)


def tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A copy of an array as a tensor: read-only and strided arrays, too."""
    return torch.tensor(np.ascontiguousarray(array), dtype=dtype)


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """One number that everything random in a fit comes from."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def refuse_channels_last(shape: tuple[int, ...]) -> None:
    """Raise for (H, W, C), which other libraries use: it would pass for H channels.

    That is 4 or fewer of what comes last, and more of the other two.
    """
    if shape[2] <= 4 < min(shape[:2]):
        raise ValueError(
            f"images of shape {tuple(map(int, shape))} look like (H, W, C), but (C, H, W) is "
            "expected: X.transpose(0, 3, 1, 2), or X.swapaxes(2, 3) if they are that narrow"
        )


def refuse_dates(name: str, values: Any) -> None:
    """Raise for dates and durations, which would pass as numbers of whatever unit they have.

    And for lists of several lengths, which are no array.
    """
    array = as_array(name, values)
    dates = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)
    if array.dtype.kind in "mM" or (
        array.dtype.kind == "O" and any(isinstance(value, dates) for value in array.flat)
    ):
        raise ValueError(
            f"{name} holds dates or durations ({array.dtype}): make them numbers of a unit, as "
            'by (dates - np.datetime64("2000-01-01")) / np.timedelta64(1, "D")'
        )


def check_count(name: str, value: Any, allow_auto: bool = False, least: int = 1) -> None:
    """Raise unless ``value`` is an integer of ``least`` (1 or 0) or more (or "auto")."""
    if isinstance(value, str) and value == "auto" and allow_auto:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        choice = "a positive integer" if least else "an integer, 0 or more,"
        choice += " or 'auto'" if allow_auto else ""
        raise ValueError(f"{name} must be {choice}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def _suits(value: Any, kind: Any) -> bool:
    """Whether a parameter may be of this kind."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple | list | np.ndarray) and all(
            _suits(each, get_args(kind)[0]) for each in value
        )
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool | np.bool_ | Integral)
    return kind is Any or isinstance(value, origin or kind)


def _in_words(kind: Any) -> str:
    """A kind of parameter, for messages."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"a tuple of {_in_words(get_args(kind)[0]).split()[-1]}s"
    words = {float: "a number", int: "an integer", bool: "a bool", str: "a str", type(None): "None"}
    return words.get(kind) or f"a {(get_origin(kind) or kind).__name__}"


def _unpacked(value: Any) -> Any:
    """A parameter, from JSON."""
    if isinstance(value, dict):
        return dict(value[PAIRS])
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be stored in {ESTIMATOR}")
