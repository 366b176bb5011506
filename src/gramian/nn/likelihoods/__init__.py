"""Likelihoods: from marginals q(f) to an expectation for training and a prediction.

Example:
    >>> from gramian import LIKELIHOODS
    >>> {name: likelihood.targets for name, likelihood in LIKELIHOODS.items()}
    {'categorical': 'classes', 'gaussian': 'real', 'student_t': 'real', 'poisson': 'counts'}
"""

from gramian.nn.likelihoods.categorical import Categorical
from gramian.nn.likelihoods.gaussian import Gaussian
from gramian.nn.likelihoods.likelihood import (
    Estimator,
    Likelihood,
    LikelihoodConfig,
    Targets,
    draw_noise,
    even_points,
    received,
    sample,
)
from gramian.nn.likelihoods.per_target import PerTarget
from gramian.nn.likelihoods.poisson import Poisson
from gramian.nn.likelihoods.student_t import StudentT
from gramian.nn.named import find
from gramian.nn.setting_checks import check_positive

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "student_t": StudentT,
    "poisson": Poisson,
}
"""Likelihoods by the name that a configuration uses."""

AUTO: dict[Targets, str] = {"classes": "categorical", "real": "gaussian", "counts": "poisson"}
"""What ``auto`` chooses for each kind of targets."""


def find_likelihood(name: str) -> type[Likelihood]:
    """The likelihood of a name or an import path; ``auto`` is that of classes."""
    name = AUTO["classes"] if name == "auto" else name
    return find("likelihood", name, LIKELIHOODS, Likelihood)


def check_likelihood(config: LikelihoodConfig) -> None:
    """Raise ValueError unless the likelihood of a configuration can be built."""
    kind = find_likelihood(config.likelihood)
    if config.num_outputs < kind.fewest_outputs:
        raise ValueError(
            f"num_outputs must be {kind.fewest_outputs} or more, got {config.num_outputs}"
        )
    check_positive(num_samples=config.num_samples, noise_var=config.noise_var)
    if config.estimator not in ("exact", "monte_carlo"):
        raise ValueError(f"estimator must be exact or monte_carlo, got {config.estimator!r}")


def build_likelihood(config: LikelihoodConfig) -> Likelihood:
    """The likelihood that a model's configuration asks for."""
    return find_likelihood(config.likelihood).from_config(config)


__all__ = [
    "AUTO",
    "LIKELIHOODS",
    "Categorical",
    "Estimator",
    "Gaussian",
    "Likelihood",
    "LikelihoodConfig",
    "PerTarget",
    "Poisson",
    "StudentT",
    "Targets",
    "build_likelihood",
    "check_likelihood",
    "draw_noise",
    "even_points",
    "find_likelihood",
    "received",
    "sample",
]
