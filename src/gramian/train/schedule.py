"""Learning rates as a function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Schedule = Literal["steps", "cosine", "one_cycle", "constant"]
WARM_UP = 0.3  # share of one_cycle's steps


def lr_factor(
    schedule: Schedule, step: int, steps_per_epoch: int, epochs: int, milestones: Sequence[float]
) -> float:
    """What multiplies the learning rate at ``step`` = 0, 1, ….

    ``steps`` changes between epochs only: × 0.1 from epoch ⌊m · epochs⌋ on, for each milestone m.
    """
    progress = step / (steps_per_epoch * epochs)
    match schedule:
        case "steps":
            epoch = step // steps_per_epoch
            return 0.1 ** sum(epoch >= math.floor(m * epochs + 1e-9) for m in milestones)
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "one_cycle":
            if progress < WARM_UP:
                return 0.04 + 0.96 * progress / WARM_UP
            return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
        case "constant":
            return 1.0
