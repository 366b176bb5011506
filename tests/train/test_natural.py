import torch

from gramian import Dataset, DenseDKM, DenseDKMConfig
from gramian.nn.likelihoods import Gaussian
from gramian.train import natural
from gramian.train.config import TrainConfig
from gramian.train.data import Augmentation, RowScaler
from gramian.train.natural import NaturalTrainer, natural_step_
from gramian.train.runtime.engine import Engine
from gramian.train.task import Task, untrained
from gramian.train.trial import TRIALS, trial_seconds
from tests.samples import generator


def test_a_negative_curvature_counts_as_none(monkeypatch):
    """Where log p is not concave: the precision of q is that of the prior and of other data."""
    config = DenseDKMConfig(
        num_features=2, num_inducing=4, likelihood="gaussian", divergence="exact", num_samples=1
    )
    model = DenseDKM.from_config(config).double()
    x = torch.randn(12, 2, generator=generator(), dtype=torch.float64)
    model.initialise_(x, generator())
    w = torch.linspace(-3, 2, 12, dtype=torch.float64)
    found = []
    for curvature in (w, w.clamp_min(0)):
        monkeypatch.setattr(
            Gaussian, "derivatives", lambda self, q, y, noise, w=curvature: (q.mean * 0, w)
        )
        natural_step_(model, [(x, x, None)], 12, 1.0, torch.zeros(1, 1, 2).double())
        found.append(model.output.q_cov.factor.detach().clone())
    assert torch.equal(*found)
    assert (torch.linalg.eigvalsh(found[0] @ found[0].mT) > 0).all()


def test_one_full_step_is_exact_for_targets_with_a_noise_each():
    """q_mean is that of a model of each target alone; q_cov has the mean of their precisions."""
    noise_var = torch.tensor([0.0025, 0.25, 4.0], dtype=torch.float64)
    x = torch.randn(30, 2, generator=generator(), dtype=torch.float64)
    y = torch.randn(30, 3, generator=generator(), dtype=torch.float64)

    def stepped(targets, variances):
        config = DenseDKMConfig(
            num_features=2,
            num_inducing=8,
            num_outputs=len(variances),
            likelihood="gaussian",
            divergence="exact",
            output_start="kernel",
        )
        model = DenseDKM.from_config(config).double()
        model.initialise_(x, generator())
        model.likelihood.log_noise_var.data.copy_(variances.log())
        samples = torch.zeros(1, 1, len(variances)).double()
        for rho in (0.3, 1.0):
            natural_step_(model, [(x, targets, None)], 30, rho, samples)
        return model.output

    together = stepped(y, noise_var)
    alone = [stepped(y[:, c : c + 1], noise_var[c : c + 1]) for c in range(3)]
    means = torch.cat([output.q_mean for output in alone], 1)
    torch.testing.assert_close(together.q_mean, means, rtol=1e-7, atol=1e-9)
    precisions = [torch.linalg.inv(output.q_cov.matrix) for output in alone]
    mean = torch.stack(precisions).mean(0)
    torch.testing.assert_close(torch.linalg.inv(together.q_cov.matrix), mean, rtol=1e-6, atol=1e-6)


def test_a_step_is_timed_with_its_natural_half_and_leaves_q_as_it_is(monkeypatch):
    x = torch.randn(20, 2, generator=generator(0))
    data = Dataset(x, x[:, :1].sin())
    config = DenseDKMConfig(
        num_features=2, num_outputs=1, num_inducing=5, divergence="exact", likelihood="gaussian"
    )
    settings = TrainConfig(kind="dense", model=config, natural=True, max_epochs=2, batch_size=10)
    task = Task(data, None, None, RowScaler.fit(x), Augmentation(0, False))
    predictor = untrained(config, data, task.scaler)
    run = NaturalTrainer(predictor, task, settings, Engine("cpu"), quiet=True)
    run.start(resume=False)
    run.sums = {"clamped": 0}
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    steps = []
    monkeypatch.setattr(
        natural, "natural_step_", lambda *given: steps.append(natural_step_(*given)) or steps[-1]
    )
    trial_seconds(run)
    assert len(steps) == 1 + TRIALS
    assert all(value.equal(before[name]) for name, value in run.model.state_dict().items())
    assert run.sums == {"clamped": 0}
