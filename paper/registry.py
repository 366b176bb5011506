"""The paper's tables as data: every row is a one-line difference from the headline.

A difference is a mapping from the dotted name of a setting to its value, or to a function of the
value that the headline has. It is applied when a row is run: importing this module loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from gramian.train.run_settings import changed

if TYPE_CHECKING:
    from gramian.nn.baseline.network import NetworkConfig
    from gramian.nn.conv_dkm import ConvDKMConfig
    from gramian.train.config import TrainConfig

Scale = Literal["small", "paper"]
PRESETS: dict[Scale, str] = {"small": "small_cifar10", "paper": "paper_cifar10"}


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Args:
        key: name of its folder.
        label: as the paper prints it; {epochs} and {skr} are those of the row's settings.
        difference: from the headline, in words.
        published: name of the published runs; None if there are none.
        changes: of the headline's settings.
    """

    key: str
    label: str
    difference: str
    published: str | None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def config(self, headline: TrainConfig) -> TrainConfig:
        """All settings, without the seed."""
        return changed(headline, self.changes)

    def title(self, headline: TrainConfig) -> str:
        """The label with the numbers of the settings in it."""
        config = self.config(headline)
        epochs = f"{config.max_epochs} epoch" + "s" * (config.max_epochs > 1)
        return self.label.format(epochs=epochs, skr=getattr(config.model, "skr", None))


@dataclass(frozen=True)
class Table:
    """One of the paper's tables.

    Args:
        name: on the command line.
        title: one line.
        data: the data set.
        rows: the first is the headline.
        preset: of its own, for a table that has only the small scale.
        precisions: those to run it in; empty for that of the preset.
    """

    name: str
    title: str
    data: str
    rows: tuple[TableRow, ...]
    preset: str | None = None
    precisions: tuple[str, ...] = ()

    def headline(self, scale: Scale) -> TrainConfig:
        """The settings of the full method."""
        from gramian.train.config import ConfigError
        from gramian.train.presets import preset_config

        if self.preset is not None and scale == "paper":
            raise ConfigError(f"{self.name} is small only: leave out --scale paper")
        return replace(preset_config(self.preset or PRESETS[scale]), data=self.data)


def same_widths(model: ConvDKMConfig) -> NetworkConfig:
    """A network of a deep kernel machine's widths."""
    from gramian.nn.baseline.network import NetworkConfig

    return NetworkConfig(
        widths=model.num_inducing,
        blocks_per_stage=model.blocks_per_stage,
        strides=model.strides,
        stem_stride=model.stem_stride,
    )


EXACT = {"model.divergence": "exact"}
NO_SAMPLING = {"model.skr.gamma_fraction": None}
NO_SKR = NO_SAMPLING | {"model.skr.jitter": 0.0}
NETWORK = {  # as published: batches of 128, Adam's usual betas, statistics as training left them
    "kind": "network",
    "model": same_widths,
    "betas": (0.9, 0.999),
    "batch_size": 128,
    "recompute_activations": False,
    "memory": None,
    "estimate_statistics": False,
}
ADAM = NETWORK | {"optimiser": "adam", "lr": 1e-3}
ADAMW = ADAM | {"optimiser": "adamw", "weight_decay": 0.1, "schedule": "cosine"}
SGD = NETWORK | {
    "optimiser": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "cosine",
}

# fmt: off
PREVIOUS = TableRow("previous", "DKM before SKR", "no SKR, no jitter, exact KL, float64", None,
                    EXACT | NO_SKR | {"precision": "64-true"})
SGD_TEXT = TableRow("network_sgd_text", "network, SGD + weight decay, lr 0.1",
                    "lr 0.1, as the paper's text", None, SGD | {"lr": 0.1})

COMPARISON = (
    TableRow("headline", "DKM with SKR", "", "dkm_cifar10_headline"),
    PREVIOUS,
    TableRow("network_adam", "network, Adam", "lr 0.001", "nn_cifar10_adam", ADAM),
    TableRow("network_sgd", "network, SGD + weight decay", "lr 0.01, as the published runs",
             "nn_cifar10_sgd", SGD),
    SGD_TEXT,
)

COMPARISON_100 = (
    TableRow("headline", "DKM with SKR", "", "dkm_cifar100_headline"),
    PREVIOUS,
    TableRow("network_adamw", "network, AdamW", "lr 0.001, weight decay 0.1, cosine",
             "nn_cifar100_adamw", ADAMW),
    TableRow("network_sgd", "network, SGD + weight decay", "lr 0.01, as the published runs",
             "nn_cifar100_sgd", SGD),
    SGD_TEXT,
)

