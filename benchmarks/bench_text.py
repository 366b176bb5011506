"""The measurements as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        *_table(comparison_rows(result)),
    ]
    if result["parts"]:
        lines += ["", *_table(part_rows(result))]
    return "\n".join(lines) + "\n"


def comparison_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: times with ratios and their spread, then sizes."""
    rows = [["", "DKM", "network", "ratio", "quartiles", "extremes"]]
    for name, label in COMPARED.items():
        dkm, network = (1e3 * result[f"{name}_seconds"][each] for each in ("dkm", "network"))
        low, first, third, high = result[f"{name}_ratio_spread"].values()
        ratio, inner, outer = result[f"{name}_ratio"], (first, third), (low, high)
        spreads = [f"{a:.2f} – {b:.2f}" for a, b in (inner, outer)]
        rows.append([label, f"{dkm:,.1f} ms", f"{network:,.1f} ms", f"{ratio:.2f}", *spreads])
    flops, memory = result["flops"], result["memory_bytes"]
    pairs = [
        (label, (flops[f"dkm_{kind}"], flops[f"network_{kind}"]), 1e-9, ",.2f", " G")
        for label, kind in (("FLOPs of a step", "train"), ("FLOPs of a prediction", "predict"))
    ]
    shares = result["gemm_share"]
    pairs.append(("step, share of product", (shares["dkm"], shares["network"]), 100.0, ".0f", "%"))
    if memory:
        peaks = memory["dkm"], memory["network"]
        pairs.append(("peak memory of training", peaks, 1e-6, ",.0f", " MB"))
    for label, (dkm, network), scale, form, unit in pairs:
        cells = [f"{scale * value:{form}}{unit}" for value in (dkm, network)]
        rows.append([label, *cells, f"{dkm / network:.2f}", "", ""])
    return rows


def part_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: times, FLOPs, and the share of the matrix product's throughput."""
    rows = [["part of a DKM's step", "forward", "backward", "time", "FLOPs", "share of product"]]
    whole = sum(map(part_seconds, result["parts"].values()))
    for name, part in result["parts"].items():
        seconds, flops = part_seconds(part), part["flops"]
        ways = [f"{1e3 * part[f'seconds_{way}']:,.1f} ms" for way in ("forward", "backward")]
        share = flops / seconds / result["gemm_gflops"] / 1e9
        rows.append(
            [name, *ways, f"{seconds / whole:.0%}", f"{flops / 1e9:,.2f} G", f"{share:.0%}"]
        )
    return rows


def part_seconds(part: Mapping[str, float]) -> float:
    """Forward and backward together."""
    return part["seconds_forward"] + part["seconds_backward"]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
