"""The paper's tables as typed experiments: every row is a one-line difference from the headline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gramian.gram.skr import SKR
from gramian.nn.baseline.network import NetworkConfig
from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.train.config import TrainConfig
from gramian.train.presets import preset_config

Scale = Literal["small", "paper"]
PRESETS: dict[Scale, str] = {"small": "small_cifar10", "paper": "paper_cifar10"}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table.

    Args:
        key: name of its folder.
        label: as the paper prints it.
        difference: from the headline, in words.
        config: all settings, without the seed.
        published: name of the published runs; None if there are none.
    """

    key: str
    label: str
    difference: str
    config: TrainConfig
    published: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """One of the paper's tables.

    Args:
        name: on the command line.
        title: one line.
        data: the data set.
        rows: from the headline's settings to the rows; the first is the headline.
    """

    name: str
    title: str
    data: str
    rows: Callable[[TrainConfig], list[TableRow]]

    def headline(self, scale: Scale) -> TrainConfig:
        """The settings of the full method."""
        return replace(preset_config(PRESETS[scale]), data=self.data)


def comparison(headline: TrainConfig) -> list[TableRow]:
    """Table 1: the full method, its predecessor, and networks of the same widths."""
    old = with_skr(with_model(headline, divergence="exact"), SKR.off())
    adam = network(headline, lr=1e-3)
    sgd = network(headline, "sgd", lr=0.01, weight_decay=5e-4, schedule="cosine")
    return [
        TableRow("headline", "DKM with SKR", "", headline, "dkm_cifar10_headline"),
        TableRow(
            "previous",
            "DKM before SKR",
            "no SKR, no jitter, exact KL, float64",
            replace(old, precision="64-true"),
            None,
        ),
        TableRow("network_adam", "network, Adam", "lr 0.001", adam, "nn_cifar10_adam"),
        TableRow(
            "network_sgd",
            "network, SGD + weight decay",
            "lr 0.01, as the published runs",
            sgd,
            "nn_cifar10_sgd",
        ),
        TableRow(
            "network_sgd_text",
            "network, SGD + weight decay, lr 0.1",
            "lr 0.1, as the paper's text",
            replace(sgd, lr=0.1),
            None,
        ),
    ]


def comparison100(headline: TrainConfig) -> list[TableRow]:
    """Table 2: as Table 1, on CIFAR-100."""
    adamw = network(headline, "adamw", lr=1e-3, weight_decay=0.1, schedule="cosine")
    published = {"headline": "dkm_cifar100_headline", "network_sgd": "nn_cifar100_sgd"}
    rows = [
        replace(row, published=published.get(row.key))
        for row in comparison(headline)
        if row.key != "network_adam"
    ]
    text = "lr 0.001, weight decay 0.1, cosine"
    rows.insert(2, TableRow("network_adamw", "network, AdamW", text, adamw, "nn_cifar100_adamw"))
    return rows


def ablations(headline: TrainConfig) -> list[TableRow]:
    """Table 3: what each part of the method is good for."""
    assert isinstance(headline.model, ConvDKMConfig)
    skr = headline.model.skr
    assert skr.gamma_fraction is not None
    exact, zero_nu = with_model(headline, divergence="exact"), with_model(headline, nu=0.0)
    no_skr = with_skr(headline, SKR.off())
    keep_jitter = with_skr(headline, replace(skr, gamma_fraction=None))
    twice = with_skr(headline, replace(skr, gamma_fraction=2 * skr.gamma_fraction))
    short = replace(headline, max_epochs=max(1, headline.max_epochs // 6), milestones=(0.8, 0.9))
    return [
        TableRow("headline", "full method", "", headline, "dkm_cifar10_headline"),
        TableRow("no_taylor", "no Taylor", "exact KL", exact, "dkm_no_taylor"),
        TableRow("no_skr", "no SKR", "no sampling, no jitter", no_skr, "dkm_no_skr"),
        TableRow(
            "neither",
            "no Taylor, no SKR",
            "exact KL, no sampling, no jitter",
            with_skr(exact, SKR.off()),
            "dkm_no_taylor_no_skr",
        ),
        TableRow(
            "keep_jitter",
            f"no SKR, but λ = {skr.jitter:g}",
            "no sampling",
            keep_jitter,
            "dkm_no_skr_keep_jitter",
        ),
        TableRow("zero_nu", "ν = 0", "no KL of Gram layers", zero_nu, "dkm_zero_nu"),
        TableRow(
            "short", _epochs(short.max_epochs), "a sixth of the epochs", short, "dkm_200_epochs"
        ),
        TableRow(
            "gamma_twice",
            f"twice γ: {2 * skr.gamma_fraction:g} P",
            "twice the degrees of freedom; run, but not in the paper",
            twice,
            "dkm_gamma_div2",
        ),
    ]


TABLES = {
    table.name: table
    for table in (
        Table(
            "table1", "Table 1: CIFAR-10, with SKR, before SKR, and networks", "cifar10", comparison
        ),
        Table("table2", "Table 2: CIFAR-100, the same", "cifar100", comparison100),
        Table("table3", "Table 3: CIFAR-10, ablations", "cifar10", ablations),
    )
}


def with_model(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The settings with another model."""
    return replace(config, model=replace(config.model, **changes))


def with_skr(config: TrainConfig, skr: SKR) -> TrainConfig:
    """The settings with another regularisation."""
    return with_model(config, skr=skr)


def network(
    headline: TrainConfig,
    optimiser: Literal["adam", "adamw", "sgd"] = "adam",
    **changes: Any,
) -> TrainConfig:
    """A network of the headline's widths, trained as published: batches of 128, no whitening,
    Adam's usual betas, and running statistics as training left them.
    """
    model = headline.model
    assert isinstance(model, ConvDKMConfig)
    return replace(
        headline,
        kind="network",
        model=NetworkConfig(
            widths=model.num_inducing,
            blocks_per_stage=model.blocks_per_stage,
            strides=model.strides,
            stem_stride=model.stem_stride,
        ),
        optimiser=optimiser,
        betas=(0.9, 0.999),
        batch_size=128,
        recompute_activations=False,
        memory=None,
        estimate_statistics=False,
        **changes,
    )


def _epochs(count: int) -> str:
    return f"{count} epoch" + "s" * (count > 1)
