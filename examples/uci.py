"""UCI regression: the ladder of deep kernel machines beside GPyTorch's Gaussian processes.

`python examples/uci.py uci_regression.npz` with arrays `<set>_x`, `<set>_y` and `<set>_test_idx`, a
row of test indices for each split. Every model has a squared exponential kernel with a lengthscale
for each feature, in float64. What is chosen (ν, SKR) is chosen by the log-likelihood of a fifth of
the training part; then the model is trained on all of it. Each result is a line of the output file;
what is there is not run again. The table shows mean ± standard error over the splits: root mean
squared error and log-likelihood a test point, both in the units of the target.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpytorch  # type: ignore[import-untyped]
import numpy as np
import torch
from linear_operator.utils.errors import NanError, NotPSDError  # type: ignore[import-untyped]
from tabular import svgp

from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankDKM
from gramian.nn.steps.kernels import Jitter
from gramian.train.estimators import DKMRegressor
from gramian.train.lbfgs import maximise_from_nngp_, search_

Array = np.ndarray[Any, Any]
Prediction = tuple[Array, Array]  # mean and standard deviation
Choice = dict[str, float]
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
        nu=choice["nu"],
        skr_gamma_fraction=choice.get("gamma_fraction"),
        skr_jitter=choice.get("jitter", 0.0),
        random_state=0,
    )
    mean, std = model.fit(x, y).predict(x_test, return_std=True)
    return mean, std


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    label: str
    fit: Callable[[Array, Array, Array, Choice], Prediction]
    choices: Sequence[Choice]


ENTRIES = {
    "exact_gp": Entry("exact GP, GPyTorch", exact_gp, [{}]),
    "svgp": Entry("SVGP, GPyTorch, 100 inducing", sparse_gp, [{}]),
    "nngp": Entry("NNGP", full_rank, [{"nu": math.inf}]),
    "full_rank": Entry("full-rank DKM", full_rank, FULL_RANK),
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
    start = time.perf_counter()
    choice = choose(ENTRIES[key], x[train], y[train], split)
    rmse, log_lik = scores(ENTRIES[key], choice, (x[train], y[train], x[test], y[test]))
    row = {"set": name, "split": split, "model": key, "rmse": rmse, "log_lik": log_lik}
    return {**row, **choice, "seconds": time.perf_counter() - start}


def print_table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Markdown, a table for each set."""
    for name in names:
        print(f"\n**{name}**\n\n| Model | n | RMSE | Log-likelihood | ν chosen |")
        print("|---|---|---|---|---|")
        for key, entry in ENTRIES.items():
            mine = [row for row in rows if (row["set"], row["model"]) == (name, key)]
            if len(mine) < 2:
                continue
            figures = np.array([(row["rmse"], row["log_lik"]) for row in mine])
            mean, error = figures.mean(0), figures.std(0, ddof=1) / math.sqrt(len(mine))
            nus = sorted({row["nu"] for row in mine if row.get("nu", math.inf) < math.inf})
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True)]
            chosen = f"{nus[0]:g} to {nus[-1]:g}" if nus else ""
            print(f"| {entry.label} | {len(mine)} | {' | '.join(cells)} | {chosen} |")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["boston", "concrete", "energy", "yacht"])
    parser.add_argument("--models", nargs="+", default=list(ENTRIES), choices=list(ENTRIES))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("runs/uci.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = np.load(arguments.data)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.output.read_text().splitlines() if arguments.output.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["set"], row["split"], row["model"]) for row in rows}
    for split in range(arguments.splits):
        for name in arguments.sets:
            for key in arguments.models:
                if (name, split, key) in done:
                    continue
                rows.append(run(data, name, split, key))
                with arguments.output.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    print_table(rows, arguments.sets)


if __name__ == "__main__":
    main()
