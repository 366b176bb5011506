"""UCI regression: deep kernel machines beside GPyTorch's Gaussian processes and scikit-learn.

`python -m examples.uci uci_regression.npz` with arrays `<set>_x`, `<set>_y` and `<set>_test_idx`, a
row of test indices for each split. Every kernel machine has a squared exponential kernel with a
lengthscale for each feature, in float64 (SVGP with 512 points: float32). What is chosen (ν and SKR
of the ladder) is chosen by the log-likelihood of a fifth of the training part; then the model is
trained on all of it. Each result is a line of the output file; what is there is not run again. The
tables show mean ± standard error over the splits: log-likelihood a test point and root mean squared
error, both in the units of the target, and processor seconds in one thread.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpytorch  # type: ignore[import-untyped]
import numpy as np
import torch
from linear_operator.utils.errors import NanError, NotPSDError  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neural_network import MLPRegressor

from examples.tabular import svgp
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankDKM
from gramian.nn.steps.kernels import Jitter
from gramian.train.estimators import DKMRegressor
from gramian.train.lbfgs import maximise_from_nngp_, search_
from gramian.train.record.run_folder import commit

Array = np.ndarray[Any, Any]
Prediction = tuple[Array, Array]  # mean and standard deviation
Choice = dict[str, float]
SETS = ["boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"]
FULL_RANK: list[Choice] = [{"nu": nu} for nu in (100.0, 300.0, 1000.0, 10000.0)]
INDUCING: list[Choice] = [{"nu": nu} for nu in (3.0, 30.0, 300.0)]
SKRS: list[Choice] = [
    {**nu, "gamma_fraction": fraction, "jitter": jitter}
    for nu in INDUCING
    for fraction, jitter in [(0.25, 0.1), (4.0, 0.001)]  # the paper's, and a weak one
]


def exact_gp(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """GPyTorch's exact Gaussian process with a constant mean; the search is that of our models."""
    X, Y, T = map(torch.tensor, (x, y, x_test))
    least = gpytorch.constraints.GreaterThan(1e-6)  # below GPyTorch's 1e-4, which yacht runs into
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=least)

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(X, Y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
            rbf.lengthscale = math.sqrt(X.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(rbf)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model().double()
    likelihood.noise = 0.1
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def objective() -> Any:
        try:
            return evidence(model(X), Y)
        except (NanError, NotPSDError) as error:
            raise FloatingPointError(error) from error

    with gpytorch.settings.fast_computations(False, False, False):
        search_(list(model.parameters()), objective, max_iter=200, tol=1e-7)
        model.eval()
        likelihood.eval()
        with torch.no_grad():
            prediction = likelihood(model(T))
            return prediction.mean.numpy(), prediction.variance.sqrt().numpy()


def sparse_gp(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """GPyTorch's SVGP with 100 inducing points."""
    return svgp(x, y, x_test, num_classes=0, steps=1000)


def full_rank(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """One Gram layer over all training points; ν = ∞ is the NNGP."""
    config = FullRankConfig(
        kernel="squared_exponential",
        lengthscales="per_feature",
        kernel_jitter=Jitter(1e-6, 1e-6),
        nu=choice["nu"],
    )
    model = FullRankDKM(torch.tensor(x), torch.tensor(y)[:, None], config)
    model.initialise_()
    maximise_from_nngp_(model, max_iter=100, tol=1e-6)
    with torch.no_grad():
        q = model.predict(torch.tensor(x_test))
        mean, var = model.likelihood.predict(q, torch.empty(0)).values()
    return mean[:, 0].numpy(), var[:, 0].sqrt().numpy()


def inducing(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """One Gram layer over 100 inducing points, with SKR if it is chosen."""
    model = DKMRegressor(
        num_inducing=100,
        num_layers=1,
        nu=choice["nu"],
        skr_gamma_fraction=choice.get("gamma_fraction"),
        skr_jitter=choice.get("jitter", 0.0),
        random_state=0,
    )
    mean, std = model.fit(x, y).predict(x_test, return_std=True)
    return mean, std


def large_sparse_gp(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """GPyTorch's SVGP with 512 inducing points: natural gradients, batches of 512, float32.

    The steps were chosen on validation rows: 1,000 instead of 500 gain 0.01 nats on large sets; on
    small ones 400 with a rate of 0.1 are as good as 1,000 with 0.02, where 400 with 0.02 are not.
    """
    steps, lr = (1000, 0.02) if len(x) > 2000 else (400, 0.1)
    return svgp(
        x, y, x_test, 0, steps=steps, num_inducing=512, batch_size=512, lr=lr, natural_lr=0.1,
        dtype=torch.float32,
    )  # fmt: skip


def default(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
    """Our estimator as it comes, but for the choice."""
    model = DKMRegressor(nu=choice.get("nu", "auto"), random_state=0)
    mean, std = model.fit(x, y).predict(x_test, return_std=True)
    return mean, std


def with_residuals(model: Any) -> Callable[[Array, Array, Array, Choice], Prediction]:
    """A model without variances: the deviation is that of the residuals of a held-out fifth."""

    def fit(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
        held = np.random.default_rng(0).permutation(len(x)) < len(x) // 5
        std = np.std(y[held] - model.fit(x[~held], y[~held]).predict(x[held]))
        return model.fit(x, y).predict(x_test), np.full(len(x_test), std)

    return fit


@dataclass(frozen=True)
class Entry:
    """A row of the tables.

    Args:
        label: in the table.
        fit: trains and predicts.
        choices: of settings.
        most: training points that fit into memory and patience.
    """

    label: str
    fit: Callable[[Array, Array, Array, Choice], Prediction]
    choices: Sequence[Choice]
    most: int = 100_000


BOOSTING = HistGradientBoostingRegressor(early_stopping=True, max_iter=500, random_state=0)
MLP = MLPRegressor(hidden_layer_sizes=(128, 128), early_stopping=True, max_iter=500, random_state=0)
ENTRIES = {
    "dkm": Entry("`DKMRegressor()`", default, [{}]),
    "exact_gp": Entry("exact GP, GPyTorch", exact_gp, [{}], most=2000),
    "svgp_512": Entry("SVGP, GPyTorch, 512 inducing", large_sparse_gp, [{}]),
    "boosting": Entry("HistGradientBoosting", with_residuals(BOOSTING), [{}]),
    "mlp": Entry("MLP 128-128, scikit-learn", with_residuals(MLP), [{}]),
    "dkm_nu30": Entry("`DKMRegressor(nu=30)`, the default before", default, [{"nu": 30.0}]),
    "svgp": Entry("SVGP, GPyTorch, 100 inducing", sparse_gp, [{}]),
    "nngp": Entry("NNGP", full_rank, [{"nu": math.inf}], most=2000),
    "full_rank": Entry("full-rank DKM", full_rank, FULL_RANK, most=2000),
    "inducing": Entry("DKM, 100 inducing", inducing, INDUCING),
    "skr": Entry("DKM, 100 inducing, SKR", inducing, SKRS),
}


def scores(entry: Entry, choice: Choice, parts: Sequence[Array]) -> tuple[float, float]:
    """Train on (x, y), predict (x_test, y_test): RMSE and log-likelihood a point."""
    x, y, x_test, y_test = parts
    shift, scale, centre, spread = x.mean(0), x.std(0), y.mean(), y.std()
    scale[scale == 0] = 1
    inputs, new = (x - shift) / scale, (x_test - shift) / scale
    mean, std = entry.fit(inputs, (y - centre) / spread, new, choice)
    error, std = y_test - (mean * spread + centre), std * spread
    log_lik = -0.5 * (error / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    return math.sqrt((error**2).mean()), float(log_lik.mean())


def choose(entry: Entry, x: Array, y: Array, split: int) -> Choice:
    """The choice with the best log-likelihood on a fifth of the training part."""
    if len(entry.choices) == 1:
        return entry.choices[0]
    order = np.random.default_rng(split).permutation(len(x))
    held, kept = order[: len(x) // 5], order[len(x) // 5 :]
    parts = (x[kept], y[kept], x[held], y[held])
    return max(entry.choices, key=lambda choice: scores(entry, choice, parts)[1])


def run(data: Mapping[str, Array], name: str, split: int, key: str) -> dict[str, Any]:
    """One result."""
    x, y, test = data[f"{name}_x"], data[f"{name}_y"], data[f"{name}_test_idx"][split]
    train = np.setdiff1d(np.arange(len(x)), test)
    start = time.process_time()
    choice = choose(ENTRIES[key], x[train], y[train], split)
    rmse, log_lik = scores(ENTRIES[key], choice, (x[train], y[train], x[test], y[test]))
    row = {"set": name, "split": split, "model": key, "rmse": rmse, "log_lik": log_lik}
    seconds = time.process_time() - start
    return {**row, **choice, "processor_seconds": seconds, "commit": commit(Path(__file__))}


def read(path: Path) -> list[dict[str, Any]]:
    """The results of a file, one a line; none if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add(path: Path, row: dict[str, Any]) -> None:
    """One more result."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def print_tables(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Markdown: a table for each figure, a column for each set."""
    figures = {"log_lik": "Log-likelihood", "rmse": "RMSE", "processor_seconds": "Seconds"}
    for figure, title in figures.items():
        print_table(title, names, figure, [
            [by_split(rows, name, key, figure).values() for name in names] for key in ENTRIES
        ])  # fmt: skip
    title = f"{ENTRIES['dkm'].label} less it, split by split: log-likelihood"
    print_table(title, names, "log_lik", [
        [differences(rows, name, "dkm", key) for name in names] for key in ENTRIES
    ])  # fmt: skip


def print_table(
    title: str, names: Sequence[str], figure: str, values: Sequence[Sequence[Collection[float]]]
) -> None:
    """A line for each model that has results; ``values`` are those of every model on every set."""
    print(f"\n| {title} | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for entry, of_sets in zip(ENTRIES.values(), values, strict=True):
        cells = [cell(of_splits, figure) for of_splits in of_sets]
        if any(cells):
            print(f"| {entry.label} | {' | '.join(cells)} |")


def by_split(rows: Sequence[dict[str, Any]], name: str, key: str, figure: str) -> dict[int, float]:
    """One figure of one model on one set."""
    mine = (row for row in rows if row["set"] == name and row["model"] == key)
    return {row["split"]: row[figure] for row in mine}


def differences(rows: Sequence[dict[str, Any]], name: str, ours: str, key: str) -> list[float]:
    """Of the log-likelihoods, in all splits that both have; none of a model and itself."""
    first, second = (by_split(rows, name, each, "log_lik") for each in (ours, key))
    both = first.keys() & second.keys() if ours != key else ()
    return [first[split] - second[split] for split in both]


def cell(values: Collection[float], figure: str) -> str:
    """Mean ± standard error (n), or nothing for fewer than two results."""
    if len(values) < 2:
        return ""
    mean, error = np.mean([*values]), np.std([*values], ddof=1) / math.sqrt(len(values))
    if figure == "processor_seconds":
        return f"{mean:.0f}"
    digits = max(3, 1 - math.floor(math.log10(error))) if figure == "rmse" and error > 0 else 3
    return f"{mean:.{digits}f} ± {error:.{digits}f} ({len(values)})".replace("-", "−")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--models", nargs="+", default=list(ENTRIES)[:5], choices=list(ENTRIES))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("runs/uci.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = np.load(arguments.data)
    rows = read(arguments.output)
    done = {(row["set"], row["split"], row["model"]) for row in rows}
    for split in range(arguments.splits):
        for name in arguments.sets:
            splits, size = data[f"{name}_test_idx"].shape
            for key in arguments.models:
                too_many = len(data[f"{name}_x"]) - size > ENTRIES[key].most
                if split >= splits or too_many or (name, split, key) in done:
                    continue
                rows.append(run(data, name, split, key))
                add(arguments.output, rows[-1])
                print(rows[-1], flush=True)
    print_tables(rows, arguments.sets)


if __name__ == "__main__":
    main()