ABLATIONS = (
    TableRow("headline", "full method", "", "dkm_cifar10_headline"),
    TableRow("no_taylor", "no Taylor", "exact KL", "dkm_no_taylor", EXACT),
    TableRow("no_skr", "no SKR", "no sampling, no jitter", "dkm_no_skr", NO_SKR),
    TableRow("neither", "no Taylor, no SKR", "exact KL, no sampling, no jitter",
             "dkm_no_taylor_no_skr", EXACT | NO_SKR),
    TableRow("keep_jitter", "no SKR, but λ = {skr.jitter:g}", "no sampling",
             "dkm_no_skr_keep_jitter", NO_SAMPLING),
    TableRow("zero_nu", "ν = 0", "no KL of Gram layers", "dkm_zero_nu", {"model.nu": 0.0}),
    TableRow("short", "{epochs}", "a sixth of the epochs", "dkm_200_epochs",
             {"max_epochs": lambda epochs: max(1, epochs // 6), "milestones": (0.8, 0.9)}),
    TableRow("gamma_twice", "twice γ",
             "twice the degrees of freedom; run, but not in the paper", "dkm_gamma_div2",
             {"model.skr.gamma_fraction": lambda fraction: 2 * fraction}),
)

# Beyond the paper: networks with the data, augmentation, epochs and batches of the headline.
BESIDE = {"kind": "network", "model": same_widths}
BESIDE_SGD = BESIDE | {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
BESIDE_MUON = BESIDE | {"lr": 0.015, "betas": (0.9, 0.999),
                        "lr_factors.output": 0.1, "lr_factors.scales": 0.1}


def beside(name: str, title: str, wide: tuple[int, ...], blocks: int = 1) -> tuple[TableRow, ...]:
    """A deep kernel machine and two networks of its widths."""
    shape = {"model.blocks_per_stage": blocks}
    return (
        TableRow(f"dkm_{name}", f"DKM, {title}", "", None,
                 shape | {"model.num_inducing": wide}),
        TableRow(f"sgd_{name}", f"network, SGD, {title}", "", None,
                 BESIDE_SGD | shape | {"model.widths": wide}),
        TableRow(f"muon_{name}", f"network, Muon, {title}", "", None,
                 BESIDE_MUON | shape | {"model.widths": wide}),
    )


WIDTHS = (
    TableRow("headline", "DKM, 24-48-96", "", None),
    *beside("24", "24-48-96", (24, 48, 96))[1:],
    *beside("16", "16-32-64", (16, 32, 64)),
    *beside("deep", "24-48-96, three blocks a stage", (24, 48, 96), blocks=3),
    *beside("48", "48-96-192", (48, 96, 192)),
)

FEW = {500: 160, 1000: 120, 2000: 60, 5000: 30}  # images: epochs
LESS_NOISE = {5000: {"model.skr.gamma_fraction": 1.0}}  # γ = 512; 128 for fewer images
KEEP_BEST = {"validation_fraction": 0.02, "evaluate_every": 1, "patience": 1000}


def few(num_images: int, epochs: int) -> tuple[TableRow, ...]:
    """A deep kernel machine with and without SKR, and networks, on few images."""
    size: dict[str, Any] = {"train_size": num_images, "max_epochs": epochs}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "skr": ("DKM with SKR", LESS_NOISE.get(num_images, {})),
        "plain": ("DKM, no sampling", NO_SAMPLING),
        "sgd": ("network, SGD", BESIDE_SGD),
        "sgd_stop": ("network, SGD, early stopping", BESIDE_SGD | KEEP_BEST),
        "muon": ("network, Muon", BESIDE_MUON),
        "muon_stop": ("network, Muon, early stopping", BESIDE_MUON | KEEP_BEST),
    }
    return tuple(
        TableRow(f"{key}_{num_images}", f"{label}, {num_images:,} images", "", None,
                 size | changes)
        for key, (label, changes) in rows.items()
    )


FEW_IMAGES = (
    TableRow("headline", "DKM with SKR, 1,000 images", "", None),
    *few(1000, FEW[1000])[1:],
    *(row for size in (500, 2000, 5000) for row in few(size, FEW[size])),
)
# fmt: on

TABLES = {
    table.name: table
    for table in (
        Table("table1", "Table 1: CIFAR-10, comparison with networks", "cifar10", COMPARISON),
        Table("table2", "Table 2: CIFAR-100, comparison with networks", "cifar100", COMPARISON_100),
        Table("table3", "Table 3: CIFAR-10, ablations", "cifar10", ABLATIONS),
        Table(
            "stability",
            "Numerical failures of Table 3's rows in long runs",
            "digits",
            ABLATIONS,
            preset="stability",
            precisions=("32-true", "tf32-emulated"),
        ),
        Table(
            "widths",
            "Networks of the same widths: 10,000 images of CIFAR-10, 10 epochs",
            "cifar10",
            WIDTHS,
            preset="widths",
        ),
        Table(
            "few",
            "Few images of CIFAR-10: with and without SKR, and networks",
            "cifar10",
            FEW_IMAGES,
            preset="small_cifar10",
        ),
    )
}
