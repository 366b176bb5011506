"""Learning from data that come in portions: a pass over each, with Adam's memory kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gramian.train.data import Augmentation
from gramian.train.natural import natural_step_
from gramian.train.objective import objective
from gramian.train.predict.predictor import Predictor
from gramian.train.record.run_folder import Row
from gramian.train.runtime.seeds import generator
from gramian.train.step import check_finite


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a stream of data stands: steps taken, data points seen, Adam's state."""

    step: int = 0
    num_seen: int = 0
    optimiser: dict[str, Any] | None = None


def stream_(
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    before: Stream,
    *,
    augmentation: Augmentation,
    batch_size: int,
    lr: float,
    betas: tuple[float, float],
    natural: bool,
) -> tuple[Stream, Row]:
    """One pass over raw data from the present weights; where the stream stands then, and figures.

    The KL is divided by the number of all data points seen so far, those at hand included.
    ``natural``: q(f_i) moves by natural gradients instead of Adam.
    """
    model, device = predictor.dkm, predictor.model.device
    num_seen, step, total = before.num_seen + len(x), before.step, 0.0
    shift, scale = (torch.tensor(values, dtype=torch.float64) for values in predictor.target_scale)
    optimiser = torch.optim.Adam(model.parameters(), lr, betas)
    if before.optimiser is not None:
        optimiser.load_state_dict(before.optimiser)
    model.train()
    model.output.requires_grad_(not natural)
    order = torch.randperm(len(x), generator=generator(predictor.seed, "stream order", step))
    for indices in order.split(batch_size):
        draw = generator(predictor.seed, "stream", step)
        inputs = predictor.scaler(augmentation(x[indices], draw), model.dtype).to(device)
        targets = y[indices]
        if not predictor.class_names:
            targets = ((targets - shift) / scale).to(model.dtype)
        targets = targets.to(device)
        samples = model.draw_samples(1, draw).to(device)
        if natural:
            rho = max(0.1, len(indices) / num_seen) / 2
            natural_step_(model, [(inputs, targets)], num_seen, rho, samples)
        noise = {path: z.to(device) for path, z in model.draw_noise(draw).items()}
        terms = objective(model(inputs, noise), model.likelihood, targets, samples, num_seen)
        optimiser.zero_grad()
        terms.loss.backward()
        check_finite(model, terms)
        optimiser.step()
        total += terms.total.item() * len(indices)
        step += 1
    optimiser.zero_grad()
    model.output.requires_grad_(True)
    model.eval()
    return Stream(step, num_seen, optimiser.state_dict()), {"objective": total / len(x)}
