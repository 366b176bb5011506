"""How unlike its training data a classifier finds new ones: scores, larger for stranger data."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch

from gramian.gram.blocks import Marginals
from gramian.metrics import Array, detection, entropies
from gramian.train.predict.predictor import Predictor

SCORES = {
    "entropy": "entropy of the prediction",
    "doubt": "1 − largest probability",
    "latent_variance": "variance of the logits",
    "mutual_information": "mutual information of class and logits",
}
CHUNK = 1024


@torch.no_grad()
def probabilities_and_scores(predictor: Predictor, q: Marginals) -> tuple[Array, dict[str, Array]]:
    """Class probabilities [N, C], and each score [N], of data with the marginals ``q``.

    A network's logits have no variance, and so no mutual information: these are left out.
    """
    likelihood, samples = predictor.model.likelihood, predictor.samples()
    probabilities, information = [], []
    for part in q.split(CHUNK):
        probabilities.append(likelihood.predict(part, samples)["probabilities"].cpu().double())
        shared = likelihood.mutual_information(part, samples)
        information.append(torch.zeros(len(part.mean)) if shared is None else shared.cpu())
    p = torch.cat(probabilities).numpy()
    p = p / p.sum(1, keepdims=True)
    doubt = np.sort(p)[:, :-1].sum(1)  # more digits than 1 − p.max(1) where p is nearly 1
    scores = {"entropy": entropies(p), "doubt": doubt}
    if q.var.any():
        scores["latent_variance"] = q.var.double().mean(1).cpu().numpy()
        scores["mutual_information"] = torch.cat(information).double().numpy()
    return p, scores


def detections(like: dict[str, Array], unlike: dict[str, Array]) -> dict[str, dict[str, float]]:
    """AUROC, AUPR and FPR at 95 % of each score that both have."""
    return {name: asdict(detection(like[name], unlike[name])) for name in like if name in unlike}


def latent_scores(predictor: Predictor, q: Marginals) -> dict[str, Array]:
    """All scores of a classifier; the variance of the functions alone for a regression."""
    if predictor.class_names:
        return probabilities_and_scores(predictor, q)[1]
    return {"latent_variance": q.var.double().mean(1).cpu().numpy()}
