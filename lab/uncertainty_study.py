"""What models know of what they do not know: deep kernel machines beside networks, on real data.

`python -m lab.uncertainty_study run --data cifar10 --output results/study.jsonl` trains and
measures what is not in the output yet: 5,000 images, 12 epochs, the same widths, augmentation and
batches for all, each with its best recipe. A killed run resumes; several processes may share the
work. `python -m lab.uncertainty_study show results/study.jsonl --plot study.png` prints the
tables and draws the picture.

Measured: the test set, six corruptions in five strengths of 2,000 test images, and how well a score
tells the test set from other data sets and from noise. An ensemble has five networks of its own.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gramian import Predictor
from gramian.experiments.statistics import summarise
from gramian.gram.blocks import Marginals
from gramian.metrics import (
    Array,
    classification_scores,
    detection,
    entropies,
    mutual_information,
)
from gramian.nn.baseline.network import Network
from gramian.nn.contract import ByPath, DKMResult
from gramian.train.config import TrainConfig
from gramian.train.data import load
from gramian.train.data.corrupt import CORRUPTIONS, Corruption
from gramian.train.data.other_images import as_images_of, noise_images
from gramian.train.predict.uncertainty import probabilities_and_scores
from gramian.train.presets import preset_config
from gramian.train.record.run_folder import RunFolder, commit
from gramian.train.run import prepare
from gramian.train.run_settings import changed
from gramian.train.task import Task, load_task
from paper.registry import BESIDE_MUON

NUM_SPOILT = 2000  # test images that are corrupted, or compared with others
MEMBERS = 5
DROPOUT, PASSES = 0.05, 10
SETS = ("cifar10", "fashion_mnist", "mnist")
Scores = dict[str, Array]
Answer = tuple[Array, Scores]
Model = Callable[[Tensor], Answer]

SKR = {"model.skr.gamma_fraction": 0.25, "model.skr.gamma_power": 0.0}
KEPT = {"model.unexplained": "kept"}
BY_IMAGE = {"model.norm.data": "image"}  # no image is louder than another
NETWORK = BESIDE_MUON | {"lr": 0.03}  # rate and dropout by validation at this size
METHODS: dict[str, dict[str, Any]] = {
    "DKM": {},
    "network": NETWORK,
    "DKM with SKR": SKR,
    "MC dropout": NETWORK,
    "DKM, variance kept": KEPT,
    "DKM, variance kept, norm by image": KEPT | BY_IMAGE,
    "DKM with SKR, variance kept": SKR | KEPT,
}


class DropoutNetwork(Network):
    """A network that drops channels after each block, while it learns and while it predicts.

    Its noise is the seed of a step's masks, so that training stays a function of its settings.
    """

    def draw_noise(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A seed."""
        return {"masks": torch.randint(2**31, (), generator=generator, device=generator.device)}

    def forward(self, x: Tensor, noise: ByPath | None = None) -> DKMResult:
        """Logits, with masks if there is a seed for them."""
        draw = torch.Generator().manual_seed(int(noise["masks"])) if noise else None
        maps = self.network.stem(x.contiguous(memory_format=torch.channels_last))
        for block in self.network.blocks:
            maps = block(maps)
            if draw is not None:
                keep = torch.rand(maps.shape[:2], generator=draw) >= DROPOUT
                maps = maps * (keep / (1 - DROPOUT))[:, :, None, None]
        logits = self.network.linear(maps.mean((2, 3)))
        return DKMResult(Marginals(logits, logits.new_zeros(len(logits), 1)), {}, {})


def settings(method: str, data: str, seed: int) -> TrainConfig:
    """All settings of one run."""
    base = replace(
        preset_config("widths"), data=data, train_size=5000, max_epochs=12, evaluate_every=100,
        validation_fraction=0.02, seed=seed,
    )  # fmt: skip
    base = changed(base, {"model.centre": False})  # as the preset was when the study was made
    if data != "cifar10":
        base = replace(
            changed(base, {"model.whitening": "patches"}), crop_padding=2, flip=data != "mnist"
        )
    return changed(base, METHODS[method])


