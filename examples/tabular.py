"""Three small tables: default deep kernel machines beside support vectors and Gaussian processes.

Five folds each; every model gets features that were standardised on the training fold. The table
shows mean ± standard error over the folds: accuracy or root mean squared error, log-likelihood a
test row (of regression targets in units of their standard deviation in the training fold), and
seconds for training. `python examples/tabular.py [wine breast_cancer diabetes]`
"""

import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from gramian.train.estimators import DKMClassifier, DKMRegressor

try:
    import gpytorch  # type: ignore[import-untyped]
except ImportError:
    gpytorch = None

NUM_INDUCING = 100
Prediction = tuple[np.ndarray, np.ndarray]  # mean and standard deviation


def svgp(
    x: Any,
    y: Any,
    x_test: Any,
    num_classes: int,
    steps: int = 400,
    num_inducing: int = NUM_INDUCING,
    batch_size: int | None = None,
    lr: float = 0.05,
    natural_lr: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Any:
    """GPyTorch's sparse variational Gaussian process, one lengthscale a feature.

    RBF kernel, learned inducing points that start at random rows, ``steps`` steps of Adam, on all
    data or on random batches; with batches the rate falls to 0. With ``natural_lr`` the variational
    distribution takes natural gradients instead. Returns class probabilities, or mean and
    deviation.
    """
    torch.manual_seed(0)
    X, T = torch.tensor(x, dtype=dtype), torch.tensor(x_test, dtype=dtype)
    count = max(num_classes, 1)
    start = X[torch.randperm(len(X))[:num_inducing]].repeat(count, 1, 1)

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            batch = torch.Size([count])
            family = gpytorch.variational.CholeskyVariationalDistribution
            if natural_lr is not None:
                family = gpytorch.variational.NaturalVariationalDistribution
            q = family(start.shape[1], batch_shape=batch)
            strategy: Any = gpytorch.variational.VariationalStrategy(self, start, q)
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(
                strategy, num_tasks=count
            )
            super().__init__(strategy)
            self.mean = gpytorch.means.ConstantMean(batch_shape=batch)
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1], batch_shape=batch)
            rbf.lengthscale = math.sqrt(X.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    if num_classes:
        likelihood = gpytorch.likelihoods.SoftmaxLikelihood(
            num_features=count, num_classes=count, mixing_weights=False
        )
        targets = torch.tensor(y)
    else:
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=1)
        targets = torch.tensor(y, dtype=dtype)[:, None]
    model = Model().to(dtype)
    likelihood = likelihood.to(dtype)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(X))
    others = model.parameters() if natural_lr is None else model.hyperparameters()
    optimisers: list[Any] = [torch.optim.Adam([*others, *likelihood.parameters()], lr)]
    if natural_lr is not None:
        q = model.variational_parameters()
        optimisers.append(gpytorch.optim.NGD(q, num_data=len(X), lr=natural_lr))
    with gpytorch.settings.num_likelihood_samples(32):
        for step in range(steps):
            rows: Any = slice(None)
            if batch_size is not None:
                rows = torch.randint(len(X), (batch_size,))
                optimisers[0].param_groups[0]["lr"] = lr * (1 - step / steps)
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss = -elbo(model(X[rows]), targets[rows])
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.num_likelihood_samples(500):
        prediction = likelihood(model(T))
        if num_classes:
            return prediction.probs.mean(0).numpy()
        return prediction.mean[:, 0].numpy(), prediction.variance[:, 0].sqrt().numpy()


def svc(x: Any, y: Any, x_test: Any, num_classes: int) -> Any:
    """Support vectors with calibrated probabilities, or with the residuals' deviation."""
    if num_classes:
        return CalibratedClassifierCV(SVC(), ensemble=False).fit(x, y).predict_proba(x_test)
    model = SVR().fit(x, y)
    return model.predict(x_test), np.full(len(x_test), np.std(y - model.predict(x)))


def exact_gp(x: Any, y: Any, x_test: Any, num_classes: int) -> Any:
    """scikit-learn's Gaussian process; one lengthscale, optimised."""
    rbf = ConstantKernel(1.0) * RBF(math.sqrt(x.shape[1]), (1e-2, 1e4))
    if num_classes:
        return GaussianProcessClassifier(rbf, random_state=0).fit(x, y).predict_proba(x_test)
    model = GaussianProcessRegressor(
        rbf + WhiteKernel(0.5), normalize_y=True, n_restarts_optimizer=2, random_state=0
    )
    return model.fit(x, y).predict(x_test, return_std=True)


def dkm(x: Any, y: Any, x_test: Any, num_classes: int) -> Any:
    """This library, default settings."""
    if num_classes:
        return DKMClassifier(random_state=0).fit(x, y).predict_proba(x_test)
    return DKMRegressor(random_state=0).fit(x, y).predict(x_test, return_std=True)


MODELS: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    "SVM, calibrated": svc,
    "GP, scikit-learn": exact_gp,
    "SVGP, GPyTorch, ARD": svgp,
    "DKM (ours, default)": dkm,
}


def figures(model: Any, x: Any, y: Any, folds: Any, num_classes: int) -> np.ndarray:
    """Accuracy or error, log-likelihood and seconds of each fold, [folds, 3]."""
    rows = []
    for train, test in folds.split(x, y):
        scaler = StandardScaler().fit(x[train])
        inputs, x_test = scaler.transform(x[train]), scaler.transform(x[test])
        start = time.perf_counter()
        if num_classes:
            p = model(inputs, y[train], x_test, num_classes)
            seconds = time.perf_counter() - start
            right = np.log(np.clip(p[np.arange(len(test)), y[test]], 1e-12, 1))
            rows.append(((p.argmax(1) == y[test]).mean(), right.mean(), seconds))
        else:
            shift, scale = y[train].mean(), y[train].std()
            mean, std = model(inputs, (y[train] - shift) / scale, x_test, 0)
            seconds = time.perf_counter() - start
            z = (y[test] - shift) / scale
            log_lik = -0.5 * ((z - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
            rows.append((scale * math.sqrt(((z - mean) ** 2).mean()), log_lik.mean(), seconds))
    return np.array(rows)


def main(names: list[str]) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)  # hyperparameters at their bounds
    for name in names:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        num_classes = len(np.unique(y)) if name != "diabetes" else 0
        fold = StratifiedKFold if num_classes else KFold
        folds = fold(5, shuffle=True, random_state=0)
        print(f"\n**{name}**, {len(x)} rows, {x.shape[1]} features\n")
        print(f"| Model | {'Accuracy' if num_classes else 'RMSE'} | Log-likelihood | Seconds |")
        print("|---|---|---|---|", flush=True)
        for label, model in MODELS.items():
            if model is svgp and gpytorch is None:
                continue
            rows = figures(model, x, y.astype(int if num_classes else float), folds, num_classes)
            mean, error = rows.mean(0), rows.std(0, ddof=1) / math.sqrt(len(rows))
            digits = 3 if num_classes else 1
            first = f"{mean[0]:.{digits}f} ± {error[0]:.{digits}f}"
            print(
                f"| {label} | {first} | {mean[1]:.3f} ± {error[1]:.3f} | {mean[2]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ["breast_cancer", "wine", "diabetes"])
