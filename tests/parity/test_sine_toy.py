"""Twenty Adam steps of the paper's toy classifier, step by step."""

import pytest
import torch

from gramian import SKR, DenseDKM, DenseDKMConfig, NormChoice, objective
from gramian.gram.linalg import condition_number
from tests.parity.fixture import assert_close, load, set_parameters

RUNS = sorted(key.removesuffix(".cond_G") for key in load("sine_toy") if key.endswith(".cond_G"))


@pytest.mark.parametrize("run", RUNS)
def test_sine_toy(run):
    arrays = load("sine_toy")
    x_ind, x, y = arrays["x_ind"], arrays["x_train"], arrays["y_train"]
    divisor = int(arrays[f"{run}.ncol_div"])
    config = DenseDKMConfig(
        num_features=x.shape[1],
        num_outputs=2,
        num_inducing=len(x_ind),
        nu=arrays[f"{run}.nu"].item(),
        divergence="taylor" if arrays[f"{run}.taylor_gram"] else "exact",
        skr=SKR(1 / divisor) if divisor else SKR.off(),
        norm=NormChoice.off(),
        weight_var=None,
        bias_var=None,
        tempered=False,
        estimator="monte_carlo",
    )
    model = DenseDKM.from_config(config).double()
    model.output.divergence = "taylor"  # in every published run, whatever the Gram layer has
    model.inputs.set_inducing_(x_ind)
    one_hot = torch.nn.functional.one_hot(arrays["y_ind"], 2).double()
    set_parameters(
        {
            model.output.q_mean: one_hot,
            model.output.q_cov.raw_factor: arrays["param_out_V_start"],
        }
    )
    model.eval().start_grams_({})
    model.initialised.fill_(True)
    model.train()
    inducing_gram = model.layers["layer1"].gram.inducing_gram
    start = condition_number(inducing_gram.matrix)
    assert start == pytest.approx(arrays[f"{run}.cond_G_start"].item(), rel=1e-5)

    betas = (arrays["beta1"].item(), arrays["beta2"].item())
    adam = torch.optim.Adam(
        model.parameters(), arrays["lr"].item(), betas, arrays["adam_eps"].item()
    )
    totals, expected, conditions = [], [], []
    for step in range(int(arrays["steps"])):
        noise = {}
        if divisor:
            gamma = config.skr.gamma(len(x_ind))
            noise = {"layer1.gram": arrays["noise_gram"][step, :, :gamma]}
        mc = arrays["noise_mc"][step]
        terms = objective(model(x, noise), model.likelihood, y, mc, len(x))
        adam.zero_grad()
        terms.loss.backward()
        adam.step()
        totals.append(terms.total.detach())
        expected.append(terms.expected_log_lik.detach())
        conditions.append(condition_number(inducing_gram.matrix))

    assert_close(torch.stack(totals), arrays[f"{run}.objective"], 1e-6, "objective")
    assert_close(torch.stack(expected), arrays[f"{run}.ell"], 1e-6, "ell")
    cond = torch.tensor(conditions, dtype=torch.float64)
    assert_close(cond, arrays[f"{run}.cond_G"], 1e-5, "condition number")
    diagonal = inducing_gram.raw_factor.diagonal()
    assert_close(diagonal, arrays[f"{run}.final_V_gram_diag"], 1e-6, "final diagonal of V")
    points = model.inputs.inducing_points
    assert_close(points, arrays[f"{run}.final_x_ind"], 1e-6, "final inducing points")
