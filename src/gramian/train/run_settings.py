"""The settings of a training run but for its model. PyTorch is not imported: refusals are quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from gramian.explained import Explained
from gramian.nn.setting_checks import check_choices, check_ranges

Settings = TypeVar("Settings")
Kind = Literal["conv", "dense", "network"]
DEVICES = ("auto", "cpu", "cuda", "mps")


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
        check_ranges(vars(self))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """One training run, but for its model.

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

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        check_no_nulls(self)
        try:
            check_choices(self)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        check_values(vars(self))
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


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse values without a meaning, each by itself: of all settings of a run, or of some."""
    try:
        check_ranges(values)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for name in ("validation_fraction", "momentum", "betas"):
        value = values.get(name, 0)
        if not all(0 <= share < 1 for share in (value if isinstance(value, Sequence) else [value])):
            raise ConfigError(f"{name} must be in [0, 1), got {value}")
    if not all(0 < share <= 1 for share in values.get("milestones", ())):
        raise ConfigError(f"milestones are shares in (0, 1], got {values['milestones']}")
    if not values.get("data", "digits"):
        raise ConfigError("data must be the name of a data set or a path, got ''")
    check_device(values.get("device", "auto"))


def check_device(name: str) -> None:
    """Refuse what is no device."""
    if name not in DEVICES:
        raise ConfigError(f"device must be {', '.join(DEVICES)}, got {name!r}")


def check_no_nulls(settings: Any, path: str = "") -> None:
    """Raise unless only settings that may be None are: a file can say null anywhere."""
    for field_ in fields(settings):
        value = getattr(settings, field_.name)
        if value is None and "None" not in str(field_.type):
            raise ConfigError(f"{path}{field_.name} must not be null")
        if is_dataclass(value):
            check_no_nulls(value, f"{path}{field_.name}.")


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings (a dataclass) with other values at dotted names."""
    after: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = value
        else:
            after[first] = value(getattr(settings, first)) if callable(value) else value
    for name, nested in inside.items():  # all of one dataclass at once: they must fit together
        after[name] = changed(after.get(name, getattr(settings, name)), nested)
    return replace(settings, **after)  # type: ignore[type-var]