def trained(method: str, data: str, seed: int, folder: Path) -> tuple[Predictor, Task, float]:
    """A model, what it was trained on, and processor seconds."""
    config = settings(method, data, seed)
    task = replace(load_task(config), test=None)
    run = RunFolder(folder / f"{data}-{method.replace(' ', '_').replace(',', '')}-{seed}")
    trainer = prepare(config, run, quiet=True, task=task)
    if method == "MC dropout":
        network = DropoutNetwork(trainer.model.config)  # type: ignore[arg-type]
        start = replace(trainer.predictor, model=network)
        trainer = type(trainer)(start, task, config, trainer.engine, run, quiet=True)
    started = time.process_time()
    trainer.fit(resume=True)
    seconds = time.process_time() - started
    return trainer.predictor, task, math.nan if trainer.resumed else seconds


# ---- models as functions of images ----


def of_predictor(predictor: Predictor) -> Model:
    """Probabilities and scores of a model by itself."""
    return lambda x: probabilities_and_scores(predictor, predictor.latent(x))


def of_members(members: list[Callable[[Tensor], Array]]) -> Model:
    """Mean probabilities of several, and the mutual information between them and the class."""

    def answer(x: Tensor) -> Answer:
        each = np.stack([member(x) for member in members])
        p = each.mean(0)
        scores = {"entropy": entropies(p), "doubt": 1 - p.max(1)}
        return p, scores | {"mutual_information": mutual_information(each)}

    return answer


def passes(predictor: Predictor) -> list[Callable[[Tensor], Array]]:
    """A network with dropout, by the masks of each pass."""
    model = predictor.trainable

    def one(number: int) -> Callable[[Tensor], Array]:
        @torch.no_grad()
        def probabilities(x: Tensor) -> Array:
            parts = [
                model(predictor._inputs(batch), {"masks": torch.tensor(1000 * number + place)})
                for place, batch in enumerate(x.split(256))
            ]
            logits = torch.cat([part.marginals.mean for part in parts])
            return nn.functional.softmax(logits.double(), 1).numpy()

        return probabilities

    return [one(number) for number in range(PASSES)]


# ---- measurements ----


def measured(model: Model, data: str) -> dict[str, Any]:
    """Metrics on the test set, on spoilt images, and on other data."""
    test = load(data).test
    p, _ = model(test.x)
    found: dict[str, Any] = {"test": classification_scores(p, test.y)}
    some = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:NUM_SPOILT]
    x, y = test.x[some], test.y[some]
    found["corrupted"] = {}
    for kind in CORRUPTIONS:
        for strength in range(1, 6):
            corruption = Corruption(kind, strength)
            q, _ = model(corruption(x))
            found["corrupted"][str(corruption)] = classification_scores(q, y)
    _, like = model(x)
    shape = tuple(x.shape[1:])
    others = {name: as_images_of(load(name).test.x[:NUM_SPOILT], shape) for name in SETS}
    others["noise"] = noise_images(NUM_SPOILT, shape, torch.Generator().manual_seed(1))
    found["unlike"] = {}
    for name, images in others.items():
        if name != data:
            _, scores = model(images)
            found["unlike"][name] = {
                score: detection(like[score], values).auroc for score, values in scores.items()
            }
    return found


def run(data: str, output: Path, folder: Path, groups: list[int], methods: list[str]) -> None:
    """Train and measure what is not in the output yet."""
    torch.set_num_threads(1)

    def write(method: str, group: int, seconds: float, model: Model) -> None:
        row = {"data": data, "method": method, "group": group, "seconds": seconds}
        with output.open("a") as file:
            made_by = {"commit": commit(Path(__file__))}
            file.write(json.dumps(row | measured(model, data) | made_by) + "\n")
        print(data, method, group, flush=True)

    for group in groups:
        for method in methods:
            if done(output, data, method, group) or not claimed(folder, data, method, group):
                continue
            if method != "network":
                predictor, _, seconds = trained(method, data, group, folder)
                several = method == "MC dropout"
                model = of_members(passes(predictor)) if several else of_predictor(predictor)
                write(method, group, seconds, model)
                continue
            members: list[Callable[[Tensor], Array]] = []
            total = 0.0
            for member in range(MEMBERS):
                predictor, task, seconds = trained(method, data, MEMBERS * group + member, folder)
                total += seconds
                members.append(lambda x, model=of_predictor(predictor): model(x)[0])  # type: ignore[misc]
                if member == 0:
                    first, seconds_of_first, held_out = predictor, seconds, task.validation
            write("ensemble of five networks", group, total, of_members(members))
            assert held_out is not None
            scaled = first.calibrate(held_out.x, held_out.y)
            write("network, temperature", group, seconds_of_first, of_predictor(scaled))
            write("network", group, seconds_of_first, of_predictor(first))


