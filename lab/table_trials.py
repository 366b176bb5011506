"""Trials of `DKMRegressor` on validation rows of the UCI sets: what its defaults rest on.

`python -m lab.table_trials uci_regression.npz '{}' '{"num_inducing": 200}'`: each dictionary
of settings is tried on a fifth of the training part of each split (at most 2,000 rows); test rows
are not looked at. Each result is a line of the output file, and what is there is not run again. The
table shows, for each set, mean log-likelihood and processor seconds in one thread.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.uci import SETS, Array, Choice, Entry, Prediction, add, read, scores
from gramian.train.estimators import DKMRegressor

MOST = 2000  # validation rows


def trial(data: Mapping[str, Array], name: str, split: int, settings: dict[str, Any]) -> Any:
    """One result."""
    x, y, test = data[f"{name}_x"], data[f"{name}_y"], data[f"{name}_test_idx"][split]
    train = np.random.default_rng(split).permutation(np.setdiff1d(np.arange(len(x)), test))
    num_held = min(len(train) // 5, MOST)
    held, kept = train[:num_held], train[num_held:]

    def fit(x: Array, y: Array, x_test: Array, choice: Choice) -> Prediction:
        model = DKMRegressor(random_state=0, **settings).fit(x, y)
        mean, std = model.predict(x_test, return_std=True)
        return mean, std

    start = time.process_time()
    parts = (x[kept], y[kept], x[held], y[held])
    rmse, log_lik = scores(Entry("", fit, [{}]), {}, parts)
    seconds = round(time.process_time() - start, 1)
    row = {"set": name, "split": split, "rmse": round(rmse, 4), "log_lik": round(log_lik, 4)}
    return {**row, "processor_seconds": seconds, "settings": settings}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("settings", nargs="+", type=json.loads)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("runs/table_trials.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = np.load(arguments.data)
    rows = read(arguments.output)
    for settings in arguments.settings:
        cells = []
        for name in arguments.sets:
            mine = []
            for split in range(arguments.splits):
                key = (name, split, settings)
                same = [r for r in rows if (r["set"], r["split"], r.get("settings")) == key]
                mine.append(same[0] if same else trial(data, name, split, settings))
                if not same:
                    add(arguments.output, mine[-1])
            log_lik = np.mean([row["log_lik"] for row in mine])
            seconds = np.mean([row["processor_seconds"] for row in mine])
            cells.append(f"{name} {log_lik:.3f}, {seconds:.0f} s")
        print(json.dumps(settings), "|", " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
