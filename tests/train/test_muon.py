import pytest
import torch

from gramian.train.config import ConfigError, LRFactors, TrainConfig, build_model
from gramian.train.muon import Muon, orthogonal
from gramian.train.optimise import build_optimiser, kind_of, set_learning_rate_
from gramian.train.record.run_folder import RunFolder
from gramian.train.runtime.signals import Stopped
from paper.registry import same_widths
from tests.samples import generator
from tests.train.test_trainer import assert_same_weights, stop_after
from tests.train.tiny import MODEL, config, trainer, weights


@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (7, 7), (1, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_singular_vectors_stay_and_the_values_come_near_one(shape, dtype):
    M = torch.randn(shape, generator=generator(0), dtype=dtype)
    U, s, Vh = torch.linalg.svd(M, full_matrices=False)
    turned = U.mT @ orthogonal(1000 * M) @ Vh.mT
    values = turned.diagonal()
    small = s < 0.05 * s.norm()  # five turns leave these below 1
    assert ((values > 0.65) & (values < 1.25))[~small].all()
    assert (values > 0).all()
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    assert (turned - values.diag()).abs().max() < tolerance


def test_the_iteration_is_the_usual_one():
    """Newton and Schulz's turns on the matrix itself."""
    M = torch.randn(6, 30, generator=generator(1), dtype=torch.float64)
    X = M / M.norm()
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    torch.testing.assert_close(orthogonal(M), X)


def test_a_matrix_without_gradient_in_any_direction_stays():
    assert orthogonal(torch.zeros(3, 4)).eq(0).all()


def test_steps_of_a_matrix_by_hand():
    """Two of them with different gradients: the second shows the momentum and Nesterov's part."""
    start = torch.randn(2, 3, 2, 2, generator=generator(0))
    parameter = torch.nn.Parameter(start.clone())
    groups = [{"params": [parameter], "matrices": True}]
    optimiser = Muon(groups, lr=0.1, betas=(0.9, 0.99), momentum=0.95, weight_decay=0.5)
    expected, M = start, torch.zeros_like(start)
    for seed in (1, 2):
        gradient = torch.randn(start.shape, generator=generator(seed))
        parameter.grad = gradient.clone()
        optimiser.step()
        M = 0.95 * M + 0.05 * gradient
        direction = orthogonal((0.05 * gradient + 0.95 * M).flatten(1)).view_as(start)
        expected = 0.95 * expected - 0.1 * 0.2 * 12**0.5 * direction
    torch.testing.assert_close(parameter.detach(), expected)


def test_all_but_the_matrices_follow_adam():
    ours, theirs = (trainer(config(optimiser=name, momentum=0.95)) for name in ("muon", "adam"))
    for run in (ours, theirs):
        run.start(resume=False)
        run.train_step()
    for (path, a), b in zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b) == (kind_of(path, a) != "mixing"), path


def test_kinds_of_parameters_and_their_learning_rates():
    model = build_model(MODEL)
    kinds = {path: kind_of(path, p) for path, p in model.named_parameters()}
    assert kinds["inputs.inducing_patches"] == "inputs"
    assert kinds["layers.stem.conv.raw_mixing"] == "mixing"
    assert kinds["layers.stem.gram.inducing_gram.raw_factor"] == "gram"
    assert kinds["layers.stem.kernel.log_weight_var"] == "scales"
    assert kinds["output.q_mean"] == kinds["output.q_cov.raw_factor"] == "output"
    settings = config(lr_factors=LRFactors(gram=0.5, output=0.0), optimiser="muon")
    optimiser = build_optimiser(model, settings)
    set_learning_rate_(optimiser, 0.02)
    rates = {group["kind"]: group["lr"] for group in optimiser.param_groups}
    assert rates == {"inputs": 0.02, "mixing": 0.02, "gram": 0.01, "scales": 0.02, "output": 0}
    network = build_model(same_widths(MODEL))
    kinds = {path: kind_of(path, p) for path, p in network.named_parameters()}
    assert {path for path in kinds if kinds[path] == "mixing"} == {
        path for path in kinds if "conv" in path or "stem" in path or "shortcut" in path
    }
    assert kinds["network.linear.weight"] == kinds["network.linear.bias"] == "output"


def test_a_factor_of_zero_leaves_a_kind_as_it_starts():
    run = trainer(config(lr_factors=LRFactors(gram=0.0), max_epochs=1))
    run.start(resume=False)
    before = weights(run)
    run.train_step()
    for path, p in run.model.named_parameters():
        assert torch.equal(p, before[path]) == (kind_of(path, p) == "gram"), path


@pytest.mark.parametrize("steps", [2, 4])
def test_a_stopped_run_resumes_bit_exactly(tmp_path, steps):
    settings = config(optimiser="muon", momentum=0.95, weight_decay=0.01, max_epochs=2)
    whole = trainer(settings)
    whole.fit()
    first = trainer(settings, RunFolder(tmp_path))
    stop_after(first, steps)
    with pytest.raises(Stopped):
        first.fit()
    second = trainer(settings, RunFolder(tmp_path))
    second.fit()
    assert second.resumed
    assert_same_weights(weights(second), weights(whole))


def test_the_network_learns_with_it():
    settings = config(
        kind="network",
        model=same_widths(MODEL),
        optimiser="muon",
        lr=0.03,
        lr_factors=LRFactors(output=0.1, scales=0.1),
        max_epochs=25,
        crop_padding=0,
        schedule="one_cycle",
    )
    rows = trainer(settings).fit()
    assert rows[-1]["train_accuracy"] > 0.8 > rows[0]["train_accuracy"]


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="weight_decay is for adamw, sgd and muon"):
        TrainConfig(weight_decay=0.1)
    with pytest.raises(ValueError, match="gram must be 0 or more, got -1"):
        LRFactors(gram=-1.0)
