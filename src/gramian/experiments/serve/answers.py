"""What is said about data: predictions, how sure they are, how strange the data, and what is alike.

One pass over a batch, whoever sent its data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gramian.experiments.explanations.comparison import STRANGE, Similar, Usual
from gramian.experiments.explanations.pictures import as_picture, data_url, enlarged
from gramian.gram.blocks import Marginals
from gramian.nn.explain import TOP
from gramian.nn.likelihoods.likelihood import sample
from gramian.train.predict.predictor import Predictor, described
from gramian.train.predict.uncertainty import latent_scores, probabilities_and_scores

PICTURE = 64  # pixels of a training image that is shown
Answer = dict[str, Any]


class Answers:
    """A model that answers, and what it compares new data with.

    Args:
        predictor: of classes or real targets.
        usual: data of the same kind, to say what is unlike them; None: nothing is said of it.
        similar: training data, to show what is alike; None: nothing is shown.
    """

    def __init__(
        self, predictor: Predictor, usual: Usual | None = None, similar: Similar | None = None
    ) -> None:
        self.predictor, self.usual, self.similar = predictor, usual, similar
        self.predict = predictor.for_prediction()
        self.samples = predictor.samples()

    @torch.no_grad()
    def __call__(self, x: Tensor, num_similar: list[int]) -> list[Answer]:
        """An answer for each of ``x``, with as many similar training data as each asks for."""
        q = self.predict(x)
        answers = self._classes(q) if self.predictor.class_names else self._targets(q)
        if self.usual is not None:
            shares = self.usual.shares(latent_scores(self.predictor, q))
            for number, answer in enumerate(answers):
                mine = {score: float(values[number]) for score, values in shares.items()}
                answer["strangeness"] = mine
                answer["unlike"] = any(share > STRANGE for share in mine.values())
        most = max(num_similar)
        if self.similar is not None and most > 0:
            wanted = torch.tensor([number for number, k in enumerate(num_similar) if k > 0])
            places, values = self.similar.nearest(x[wanted], most)[TOP]
            for row, number in enumerate(wanted.tolist()):
                k = num_similar[number]
                answers[number]["similar"] = [
                    {"similarity": float(value), **self._shown(int(place))}
                    for place, value in zip(places[row, :k], values[row, :k], strict=True)
                ]
        return answers

    def _classes(self, q: Marginals) -> list[Answer]:
        names = self.predictor.class_names
        p, scores = probabilities_and_scores(self.predictor, q)
        spread = sample(q, self.samples).softmax(-1).std(0)
        best = p.argmax(1).tolist()
        return [
            {
                "class": names[c],
                "probability": float(p[n, c]),
                "std": float(spread[n, c]),
                "probabilities": dict(zip(names, p[n].tolist(), strict=True)),
                **{score: float(values[n]) for score, values in scores.items()},
            }
            for n, c in enumerate(best)
        ]

    def _targets(self, q: Marginals) -> list[Answer]:
        found = described(self.predictor.model.likelihood, q, self.samples)
        mean, std = found["mean"].tolist(), found["variance"].sqrt().tolist()
        latent = found["latent_variance"].mean(1).tolist()
        return [
            {"mean": m, "std": s, "latent_variance": v}
            for m, s, v in zip(mean, std, latent, strict=True)
        ]

    def _shown(self, place: int) -> Answer:
        """A training image or row, and what it is."""
        assert self.similar is not None
        train = self.similar.train
        x, y = train.x[place], train.y[place]
        shown: Answer = {"number": place}
        if train.class_names:
            shown["class"] = train.class_names[int(y)]
        else:
            shown["target"] = y.flatten().tolist()
        if x.ndim == 3 and x.dtype == torch.uint8:
            shown["picture"] = data_url(enlarged(as_picture(x.numpy()), PICTURE))
        elif x.ndim == 1:
            shown["row"] = x.tolist()
        return shown
