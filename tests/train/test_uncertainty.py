"""The scores of unlike data against their definitions."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from gramian import Marginals
from gramian.train.predict.uncertainty import detections, latent_scores, probabilities_and_scores
from tests.train.tiny import trainer


def test_each_score_is_its_definition_and_larger_for_what_is_less_certain():
    """Of a sure prediction, one between two classes, and one about which f itself is unknown."""
    predictor = trainer().predictor
    mean = torch.zeros(3, 10)
    mean[0, 4], mean[1, 4], mean[1, 7] = 12.0, 12.0, 12.0
    q = Marginals(mean, torch.tensor([[1e-6], [1e-6], [9.0]]))
    p, scores = probabilities_and_scores(predictor, q)
    assert p[0].argmax() == 4
    np.testing.assert_allclose(scores["doubt"], 1 - p.max(1), atol=1e-12)
    np.testing.assert_allclose(scores["entropy"], entropy(p, axis=1), atol=1e-6)
    assert scores["doubt"] == pytest.approx([0, 0.5, 0.8], abs=0.1)
    assert scores["latent_variance"] == pytest.approx([1e-6, 1e-6, 9])
    assert scores["mutual_information"][:2] == pytest.approx([0, 0], abs=1e-4)
    assert scores["mutual_information"][2] > 0.3
    assert latent_scores(predictor, q).keys() == scores.keys()
    found = detections({"doubt": scores["doubt"][:1]}, {"doubt": scores["doubt"][1:], "other": p})
    assert found == {"doubt": {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}}