def done(output: Path, data: str, method: str, group: int) -> bool:
    """Whether the output has this line."""
    rows = rows_of(output) if output.exists() else []
    return any((r["data"], r["method"], r["group"]) == (data, method, group) for r in rows)


def claimed(folder: Path, data: str, method: str, group: int) -> bool:
    """Whether this process may do it: no other one that lives does."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = folder / f"{data}-{method}-{group}.taken_by"
    if claim.exists() and Path(f"/proc/{claim.read_text()}").exists():
        return False
    claim.write_text(str(os.getpid()))
    return True


# ---- tables ----


def rows_of(path: Path) -> list[dict[str, Any]]:
    """All lines of results."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line that the tables show."""
    test, spoilt = row["test"], row["corrupted"]
    found = {name: test[name] for name in ("accuracy", "log_likelihood", "ece", "aurc")}
    for name in ("accuracy", "log_likelihood", "ece"):
        found[f"corrupted_{name}"] = float(np.mean([each[name] for each in spoilt.values()]))
    for kind in CORRUPTIONS:
        each = [spoilt[str(Corruption(kind, s))]["log_likelihood"] for s in range(1, 6)]
        found[f"corrupted_{kind}"] = float(np.mean(each))
    for score in SCORES:
        values = {name: each[score] for name, each in row["unlike"].items() if score in each}
        found |= {f"{score}_{name}": value for name, value in values.items()}
        if values:
            found[f"{score}_mean"] = float(np.mean(list(values.values())))
    return found | {"seconds": row["seconds"]}


Columns = dict[str, tuple[str, str]]  # of a number: its title and its form
SCORES = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "latent_variance": "variance",
}
COLUMNS: Columns = {
    "accuracy": ("Accuracy", "{:.1%}"),
    "log_likelihood": ("LL", "{:.3f}"),
    "ece": ("ECE", "{:.3f}"),
    "aurc": ("AURC", "{:.3f}"),
    "corrupted_accuracy": ("Corrupted: accuracy", "{:.1%}"),
    "corrupted_log_likelihood": ("LL", "{:.3f}"),
    "corrupted_ece": ("ECE", "{:.3f}"),
    **{f"{key}_mean": (f"AUROC: {title}", "{:.3f}") for key, title in SCORES.items()},
    "seconds": ("Training, s", "{:.0f}"),
}
BY_CORRUPTION: Columns = {f"corrupted_{kind}": (kind, "{:.2f}") for kind in CORRUPTIONS}
BY_OTHER: Columns = {
    f"{key}_{name}": (f"{name}: {title}", "{:.2f}")
    for name in (*SETS, "noise")
    for key, title in SCORES.items()
}
DIFFERENCES: Columns = {
    key: COLUMNS[key] for key in ("log_likelihood", "corrupted_log_likelihood", "entropy_mean")
}
BESIDE = ("network, temperature", "ensemble of five networks")


def show(path: Path, plot: Path | None) -> None:
    """Tables in Markdown, and the picture."""
    rows = rows_of(path)
    for data in dict.fromkeys(row["data"] for row in rows):
        found: dict[str, dict[int, dict[str, float]]] = {}
        for row in rows:
            if row["data"] == data:
                found.setdefault(row["method"], {})[row["group"]] = summary(row)
        print_table(data, COLUMNS, found)
        print_table(f"{data}: LL by corruption", BY_CORRUPTION, found)
        print_table(f"{data}: AUROC by other data", BY_OTHER, found)
        for other in (name for name in BESIDE if name in found):
            less = {method: differences(mine, found[other]) for method, mine in found.items()}
            print_table(f"{data}: less {other}, group by group", DIFFERENCES, less)
    if plot is not None:
        draw(rows, plot)


