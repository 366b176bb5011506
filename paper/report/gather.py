"""Result folders as values. Nothing else reads the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from gramian.explained import Explained
from gramian.train.record.files import check_values, in_one_line
from paper.published import experiments
from paper.report.results import (
    Failure,
    Json,
    Picture,
    PlainRun,
    Results,
    RowResults,
    Run,
    TableResults,
)

DAMAGED = (AttributeError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
FACTS = {
    **dict.fromkeys(("name", "scale", "title", "data", "precision", "headline"), str),
    **dict.fromkeys(("epochs", "seeds"), int),
}


class ReportError(Explained, Exception):
    """Result folders that are missing, or damaged: the message names the file."""

    exit_code = 4


def gather(folders: Sequence[Path]) -> Results:
    """Read result folders and run folders, given by themselves or as folders that hold several."""
    found: dict[Path, None] = {}  # in order, each once
    for folder in folders:
        if not folder.is_dir():
            raise ReportError(f"{folder} is no folder")
        inside = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
        found |= {path.resolve(): None for path in inside if _is_result(path)}
    names = ", ".join(map(str, folders))
    if not found:
        raise ReportError(
            f"no results in {names}: neither there nor one level down is an experiment.json (of "
            "python -m paper) or a config.yaml (of gramian train)"
        )
    tables, runs, pictures = [], [], []
    for folder, name in zip(found, _names(list(found)), strict=True):
        path = folder / "experiment.json"
        if not path.exists():
            runs.append(_plain_run(name, folder))
            continue
        facts = _json(path)
        kind = facts.get("kind")
        try:
            if kind == "table":
                tables.append(_table(name, folder, facts))
            elif kind == "conditions":
                image = folder / "figure.png"
                if image.exists():  # otherwise the experiment is under way
                    pictures.append(Picture(name, facts["title"], image))
            else:
                raise ReportError(f"{path}: kind must be table or conditions, got {kind!r}")
        except DAMAGED as error:
            raise ReportError(f"{path} is damaged: {in_one_line(error)}") from error
    if not tables and not runs and not pictures:
        raise ReportError(f"no results yet: {', '.join(map(str, found))} has no figure.png")
    return Results(tuple(tables), tuple(runs), tuple(pictures))


def _is_result(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("experiment.json", "config.yaml"))


def _names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder, with that of its parent where several are called the same."""
    names = [folder.name for folder in folders]
    return [
        f"{folder.parent.name}-{name}" if names.count(name) > 1 else name
        for folder, name in zip(folders, names, strict=True)
    ]


def _table(key: str, folder: Path, facts: Json) -> TableResults:
    # The paper clips the log-likelihoods of deep kernel machines, not of networks.
    is_of_paper = any(row.get("published") is not None for row in facts["rows"])
    rows = tuple(
        _row(folder, row, facts["seeds"], is_of_paper and row.get("kind") != "network")
        for row in facts["rows"]
    )
    keys = [row.key for row in rows]
    values = {name: _typed(facts, name, kind) for name, kind in FACTS.items()}
    values["headline_key"] = values.pop("headline")
    if values["headline_key"] not in keys:
        raise ReportError(f"{folder / 'experiment.json'}: headline is none of {', '.join(keys)}")
    quoted = tuple(
        tuple(_typed(row, name, str) for name in ("label", "accuracy", "log_likelihood"))
        for row in facts.get("quoted", [])
    )
    return TableResults(key=key, rows=rows, quoted=quoted, **values)


def _row(folder: Path, facts: Json, planned: int, clips: bool) -> RowResults:
    name = facts.get("published")
    if name is not None and name not in experiments():
        raise ReportError(f"{folder / 'experiment.json'}: {name!r} is no published experiment")
    seeds = {
        int(path.name.removeprefix("seed")): path
        for path in (folder / facts["key"]).glob("seed*")
        if path.name.removeprefix("seed").isdecimal()
    }
    return RowResults(
        key=_typed(facts, "key", str),
        label=_typed(facts, "label", str),
        difference=_typed(facts, "difference", str) if "difference" in facts else "",
        published=name,
        runs=tuple(
            _run(seed, seeds[seed], clips, ("accuracy", "log_likelihood")) for seed in sorted(seeds)
        ),
        planned=planned,
    )


def _plain_run(key: str, folder: Path) -> PlainRun:
    path = folder / "config.yaml"
    settings = dict(_flat(_mapping(yaml.safe_load, _text(path), str(path))))
    return PlainRun(key, settings, _run(settings.get("seed", 0), folder, clips=False))


def _flat(settings: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted names."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _run(seed: int, folder: Path, clips: bool, needed: Sequence[str] = ()) -> Run:
    """One run; ``clips``: take the clipped log-likelihood if it was recorded."""
    epochs = _epochs(folder / "metrics.jsonl")
    seconds = [row["seconds"] for row in epochs if "seconds" in row]
    metrics: dict[str, float] = {}
    failure = None
    result_path, failure_path = folder / "result.json", folder / "failure.json"
    if result_path.exists():
        result = _json(result_path)
        try:
            recorded = result["metrics"] if "metrics" in result else result["figures"]
            test = recorded["test"] if needed else recorded.get("test", {})
            metrics = {name: float(value) for name, value in test.items()}
            if lacking := [name for name in needed if name not in metrics]:
                raise KeyError(", ".join(lacking))
            if not seconds and result.get("epochs"):
                seconds = [result["train_seconds"] / result["epochs"]]
        except DAMAGED as error:
            raise ReportError(f"{result_path} has no complete test metrics: {error}") from error
    elif failure_path.exists():
        facts = _json(failure_path)
        if not isinstance(facts.get("epoch"), int):
            raise ReportError(f"{failure_path} does not say in which epoch")
        place = f"{facts['layer']}: " if facts.get("layer") else ""
        failure = Failure(facts["epoch"], f"{place}{facts.get('reason', '')}", facts.get("step"))
    environment = folder / "env.json"
    return Run(
        seed=seed,
        metrics=metrics,
        clipped=clips and (not metrics or "log_likelihood_clipped" in metrics),
        failure=failure,
        seconds_per_epoch=fmean(seconds) if seconds else None,
        epochs=tuple(epochs),
        commit=_json(environment).get("commit") if environment.exists() else None,
    )


def _typed(facts: Json, name: str, kind: type) -> Any:
    """A value that must be there, and be of a kind."""
    if not isinstance(facts[name], kind):
        raise TypeError(f"{name} must be {kind.__name__}, got {facts[name]!r}")
    return facts[name]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _json(path: Path) -> Json:
    return _mapping(json.loads, _text(path), str(path))


def _epochs(path: Path) -> list[Json]:
    rows = []
    for number, line in enumerate(_text(path).splitlines() if path.exists() else [], 1):
        rows.append(_mapping(json.loads, line, f"{path}, line {number}"))
        if "epoch" not in rows[-1]:
            raise ReportError(f"{path}, line {number} is damaged: no epoch")
        for name, value in rows[-1].items():
            if not isinstance(value, int | float):
                raise ReportError(f"{path}, line {number} is damaged: {name} is no number")
    return rows


def _mapping(read: Callable[[str], Any], text: str, where: str) -> Json:
    try:
        value = read(text)
        check_values(value)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ReportError(f"{where} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise ReportError(f"{where} is damaged: it holds no names with values")
    return value
