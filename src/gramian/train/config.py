"""All settings of a training run, with the published values as defaults where there are any."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

import torch

from gramian.explained import Explained
from gramian.nn.baseline.network import Network, NetworkConfig
from gramian.nn.checks import check_choices, check_not_negative, check_positive
from gramian.nn.contract import Trainable
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.nn.dense_dkm import DenseDKM, DenseDKMConfig
from gramian.nn.parameters import start_in_

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Settings = TypeVar("Settings")
Kind = Literal["conv", "dense", "network"]
DEVICES = ("auto", "cpu", "cuda", "mps")
ModelConfig = ConvDKMConfig | DenseDKMConfig | NetworkConfig
MODEL_CONFIGS: dict[str, type[ModelConfig]] = {
    "conv": ConvDKMConfig,
    "dense": DenseDKMConfig,
    "network": NetworkConfig,
}


class ConfigError(Explained, ValueError):
    """Settings that do not fit together, or do not fit the data."""

    exit_code = 2


@dataclass(frozen=True)
class LRFactors:
    """What multiplies the learning rate, by the kind of parameter.

    Args:
        mixing: of inducing points in convolutions and poolings; a network's filters.
        gram: the learned Gram matrices.
        output: q of the output; a network's last layer.
        inputs: inducing inputs and lengthscales.
        scales: all else: variances and bandwidths of kernels, scales of norms, noise.
    """

    mixing: float = 1.0
    gram: float = 1.0
    output: float = 1.0
    inputs: float = 1.0
    scales: float = 1.0

    def __post_init__(self) -> None:
        """Refuse steps backwards; 0 leaves a kind as it starts."""
        check_not_negative(**vars(self))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Args:
        kind: convolutional model for images, dense model for rows, or network: the paper's
            residual network, to compare with.
        data: name of a data set, or path of your own: a folder of images or an .npz file.
        data_dir: where data sets are stored; GRAMIAN_DATA_DIR or the user's cache if not given.
        train_size: use only so many training points, chosen at random.
        validation_fraction: share of the training set held out for choosing settings.
        split_seed: draws the points of train_size and validation_fraction, the same for every seed.
        crop_padding: random crops of images padded by so many pixels; 0 for none, 4 as published.
        flip: random horizontal flips; published for CIFAR.
        max_epochs: passes over the training set. 1200 is published.
        batch_size: data points per step, over all processes. 256 is published.
        lr: learning rate at the start, or at the peak of one_cycle.
        lr_factors: what multiplies lr, by the kind of parameter.
        optimiser: what turns gradients into steps: adam, adamw, sgd, or muon, which makes the steps
            of mixing matrices (and of a network's filters) orthogonal and leaves the rest to adam.
        betas: decay of the two running means of adam, adamw and muon's adam.
        momentum: share of the last step that sgd repeats, or that muon's mean keeps (usually 0.95).
        weight_decay: pull of the weights to 0, for adamw and muon's matrices (both decoupled) and
            sgd.
        schedule: steps (lr × 0.1 at each milestone), cosine (to 0), one_cycle (linear warm-up over
            the first 30 %, then cosine), or constant.
        milestones: where steps drops, as shares of max_epochs.
        natural: natural gradients for the output's q, Adam for the rest: small tables then fit in a
            hundred steps. For dense models with the exact divergence and tempered false.
        seed: decides everything random: start values, order of the data and noise.
        precision: 32-true, 64-true, tf32 on CUDA, or tf32-emulated to see on a CPU what it does.
        device: auto (cuda where there is one, else cpu), cpu, cuda or mps.
        devices: processes on this machine.
        num_nodes: machines that train together.
        accumulate: parts of a batch, computed one after the other to save memory. The step is that
            of the whole batch, but for normalisations, which take the means of a part.
        shard_optimiser: each process keeps a share of the optimiser's state, and the same steps.
        split_chain: processes share the inducing points' large products, which are the same in all,
            and exchange the parts; if not given, GPUs of one machine do.
        compile: let PyTorch compile the data's way through each layer: fewer passes over memory on
            a GPU, after a minute or more; results differ by rounding.
        recompute_activations: compute every layer again in the backward pass: least memory, more
            time, same gradients.
        memory: what a step may take in all, such as 3.9GB: recompute the layers that this needs.
        on_numerical_error: raise; skip the batch; or rollback to the last checkpoint and go on with
            other noise.
        max_numerical_errors: stop after so many skips or rollbacks.
        evaluate_every: epochs between evaluations.
        patience: stop after so many evaluations without a better validation log-likelihood, and
            keep the best model; needs a validation_fraction.
        calibrate: at the end, scale a classifier's logits to suit the validation set: none,
            temperature (one number) or vector (two per class); needs a validation_fraction.
        estimate_statistics: at the end, replace the running means by exact ones.
        checkpoint_minutes: time between checkpoints inside an epoch; one is written after each
            epoch anyway.
        conditions: log the condition number of each Gram matrix at each evaluation.
        model: settings of the model, of the class that belongs to ``kind``.
    """

    kind: Kind = "conv"
    data: str = "digits"
    data_dir: str | None = None
    train_size: int | None = None
    validation_fraction: float = 0.0
    split_seed: int = 0
    crop_padding: int = 0
    flip: bool = False
    max_epochs: int = 40
    batch_size: int = 64
    lr: float = 0.01
    lr_factors: LRFactors = LRFactors()
    optimiser: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    betas: tuple[float, float] = (0.8, 0.9)
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["steps", "cosine", "one_cycle", "constant"] = "steps"
    milestones: tuple[float, ...] = (2 / 3, 11 / 12)
    natural: bool = False
    seed: int = 0
    precision: Literal["32-true", "64-true", "tf32", "tf32-emulated"] = "32-true"
    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    accumulate: int = 1
    shard_optimiser: bool = False
    split_chain: bool | None = None
    compile: bool = False
    recompute_activations: bool = False
    memory: str | None = None
    on_numerical_error: Literal["raise", "skip", "rollback"] = "raise"
    max_numerical_errors: int = 20
    evaluate_every: int = 1
    patience: int | None = None
    calibrate: Literal["none", "temperature", "vector"] = "none"
    estimate_statistics: bool = True
    checkpoint_minutes: float = 5.0
    conditions: bool = True
    model: ModelConfig = field(default_factory=ConvDKMConfig)

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        check_no_nulls(self)
        try:
            check_choices(self)
            check_positive(
                max_epochs=self.max_epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                devices=self.devices,
                num_nodes=self.num_nodes,
                accumulate=self.accumulate,
                evaluate_every=self.evaluate_every,
                patience=self.patience,
                train_size=self.train_size,
            )
            check_not_negative(
                seed=self.seed,
                split_seed=self.split_seed,
                crop_padding=self.crop_padding,
                weight_decay=self.weight_decay,
                max_numerical_errors=self.max_numerical_errors,
                checkpoint_minutes=self.checkpoint_minutes,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        shares = {
            "validation_fraction": [self.validation_fraction],
            "momentum": [self.momentum],
            "betas": self.betas,
        }
        for name, values in shares.items():
            if not all(0 <= value < 1 for value in values):
                raise ConfigError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not all(0 < share <= 1 for share in self.milestones):
            raise ConfigError(f"milestones are shares in (0, 1], got {self.milestones}")
        if not self.data:
            raise ConfigError("data must be the name of a data set or a path, got ''")
        if self.device not in DEVICES:
            raise ConfigError(f"device must be {', '.join(DEVICES)}, got {self.device!r}")
        if self.patience is not None and not self.validation_fraction:
            raise ConfigError("patience needs a validation set: set validation_fraction")
        if self.calibrate != "none" and not self.validation_fraction:
            raise ConfigError("calibrate needs a validation set: set validation_fraction")
        if self.shard_optimiser and self.on_numerical_error == "rollback":
            raise ConfigError(
                "on_numerical_error rollback needs the whole state of the optimiser in every "
                "process: set shard_optimiser false, or skip"
            )
        if self.weight_decay and self.optimiser == "adam":
            raise ConfigError("weight_decay is for adamw, sgd and muon, the optimiser is adam")
        if not isinstance(self.model, MODEL_CONFIGS[self.kind]):
            raise ConfigError(f"kind {self.kind} needs a {MODEL_CONFIGS[self.kind].__name__}")
        model = self.model
        if self.natural and not (
            isinstance(model, DenseDKMConfig) and model.divergence == "exact" and not model.tempered
        ):
            raise ConfigError(
                "natural gradients are for dense models with model.divergence exact and "
                "model.tempered false"
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for YAML and JSON."""
        return _plain(asdict(self))


def check_no_nulls(settings: Any, path: str = "") -> None:
    """Raise unless only settings that may be None are: a file can say null anywhere."""
    for field_ in fields(settings):
        value = getattr(settings, field_.name)
        if value is None and "None" not in str(field_.type):
            raise ConfigError(f"{path}{field_.name} must not be null")
        if is_dataclass(value):
            check_no_nulls(value, f"{path}{field_.name}.")


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Trainable:
    """The model that a model configuration describes."""
    model: Trainable
    if isinstance(config, ConvDKMConfig):
        model = ConvDKM.from_config(config)
    elif isinstance(config, DenseDKMConfig):
        model = DenseDKM.from_config(config)
    elif isinstance(config, NetworkConfig):
        model = Network(config)
    else:
        raise ConfigError(f"no model is known for a {type(config).__name__}")
    start_in_(model, dtype)
    return model


def model_config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """A model configuration as plain values, with its kind."""
    kind = next(kind for kind, known in MODEL_CONFIGS.items() if isinstance(config, known))
    return {"kind": kind, **_plain(asdict(config))}


def model_config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """The inverse of ``model_config_to_dict``; every value is checked against its type."""
    rest = dict(values)
    kind = _known_kind(rest.pop("kind", None))
    return settings_from_dict(MODEL_CONFIGS[kind], rest, f"a {kind} model")


def config_from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """The inverse of ``TrainConfig.to_dict``; what is not given has its default."""
    kind = _known_kind(values.get("kind", "conv"))
    check_settings(values, kind)
    built = _instantiate("a training run", values, MODEL_CONFIGS[kind], True)
    return TrainConfig(**vars(built))


def settings_from_dict(kind: type[Settings], values: Mapping[str, Any], what: str) -> Settings:
    """Settings of a dataclass from plain values, each checked against its type."""
    check_fields(values, get_type_hints(kind))
    built: Settings = _instantiate(what, {"model": values}, kind, False).model
    return built


def check_settings(
    values: Mapping[str, Any], kind: str, others: Collection[str] = (), path: str = ""
) -> None:
    """Refuse values of a file that are no settings of a training run, nor one of ``others``."""
    types = dict.fromkeys(others, object) | get_type_hints(TrainConfig)
    check_fields(values, types | {"model": MODEL_CONFIGS[kind]}, path)


def check_fields(values: Mapping[str, Any], types: Mapping[str, Any], path: str = "") -> None:
    """Refuse names that are no fields, null without a meaning, and groups that are no mappings.

    jsonargparse takes a string for the name of a file, and imports what a ``class_path`` names.
    """
    for name, value in values.items():
        group, _, inner = str(name).partition(".")
        if group not in types:
            raise ConfigError(f"there is no setting {path}{name}")
        if inner:  # jsonargparse takes names with dots, too
            check_fields({group: {inner: value}}, types, path)
            continue
        kind = types[group]
        if is_dataclass(kind):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}{name} must hold settings by name, got {value!r}")
            check_fields(value, get_type_hints(kind), f"{path}{name}.")
        elif value is None and kind is not object and type(None) not in get_args(kind):
            raise ConfigError(f"{path}{name} must not be null")


def add_train_arguments(parser: ArgumentParser) -> None:
    """The fields of TrainConfig as options, but for the model's."""
    parser.add_class_arguments(TrainConfig, None, as_group=False, skip={"model"})


def _known_kind(kind: Any) -> str:
    if kind not in list(MODEL_CONFIGS):
        raise ConfigError(f"unknown kind of model {kind!r}; known are {sorted(MODEL_CONFIGS)}")
    return str(kind)


def _instantiate(what: str, values: Mapping[str, Any], kind: type, whole: bool) -> Any:
    parser = _parser(kind, whole)
    try:
        return parser.instantiate(parser.parse_object(dict(values)))
    except Exception as error:
        raise ConfigError(f"not a configuration of {what}: {error}") from error


@cache
def _parser(kind: type, whole: bool) -> ArgumentParser:
    """A parser for a model's settings, with those of a training run if ``whole``."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    if whole:
        add_train_arguments(parser)
    parser.add_class_arguments(kind, "model")
    return parser


def _plain(value: Any) -> Any:
    """Tuples as lists, in nested dictionaries."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