def differences(
    mine: dict[int, dict[str, float]], others: dict[int, dict[str, float]]
) -> dict[int, dict[str, float]]:
    """Each number less that of the same group."""
    return {
        group: {key: mine[group][key] - others[group][key] for key in DIFFERENCES}
        for group in mine.keys() & others.keys()
    }


def print_table(
    title: str, columns: Columns, found: dict[str, dict[int, dict[str, float]]]
) -> None:
    """A row for each method: n, and mean ± standard error over the seeds."""
    print(f"\n| {title} | n | " + " | ".join(label for label, _ in columns.values()) + " |")
    print("|" + "---|" * (len(columns) + 2))
    for method, seeds in found.items():
        cells = []
        for key, (_, form) in columns.items():
            values = [each.get(key, math.nan) for each in seeds.values()]
            cells.append(cell([value for value in values if not math.isnan(value)], form))
        print(f"| {method} | {len(seeds)} | " + " | ".join(cells) + " |")


def cell(values: list[float], form: str) -> str:
    """Mean ± standard error."""
    if not values:
        return "–"
    found = summarise(values)
    text = form.format(found.mean)
    if found.standard_error is not None:
        text += f" ± {form.format(found.standard_error)}"
    return text.replace("-", "−")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Log-likelihood by the strength of corruptions, and AUROC by other data."""
    from matplotlib.figure import Figure

    from gramian.experiments.plots.style import save

    sets = list(dict.fromkeys(row["data"] for row in rows))
    methods = sorted({row["method"] for row in rows})  # deep kernel machines first
    figure = Figure(figsize=(6.0 * len(sets), 9.0), layout="constrained")
    axes = figure.subplots(2, len(sets), squeeze=False)
    for column, data in enumerate(sets):
        above, below = axes[0][column], axes[1][column]
        for place, method in enumerate(methods):
            found = [row for row in rows if (row["data"], row["method"]) == (data, method)]
            if not found:
                continue
            marker, line = ("o", "-") if method.startswith("DKM") else ("s", "--")
            style = {"color": f"C{place}", "label": method, "marker": marker}
            levels = [np.mean([by_strength(row, s) for row in found]) for s in range(6)]
            above.plot(range(6), levels, linestyle=line, **style)
            others = list(found[0]["unlike"])
            scores = found[0]["unlike"][others[0]]
            best = "mutual_information" if "mutual_information" in scores else "entropy"
            heights = [np.mean([row["unlike"][o][best] for row in found]) for o in others]
            across = np.arange(len(others)) + 0.08 * (place - (len(methods) - 1) / 2)
            below.plot(across, heights, linestyle="", **style)
        above.set(title=data, xlabel="strength of corruption", ylabel="log-likelihood")
        below.set(ylabel="AUROC: mutual information, or entropy without one", ylim=(0, 1.02))
        below.set_xticks(range(len(others)), others)
        below.axhline(0.5, color="grey", linewidth=0.5)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    save(figure, path)


def by_strength(row: dict[str, Any], strength: int) -> float:
    """Mean log-likelihood over the corruptions of one strength; of the test set for 0."""
    if strength == 0:
        return float(row["test"]["log_likelihood"])
    values = [v for name, v in row["corrupted"].items() if name.endswith(f":{strength}")]
    return float(np.mean([value["log_likelihood"] for value in values]))


def main() -> None:
    """Run, or show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("run")
    first.add_argument("--data", choices=SETS, required=True)
    first.add_argument("--output", type=Path, default=Path("results/study.jsonl"))
    first.add_argument("--folder", type=Path, default=Path("runs/study"))
    first.add_argument("--groups", type=int, nargs="+", default=[0, 1, 2])
    first.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    second = commands.add_parser("show")
    second.add_argument("results", type=Path)
    second.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        show(options.results, options.plot)
    else:
        run(options.data, options.output, options.folder, options.groups, options.methods)


if __name__ == "__main__":
    main()
