"""The simulation as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from gramian.train.cost.expectation import duration

MODELS = {
    "plain": "DKM",
    "compiled": "compiled",
    "checkpointed": "checkpointed",
    "network": "network",
}
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "adam": "Adam's moments",
    "kept_chain": "kept of the inducing chain",
    "kept_data": "kept of the data: activations",
    "peak": "peak",
    "estimate": "peak, as --memory takes it",
}
SECONDS = {
    "products": "products, convolutions",
    "solves": "factorisations, solves",
    "passes": "passes over memory",
    "waiting": "waiting for the host",
    "noise": "noise drawn on the device",
    "total": "all, about",
}
GUESSES = (
    "Published: {epoch_seconds:.0f} s per epoch, and about {network_epoch_seconds:.0f} s for the "
    "network, which sets product_share. Two cruder guesses for ours, not checkpointed: "
    "{ours_at_network_rate_seconds:.0f} s at the network's FLOP/s, "
    "{ours_at_published_rate_seconds:.0f} s at those of the published implementation."
)
LEFT_OUT = (
    "Left out: evaluations, reading and augmenting images, libraries' workspaces, gaps between "
    "tensors. A last, smaller batch counts by its images."
)
LABEL, CELL, WIDTH = 34, 13, 100
Form = Callable[[float], str]


def as_text(result: Mapping[str, Any]) -> str:
    """Tables for a person, with what is published beside them, and all assumptions."""
    published, parameters, run = result["published"], result["parameters"], result["run"]
    widths = "-".join(map(str, result["widths"]))
    wanted = "as this preset asks" if result["checkpointing_in_preset"] else "not so in this preset"
    lines = [
        f"preset {result['preset']}: widths {widths}, {result['batch']} images per step, "
        f"{result['images']:,} per epoch",
        f"An {result['kind']}.",
        f"Checkpointed: every layer is computed again in the backward pass ({wanted}).",
        "Network: the ResNet of the same widths, with Adam.",
        "",
        _row("parameters", [f"{parameters['dkm']:,}"]),
        *([f"  {published['difference']}"] if published else []),
        _row("  without unused upper triangles", [f"{parameters['dkm_effective']:,}"]),
        _row("  of the network", [f"{parameters['network']:,}"]),
        "",
        _row("", [*MODELS.values(), *(["published"] if published else [])]),
    ]

    def add(label: str, values: Mapping[str, Any], form: Form, key: str = "") -> None:
        own = [values[name] for name in MODELS]
        own += [published[key]] if published and key in published else []
        lines.append(_row(label, ["–" if value is None else form(value) for value in own]))

    def add_all(labels: Mapping[str, str], rows: Mapping[str, Any], form: Form) -> None:
        for key, text in labels.items():
            values = {name: rows[name][key] for name in MODELS}
            add(f"  {text}", values, form, "epoch_seconds" if key == "total" else "")

    add("TFLOP per step", result["step_flops"], _in_units(1e12), "step_flops")
    add("PFLOP per epoch", result["epoch_flops"], _in_units(1e15), "epoch_flops")
    lines.append("memory of a step, GB")
    add_all(MEMORY, result["memory"], _in_units(1e9))
    lines.append("seconds per epoch on an A100")
    add_all(SECONDS, result["epoch_seconds"], _rounded)
    add(f"{run['epochs']:,} epochs", run["seconds"], duration, "run_seconds")
    seeds = f"{run['seeds']} seeds, one after another"
    add(seeds, run["all_seeds_seconds"], duration, "all_seeds_seconds")
    if published:
        lines += ["", *_wrapped(GUESSES.format(**published))]
    lines += ["", "Assumptions"]
    for name, rate in result["assumptions"].items():
        lines += _wrapped(f"  {name} = {rate['value']:.4g}: {rate['reason']}")
    return "\n".join([*lines, *_wrapped(f"  {LEFT_OUT}")]) + "\n"


def _in_units(unit: float) -> Form:
    return lambda value: _number(value / unit, places=2)


def _rounded(seconds: float) -> str:
    return _number(seconds, places=0 if seconds >= 10 else 1)


def _number(value: float, places: int) -> str:
    """With so many places, or two digits where that would leave fewer."""
    return f"{value:,.{places}f}" if not value or value >= 10**-places else f"{value:.2g}"


def _row(label: str, cells: list[str]) -> str:
    return f"{label:<{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ")
