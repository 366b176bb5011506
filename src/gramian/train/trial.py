"""Steps tried before training and not taken: how long one is, and with how many threads."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import torch

from gramian.gram.errors import NumericalError

if TYPE_CHECKING:
    from gramian.train.trainer import Trainer

TRIALS = 3  # steps with each number of threads
log = logging.getLogger("gramian")


def choose_threads(trainer: Trainer, before: int | None) -> float:
    """Set the number of threads with which a step is quickest; seconds for a step with it.

    A resumed run has as many as ``before``, if this machine can: with others, sums are rounded
    otherwise.
    """
    engine = trainer.engine
    choices = engine.thread_choices()
    if before in choices:
        choices = (before,)
    # All processes try a step. After the first pass they add gradients in their final order:
    # more than two numbers have another sum in another order, and a resumed run must not.
    if trainer.quiet and len(choices) == 1 and engine.world_size == 1:
        torch.set_num_threads(choices[0])
        return math.nan
    seconds = {}
    for count in choices:
        torch.set_num_threads(count)
        seconds[count] = trial_seconds(trainer)
    best = min(seconds, key=lambda count: seconds[count])
    torch.set_num_threads(best)
    if len(choices) > 1 and engine.is_first:
        tried = ", ".join(f"{count}: {1000 * seconds[count]:.0f} ms" for count in choices)
        log.info("threads %d (a step with %s; OMP_NUM_THREADS decides otherwise)", best, tried)
    return seconds[best]


def trial_seconds(trainer: Trainer) -> float:
    """Seconds for one step: the best of some, after one to warm up. NaN if it has no numbers."""
    model = trainer.model
    means = [mean.clone() for mean in model.running_statistics()]
    best = math.inf
    try:
        trainer.rehearse()
        for _ in range(TRIALS):
            started = time.perf_counter()
            trainer.rehearse()
            best = min(best, time.perf_counter() - started)
    except NumericalError:
        return math.nan  # training will meet it too, and knows what to do
    finally:
        trainer.optimiser.zero_grad()
        for mean, before in zip(model.running_statistics(), means, strict=True):
            mean.copy_(before)
    return best
