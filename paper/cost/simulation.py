"""The simulation: size, work, memory and time of a preset's model, beside what is published."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from gramian.nn.conv_dkm import ConvDKMConfig
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.data.downloads.releases import REGISTRY
from gramian.train.presets import preset_config
from paper.cost.device import REASONS, Rates, Seconds
from paper.cost.step_cost import StepCost, dkm_step, network_step

SCALES = {"paper": "paper_cifar10", "small": "small_cifar10"}
"""Presets, by what ``--scale`` calls them."""

SEEDS = 4
PUBLISHED: dict[str, Any] = {
    "parameters": 316_442_198,
    "unused_scalars": 19,
    "step_flops": 42.7e12,
    "epoch_seconds": 260.0,
    "network_epoch_seconds": 45.0,
}
"""Of the paper's model and its released implementation. The FLOPs are ours to have counted; the
released code has one scalar parameter more in each Gram layer, which nothing uses."""

Result = dict[str, Any]


def simulate(scale: str) -> Result:
    """All numbers of a scale, as plain values. Sizes in bytes, times in seconds."""
    config, model = read_preset(scale)
    batch, images = config.batch_size, num_images(config)
    costs = {
        "plain": dkm_step(model, batch, recompute=False),
        "compiled": dkm_step(model, batch, recompute=False, compiled=True),
        "checkpointed": dkm_step(model, batch, recompute=True),
        "network": network_step(model, batch),
    }
    steps = images / batch
    rates = calibrated_rates(costs["network"] if scale == "paper" else None)
    seconds = {name: rates.step_seconds(cost).times(steps) for name, cost in costs.items()}
    return {
        "scale": scale,
        "preset": SCALES[scale],
        "kind": "estimate: simulated without a GPU, on tensors without storage",
        "widths": list(model.num_inducing),
        "batch": batch,
        "images": images,
        "steps_per_epoch": steps,
        "checkpointing_in_preset": config.recompute_activations,
        "parameters": {
            "dkm": costs["plain"].parameters,
            "dkm_effective": costs["plain"].used_parameters,
            "network": costs["network"].parameters,
        },
        "step_flops": {name: cost.flops for name, cost in costs.items()},
        "step_solve_flops": {name: cost.solve_flops for name, cost in costs.items()},
        "step_pass_bytes": {name: cost.pass_bytes for name, cost in costs.items()},
        "epoch_flops": {name: cost.flops * steps for name, cost in costs.items()},
        "memory": {name: asdict(cost.memory) for name, cost in costs.items()},
        "assumptions": {
            name: {"value": value, "reason": REASONS[name]} for name, value in asdict(rates).items()
        },
        "epoch_seconds": {
            name: {**asdict(own), "total": own.total} for name, own in seconds.items()
        },
        "run": run_seconds(seconds, config.max_epochs),
        "published": published(costs, steps, config.max_epochs) if scale == "paper" else None,
    }


def read_preset(scale: str) -> tuple[TrainConfig, ConvDKMConfig]:
    """The settings of a scale, from its preset alone: no environment, no other file."""
    name = SCALES[scale]
    config = preset_config(name)
    model = config.model
    if not isinstance(model, ConvDKMConfig) or config.data not in REGISTRY:
        raise ConfigError(f"preset {name} is not a convolutional model of a data set by name")
    entry = REGISTRY[config.data]
    return config, replace(model, image_shape=entry.shape, num_outputs=len(entry.class_names))


def num_images(config: TrainConfig) -> int:
    """Training images of an epoch."""
    count = REGISTRY[config.data].counts[0]
    held_out = round(config.validation_fraction * count)
    return min(count - held_out, config.train_size or count)


def calibrated_rates(network: StepCost | None) -> Rates:
    """Rates at which the network of the paper's widths takes its published time per epoch."""
    config, model = read_preset("paper")
    network = network or network_step(model, config.batch_size)
    steps = num_images(config) / config.batch_size
    return Rates().calibrated(network, PUBLISHED["network_epoch_seconds"] / steps)


def run_seconds(seconds: dict[str, Seconds], epochs: int) -> Result:
    """GPU seconds of a run and of all seeds, evaluations not included."""
    runs = {name: own.total * epochs for name, own in seconds.items()}
    return {
        "epochs": epochs,
        "seeds": SEEDS,
        "seconds": runs,
        "all_seeds_seconds": {name: SEEDS * own for name, own in runs.items()},
    }


def published(costs: dict[str, StepCost], steps: float, epochs: int) -> Result:
    """What is published, and our epoch if all of it ran at the FLOP/s seen there.

    seconds = published seconds · our FLOPs / the FLOPs that took them: of the network, which is
    mostly convolutions, and of the published implementation, which is mostly something else.
    """
    flops = costs["plain"].flops
    by_network = PUBLISHED["network_epoch_seconds"] / costs["network"].flops
    by_published = PUBLISHED["epoch_seconds"] / PUBLISHED["step_flops"]
    return {
        **PUBLISHED,
        "epoch_flops": PUBLISHED["step_flops"] * steps,
        "run_seconds": PUBLISHED["epoch_seconds"] * epochs,
        "all_seeds_seconds": PUBLISHED["epoch_seconds"] * epochs * SEEDS,
        "ours_at_network_rate_seconds": flops * by_network,
        "ours_at_published_rate_seconds": flops * by_published,
        "difference": _difference(costs["plain"].parameters),
    }


def _difference(parameters: int) -> str:
    """One line on the number of parameters."""
    more = parameters - PUBLISHED["parameters"]
    if more:
        return f"{more:+,} beside the published number: this is not the paper's model"
    return (
        f"as published; the released code has {PUBLISHED['unused_scalars']} scalars more, one per "
        "Gram layer, that nothing uses"
    )
