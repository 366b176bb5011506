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
}
LEFT_OUT = (
    "Left out: evaluations, reading and augmenting images, libraries' workspaces, gaps between "
    "tensors. A last, smaller batch counts by its images."
)
LABEL, CELL, WIDTH = 34, 13, 100
Form = Callable[[float], str]


def as_text(result: Mapping[str, Any]) -> str:
    """Tables for a person, with what is published beside them, and all assumptions."""
    lines = [*_heading(result), "", *_sizes(result), "", *_table(result), ""]
    if result["published"]:
        lines += [*_brackets(result["published"]), ""]
    lines.append("Assumptions")
    for name, rate in result["assumptions"].items():
        lines += _wrapped(f"  {name} = {rate['value']:.4g}: {rate['reason']}")
    return "\n".join([*lines, *_wrapped(f"  {LEFT_OUT}")]) + "\n"


def _heading(result: Mapping[str, Any]) -> list[str]:
    widths = "-".join(map(str, result["widths"]))
    wanted = "as this preset asks" if result["checkpointing_in_preset"] else "not so in this preset"
    return [
        f"preset {result['preset']}: widths {widths}, {result['batch']} images per step, "
        f"{result['images']:,} per epoch",
        f"An {result['kind']}.",
        f"Checkpointed: every layer is computed again in the backward pass ({wanted}).",
        "Network: the ResNet of the same widths, with Adam.",
    ]


def _sizes(result: Mapping[str, Any]) -> list[str]:
    parameters, published = result["parameters"], result["published"]
    return [
        _row("parameters", [f"{parameters['dkm']:,}"]),
        *([f"  {published['difference']}"] if published else []),
        _row("  without unused upper triangles", [f"{parameters['dkm_effective']:,}"]),
        _row("  of the network", [f"{parameters['network']:,}"]),
    ]


def _table(result: Mapping[str, Any]) -> list[str]:
    published, run = result["published"] or {}, result["run"]
    memory, seconds = result["memory"], result["epoch_seconds"]

    def row(label: str, values: Mapping[str, Any], form: Form, key: str | None = None) -> str:
        own = [values[name] for name in MODELS]
        own += [published[key]] if key in published else []
        return _row(label, ["–" if value is None else form(value) for value in own])

    return [
        _row("", [*MODELS.values(), *(["published"] if published else [])]),
        row("TFLOP per step", result["step_flops"], _in_units(1e12), "step_flops"),
        row("PFLOP per epoch", result["epoch_flops"], _in_units(1e15), "epoch_flops"),
        "memory of a step, GB",
        *(row(f"  {text}", _column(memory, key), _in_units(1e9)) for key, text in MEMORY.items()),
        "seconds per epoch on an A100",
        *(row(f"  {text}", _column(seconds, key), _rounded) for key, text in SECONDS.items()),
        row("  all, about", _column(seconds, "total"), _rounded, "epoch_seconds"),
        row(f"{run['epochs']:,} epochs", run["seconds"], duration, "run_seconds"),
        row(
            f"{run['seeds']} seeds, one after another",
            run["all_seeds_seconds"],
            duration,
            "all_seeds_seconds",
        ),
    ]


def _brackets(published: Mapping[str, Any]) -> list[str]:
    low, high = (published[f"ours_at_{rate}_rate_seconds"] for rate in ("network", "published"))
    return _wrapped(
        f"Published: {published['epoch_seconds']:.0f} s per epoch, and about "
        f"{published['network_epoch_seconds']:.0f} s for the network, which sets product_share. "
        f"Two cruder guesses for ours, not checkpointed: {low:.0f} s at the network's FLOP/s, "
        f"{high:.0f} s at those of the published implementation."
    )


def _in_units(unit: float) -> Form:
    return lambda value: _number(value / unit, places=2)


def _rounded(seconds: float) -> str:
    return _number(seconds, places=0 if seconds >= 10 else 1)


def _number(value: float, places: int) -> str:
    """With so many places, or two digits where that would leave fewer."""
    return f"{value:,.{places}f}" if not value or value >= 10**-places else f"{value:.2g}"


def _column(rows: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {name: values[key] for name, values in rows.items()}


def _row(label: str, cells: list[str]) -> str:
    return f"{label:<{LABEL}}" + "".join(f"{cell:>{CELL}}" for cell in cells)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ")
