"""The public way to train: a model or its settings, arrays, and out comes a predictor."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gramian.nn.contract import Trainable
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.likelihoods import Targets, find_likelihood
from gramian.train.config import MODEL_CONFIGS, ConfigError, ModelConfig, TrainConfig
from gramian.train.cost.full_rank_cost import check_memory, estimate
from gramian.train.cost.machine import Machine
from gramian.train.data import Augmentation, DataError, Dataset, RowScaler
from gramian.train.data.own_npz import as_points
from gramian.train.data.targets import as_array, as_targets, as_weights, class_names
from gramian.train.lbfgs import Search, maximise_from_nngp_
from gramian.train.natural import NaturalTrainer
from gramian.train.predict.predictor import Predictor, build_full_rank
from gramian.train.record.progress import MessageConsole
from gramian.train.record.run_folder import Row, RunFolder
from gramian.train.run import run_to_end
from gramian.train.runtime.engine import Engine, Precision, dtype_of
from gramian.train.runtime.seeds import generator
from gramian.train.task import Task, fit_scaler, training_split, untrained
from gramian.train.trainer import Trainer

SET_BY_FIT = {"kind", "model", "data", "config", "verbose"}
"""What the arguments of ``fit`` decide, so that it is no setting."""


def fit(
    model: Trainable | ModelConfig | FullRankConfig | Predictor,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    folder: str | Path | None = None,
    verbose: bool = False,
    **settings: Any,
) -> Predictor:
    """Train a model on arrays, and return it ready for raw data.

        parameters = argmax (E_q[log p(y | f)] − KL/N)

    What is maximised is ``objective``, by steps on batches; without inducing points all at once.

    Args:
        model: settings (``ConvDKMConfig``, ``DenseDKMConfig``, ``NetworkConfig``), whose sizes and
            likelihood follow the data; a model with or without start values, which is trained in
            place; a predictor, to train a copy of its model further with its own scaling; or
            ``FullRankConfig``, for a search by L-BFGS.
        X: rows [N, D]; or images [N, C, H, W], [N, H, W, C] or [N, H, W], uint8 or floating point.
            NumPy arrays, tensors or lists.
        y: classes: integers or strings [N]; real targets: floating point [N] or [N, T]; counts:
            integers [N, T], or [N] with a likelihood for counts.
        sample_weight: [N]; a data point of weight 2 counts as two, one of weight 0 is not there.
        folder: of a run to record, as the program does; None for no record.
        verbose: show progress on standard error.
        settings: of ``TrainConfig``: max_epochs, batch_size, lr, seed, optimiser, schedule,
            validation_fraction, patience, calibrate, natural, device, precision, crop_padding,
            flip, and so on. For a ``FullRankConfig``: max_iter, tol, seed, device, precision,
            memory.

    Example:
        >>> import numpy as np
        >>> from gramian import DenseDKMConfig, fit
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> predictor = fit(DenseDKMConfig(num_inducing=5), x, np.sin(3 * x), max_epochs=2)
        >>> {name: tuple(value.shape) for name, value in predictor.predictions(x).items()}
        {'mean': (30, 1), 'variance': (30, 1), 'latent_mean': (30, 1), 'latent_variance': (30, 1)}
    """
    check_model(model)
    if isinstance(model, FullRankConfig):
        check_names(settings, signature(fit_full_rank).parameters.keys() - SET_BY_FIT)
        if sample_weight is not None or folder is not None:
            raise ConfigError("FullRankConfig: no sample_weight and no folder")
        data = as_dataset(X, y, None if model.likelihood == "gaussian" else "classes")
        predictor, _ = fit_full_rank(model, data, verbose=verbose, **settings)
        return predictor
    data = as_dataset(X, y, _wanted(model), sample_weight)
    known = getattr(model, "config", None) if isinstance(model, Trainable | Predictor) else model
    is_known = isinstance(known, tuple(MODEL_CONFIGS.values()))
    if folder is not None and not is_known:
        raise ConfigError(
            "a model that was made of parts has no settings to record: leave out the folder"
        )
    recorded: Any = known if is_known else MODEL_CONFIGS["conv" if data.images else "dense"]()
    kind: Any = next(kind for kind, of in MODEL_CONFIGS.items() if isinstance(recorded, of))
    check_names(settings, {field.name for field in fields(TrainConfig)} - SET_BY_FIT)
    config = TrainConfig(kind=kind, model=recorded, data="arrays", **settings)
    train, validation = training_split(data, config)
    if isinstance(model, Predictor):
        if model.class_names != data.class_names:
            raise ConfigError(
                f"the model knows the classes {model.class_names}, y has {data.class_names}"
            )
        mine = copy.deepcopy(model.trainable)
        predictor = replace(model, model=mine, seed=config.seed, calibration=None)
    elif isinstance(model, Trainable):
        predictor = _around(model, train, config.seed)
    else:
        dtype = dtype_of(config.precision)
        predictor = untrained(model, train, fit_scaler("", train), config.seed, dtype)
        fitted: Any = predictor.config
        config = replace(config, model=fitted)
    return train_(predictor, train, validation, config, folder=folder, verbose=verbose)[0]


def check_model(model: object) -> None:
    """Refuse what cannot be trained."""
    if not isinstance(model, Trainable | Predictor | FullRankConfig | ModelConfig):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise ConfigError(
            f"model must be settings such as DenseDKMConfig(), a model of this library or a "
            f"Predictor, got {'the class' if isinstance(model, type) else 'an object of'} {name}"
        )


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a setting that there is not, with the one that looks most like it."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"fit has no setting {name}{hint}")


def train_(
    predictor: Predictor,
    train: Dataset,
    validation: Dataset | None,
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    verbose: bool = False,
) -> tuple[Predictor, list[Row]]:
    """Train a predictor's model in place, from its present weights if it has any.

    The predictor with that model, calibrated if the settings say so, and a row per epoch.
    """
    engine = Engine.from_config(config)
    augmentation = Augmentation(config.crop_padding, config.flip)
    task = Task(train, validation, None, predictor.scaler, augmentation)
    run = None if folder is None else RunFolder(Path(folder))
    kind = NaturalTrainer if config.natural else Trainer
    trainer = kind(predictor, task, config, engine, run, quiet=not verbose)
    if run is None:
        trainer.fit(resume=False)
    else:
        run_to_end(trainer, run, resume=False)
    return trainer.predictor, trainer.rows


def fit_full_rank(
    config: FullRankConfig,
    data: Dataset,
    *,
    max_iter: int = 200,
    tol: float = 1e-6,
    seed: int = 0,
    device: str = "cpu",
    precision: Precision = "64-true",
    memory: int | None = None,
    standardise: bool = True,
    verbose: bool = False,
) -> tuple[Predictor, Search]:
    """Search for the best NNGP, and from there for the model; all data at once.

    Args:
        config: settings of the model.
        data: rows or images, with classes or real targets.
        max_iter, tol: of each search.
        seed: of the Monte-Carlo samples of a softmax; nothing else is random.
        device: cpu, cuda or auto.
        precision: 64-true or 32-true.
        memory: bytes that training may need; None for what is free now.
        standardise: scale each feature (channel) to mean 0 and deviation 1 first.
        verbose: show cost and progress on standard error.
    """
    if (config.likelihood == "gaussian") == (data.targets == "classes"):
        raise ConfigError(
            f"the likelihood {config.likelihood} does not suit {data.targets}: choose categorical "
            "or dirichlet for classes (integers or words), gaussian for floating-point targets"
        )
    engine = Engine(device, precision=precision)
    x = data.x if data.x.is_floating_point() else data.x.double()
    scaler = RowScaler.fit(x) if standardise else RowScaler.none(x.shape[1])
    inputs = scaler(x, engine.dtype).to(engine.device)
    check_memory(config, inputs, data.num_outputs, memory)
    y = data.y.double() if data.targets == "counts" else data.y
    model = build_full_rank(inputs, y.to(engine.device), config)
    model.likelihood.fit_targets_(data.y, data.weights)
    model.initialise_()
    noise = None
    if model.output is not None:
        noise = model.draw_samples(generator(seed, "search"))
    console = MessageConsole(quiet=not verbose)
    if verbose:
        space = (x.shape[2], x.shape[3]) if x.ndim == 4 else None
        cost = estimate(config, len(x), space, engine.dtype, model.num_outputs)
        machine = Machine.measure(inputs[:, 0].numel(), engine.dtype, engine.device)
        console.print(
            f"{len(x):,} training points: about {cost.bytes / 1e9:.3g} GB, and "
            f"{machine.seconds(cost):.3g} s per iteration",
            highlight=False,
        )

    def show(iteration: int, objective: float) -> None:
        console.print(f"iteration {iteration}  objective {objective:.6f}", highlight=False)

    search = maximise_from_nngp_(model, noise, max_iter=max_iter, tol=tol, on_iteration=show)
    return Predictor(model.eval(), config, scaler, data.class_names, seed), search


def as_dataset(X: Any, y: Any, wanted: Targets | None = None, sample_weight: Any = None) -> Dataset:
    """Arrays as data that say what they are; integers [N] are classes unless others are wanted."""
    x, targets = _array("X", X), _array("y", y)
    weights = None
    if sample_weight is not None:
        if isinstance(sample_weight, Tensor):
            sample_weight = sample_weight.detach().cpu()
        weights = torch.tensor(as_weights(sample_weight))
        there = weights.nonzero().flatten()
        if x.shape[:1] == targets.shape[:1] == weights.shape and len(there):
            x, targets, weights = x[there.numpy()], targets[there.numpy()], weights[there]
    if x.ndim == 2 and x.dtype.kind in "iub":
        x = x.astype(np.float64)
    if wanted == "classes" and targets.shape[1:] == (1,):
        targets = targets[:, 0]
    if wanted in ("real", "counts"):
        targets = targets[:, None] if targets.ndim == 1 else targets
        numbers = wanted == "real" and targets.dtype.kind in "iubf"
        targets = targets.astype(np.float64) if numbers else targets
    names = class_names("y", targets)
    return Dataset(as_points("X", x), as_targets("y", targets, names), names, weights)


def _around(model: Trainable, train: Dataset, seed: int) -> Predictor:
    """A predictor around a model; one without start values learns the scale of the targets."""
    if model.data_shape != tuple(train.x.shape[1:]):
        raise DataError(
            f"the model takes data of shape {model.data_shape}, got {tuple(train.x.shape[1:])}"
        )
    if not model.initialised:
        model.likelihood.fit_targets_(train.y, train.weights)
    model.likelihood.check(train.y, len(train))
    config = getattr(model, "config", None)
    return Predictor(model, config, fit_scaler("", train), train.class_names, seed)


def _wanted(model: Trainable | ModelConfig | Predictor) -> Targets | None:
    """The kind of targets that a model is for; None if the data decide."""
    if isinstance(model, Predictor):
        return model.model.likelihood.targets
    if isinstance(model, Trainable):
        return model.likelihood.targets
    return None if model.likelihood == "auto" else find_likelihood(model.likelihood).targets


def _array(name: str, values: Any) -> Any:
    if hasattr(values, "toarray"):
        raise DataError(f"{name} is sparse, of shape {list(values.shape)}: give {name}.toarray()")
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else as_array(name, values)
