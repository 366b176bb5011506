"""Early stopping: the best model by validation log-likelihood, and when to give up."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from gramian.train.run_folder import Row

KEY = "validation_log_likelihood"
Best = dict[str, Any]


def best_of(best: Best | None, row: Row, model: nn.Module) -> Best | None:
    """The better of the best so far and the present model."""
    if KEY not in row or (best is not None and row[KEY] <= best[KEY]):
        return best
    return {"model": copy.deepcopy(model.state_dict()), "epoch": row["epoch"], KEY: row[KEY]}


def is_over(best: Best | None, rows: list[Row], patience: int | None) -> bool:
    """Whether so many evaluations have passed without a better one."""
    if patience is None or best is None:
        return False
    return sum(KEY in row and row["epoch"] > best["epoch"] for row in rows) >= patience
