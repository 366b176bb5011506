import torch

from gramian import DenseDKM, DenseDKMConfig
from gramian.nn.likelihoods import Gaussian
from gramian.train.natural import natural_step_
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
