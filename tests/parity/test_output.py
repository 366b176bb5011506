"""The output layer and both likelihoods against the published implementation."""

import pytest
import torch

from gramian import DKMResult, Marginals, objective
from gramian.nn.likelihoods import Categorical, Gaussian, sample
from gramian.nn.steps.output import GPOutput
from tests.parity.fixture import (
    LAYER,
    assert_close,
    assert_gradients,
    blocks,
    load,
    names,
    set_parameters,
)


@pytest.mark.parametrize("name", names("output_"))
def test_output(name):
    arrays = load(name)
    divergence = "taylor" if arrays["taylor"] else "exact"
    P, C = arrays["param_mu"].shape
    layer = GPOutput(P, C, divergence, bool(arrays["tempered"])).double()
    parameters = {"param_mu": layer.q_mean, "param_V": layer.q_cov.raw_factor}
    set_parameters({parameters[key]: arrays[key] for key in parameters})
    assert_close(layer.q_cov.factor, arrays["chol_A"], LAYER, "chol_A")
    assert_close(layer.q_cov.matrix, arrays["A"], LAYER, "A")

    K = blocks(arrays, "in_")
    q, kl = layer(K)
    noise, labels, targets = arrays["noise"], arrays["labels"], arrays["targets"]
    assert_close(q.mean, arrays["mean_f"], LAYER, "mean_f")
    assert_close(q.var, arrays["var_f"], LAYER, "var_f")
    assert_close(sample(q, noise), arrays["samples"], LAYER, "samples")
    assert_close(-kl, arrays["objective"], LAYER, "objective")
    assert_gradients(-kl, K, parameters, arrays, "grad_objective_")

    categorical = Categorical(C, estimator="monte_carlo")
    terms = objective(
        DKMResult(q, {"output": kl}, {}), categorical, labels, noise, int(arrays["num_datapoints"])
    )
    assert_close(terms.expected_log_lik, arrays["ell_categorical"], LAYER, "ell_categorical")
    assert_gradients(terms.expected_log_lik, K, parameters, arrays, "grad_ell_categorical_")
    assert_close(terms.total, arrays["total_categorical"], LAYER, "total_categorical")
    assert_gradients(terms.total, K, parameters, arrays, "grad_total_categorical_")
    assert_close(
        categorical.predict(q, noise)["probabilities"], arrays["pred_probs"], LAYER, "pred_probs"
    )
    clipped = categorical.log_marginal(q, labels, noise, clip=True)
    assert_close(clipped, arrays["pred_log_prob_labels"], LAYER, "pred_log_prob_labels")

    gaussian = Gaussian(
        C, estimator="monte_carlo", noise_var=arrays["noise_var"].item(), shared_noise=True
    ).double()
    set_parameters({gaussian.log_noise_var: arrays["noise_var"].log()})
    ell = gaussian.expected_log_prob(q, targets, noise)
    assert_close(ell.mean(), arrays["ell_gaussian"], LAYER, "ell_gaussian")
    assert_close(ell.sum(), arrays["ell_gaussian_sum"], LAYER, "ell_gaussian_sum")
    assert_gradients(ell.mean(), K, parameters, arrays, "grad_ell_gaussian_")
    mean, var = gaussian.predict(q, noise).values()
    assert_close(mean, arrays["pred_gauss_mean"], LAYER, "pred_gauss_mean")
    assert_close(var, arrays["pred_gauss_var"], LAYER, "pred_gauss_var")
    unit = Gaussian(C, estimator="monte_carlo").double().expected_log_prob(q, targets, noise)
    assert_close(unit.mean(), arrays["ell_gaussian_unit_noise"], LAYER, "ell_gaussian_unit_noise")


def test_exact_linear_part_has_the_same_mean_as_sampling():
    generator = torch.Generator(torch.empty(0).device).manual_seed(0)  # the default device
    q = Marginals(torch.randn(3, 4, generator=generator), torch.tensor([[0.3], [1.0], [2.0]]))
    noise = torch.randn(200_000, 1, 4, generator=generator)
    y = torch.tensor([0, 3, 1])
    exact = Categorical(4).expected_log_prob(q, y, noise)
    sampled = Categorical(4, estimator="monte_carlo").expected_log_prob(q, y, noise)
    torch.testing.assert_close(exact, sampled, atol=0.02, rtol=0)
