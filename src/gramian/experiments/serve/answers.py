"""What is said about data: predictions, how sure they are, how strange the data, and what is alike.

One pass over a batch, whoever sent its data.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gramian.experiments.explanations.comparison import STRANGE, Similar, Usual
from gramian.experiments.explanations.pictures import as_picture, data_url, enlarged
from gramian.gram.blocks import Marginals
from gramian.gram.errors import NumericalError, within
from gramian.nn.explain import TOP
from gramian.nn.likelihoods.likelihood import draw_noise, sample
from gramian.train.predict.predictor import Predictor, described
from gramian.train.predict.uncertainty import latent_scores, probabilities_and_scores
from gramian.train.runtime.seeds import generator

FEWEST_DRAWS = 100  # of a standard deviation; predictions are averages over fewer, if chosen
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
        self.draws = draw_noise(
            max(FEWEST_DRAWS, len(self.samples)), (1, predictor.model.num_outputs),
            generator(predictor.seed, "spread"), predictor.dtype,
        ).to(predictor.device)  # fmt: skip

    @torch.no_grad()
    def __call__(self, x: Tensor, num_similar: list[int]) -> list[Answer]:
        """Answer for each of ``x``, with as many similar training data as each asks for.

        Raises:
            NumericalError: a prediction is NaN or infinite, with the number of its data point.
        """
        try:
            return self._answers(x, num_similar)
        except NumericalError:
            with within(f"data point {self._first_failure(x) + 1}"):
                raise

    def _first_failure(self, x: Tensor) -> int:
        """The place of the first of ``x`` that has no answer, by bisection."""
        start, stop = 0, len(x)
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                self._answers(x[start:middle], [0] * (middle - start))
                start = middle
            except NumericalError:
                stop = middle
        return start

    def _answers(self, x: Tensor, num_similar: list[int]) -> list[Answer]:
        q = self.predict(x)
        answers = self._classes(q) if self.predictor.class_names else self._targets(q)
        if self.usual is not None:
            shares = self.usual.shares(latent_scores(self.predictor, q))
            for number, answer in enumerate(answers):
                mine = {score: float(values[number]) for score, values in shares.items()}
                answer["strangeness"] = mine
                answer["unlike"] = any(share > STRANGE for share in mine.values())
        for answer in answers:
            check_finite(answer)
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
        spread = sample(q, self.draws).softmax(-1).std(0)
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


def check_finite(answer: Answer) -> None:
    """Refuse an answer that JSON cannot hold.

    Raises:
        NumericalError: a value is NaN or infinite.
    """
    for name, value in answer.items():
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(value, dict | list) else [value]:
            if isinstance(each, float) and not math.isfinite(each):
                raise NumericalError(
                    f"{name} is NaN or infinite: the inputs are far from any that the model was "
                    "trained on"
                )
