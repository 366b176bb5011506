"""The measurements as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Number = int | float
COMPARED = {"train": "training step", "predict": "prediction", "latency": "one image"}


def as_text(result: Mapping[str, Any]) -> str:
    """Tables for a person: the two models side by side, and the parts of a step."""
    widths = ", ".join(map(str, result["widths"]))
    lines = [
        f"widths {widths}; {result['batch']} images; threads: {result['threads']}; "
        f"medians of {result['repeats']} turns",
        f"{result['processor']}; torch {result['versions']['torch']}; {result['commit']}",
        f"float32 matrix product: {result['gemm_gflops']:.0f} GFLOP/s",
        "",
        _table(comparison_rows(result)),
    ]
    if result["parts"]:
        lines += ["", _table(part_rows(result))]
    return "\n".join(lines) + "\n"


def comparison_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: times with ratios and their spread, then sizes."""
    rows = [["", "DKM", "network", "ratio", "quartiles", "extremes"]]
    for name, label in COMPARED.items():
        seconds, spread = result[f"{name}_seconds"], result[f"{name}_ratio_spread"]
        rows.append(
            [
                label,
                _milliseconds(seconds["dkm"]),
                _milliseconds(seconds["network"]),
                f"{result[f'{name}_ratio']:.2f}",
                f"{spread['quantile25']:.2f} – {spread['quantile75']:.2f}",
                f"{spread['min']:.2f} – {spread['max']:.2f}",
            ]
        )
    flops = result["flops"]
    for label, kind in (("FLOPs of a step", "train"), ("FLOPs of a prediction", "predict")):
        rows.append([label, *_pair(flops[f"dkm_{kind}"], flops[f"network_{kind}"], _gflop)])
    shares, memory = result["gemm_share"], result["memory_bytes"]
    rows.append(["step, share of product", *_pair(shares["dkm"], shares["network"], _percent)])
    if memory:
        rows.append(
            ["peak memory of training", *_pair(memory["dkm"], memory["network"], _megabyte)]
        )
    return rows


def part_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: times, FLOPs, and the share of the matrix product's throughput."""
    rows = [["part of a DKM's step", "forward", "backward", "time", "FLOPs", "share of product"]]
    whole = sum(map(part_seconds, result["parts"].values()))
    for name, part in result["parts"].items():
        seconds = part_seconds(part)
        rows.append(
            [
                name,
                _milliseconds(part["seconds_forward"]),
                _milliseconds(part["seconds_backward"]),
                _percent(seconds / whole),
                _gflop(part["flops"]),
                _percent(part["flops"] / seconds / result["gemm_gflops"] / 1e9),
            ]
        )
    return rows


def part_seconds(part: Mapping[str, float]) -> float:
    """Forward and backward together."""
    return part["seconds_forward"] + part["seconds_backward"]


def _pair(dkm: Number, network: Number, form: Callable[[Number], str]) -> list[str]:
    return [form(dkm), form(network), f"{dkm / network:.2f}", "", ""]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _gflop(flops: Number) -> str:
    return f"{flops / 1e9:,.2f} G"


def _percent(share: Number) -> str:
    return f"{share:.0%}"


def _megabyte(size: Number) -> str:
    return f"{size / 1e6:,.0f} MB"
