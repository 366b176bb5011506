"""A training step on an idle and on a busy machine, by the number of threads and how they wait.

    python -m benchmarks.threads

Runs the program with one setting of the environment after another, first by itself, then beside as
many busy processes as there are cores, and prints milliseconds of wall time for a step (the median
over epochs after the first). Needs a machine with nothing else to do, and takes about ten minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

MODELS = {
    "digits": ["--data", "digits", "--train_size", "640", "--max_epochs", "6"],
    "32-64-128": ["--width", "32"],
    "64-128-256": ["--width", "64"],
}
SETTINGS = {  # the program's own choice comes first
    "as the program chooses": {},
    "2 threads, spin bounded by the program": {"OMP_NUM_THREADS": "2"},
    "2 threads, default of GNU's OpenMP": {"OMP_NUM_THREADS": "2", "KMP_BLOCKTIME": "200"},
    "1 thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = [sys.executable, "-c", "while True: pass"]


def words_for(name: str) -> tuple[list[str], int]:
    """Options of a run, and its steps per epoch."""
    if name == "digits":
        return MODELS[name], 10
    first = int(MODELS[name][1])
    widths = f"[{first},{2 * first},{4 * first}]"
    images = Path(tempfile.gettempdir()) / "gramian_threads.npz"
    if not images.exists():
        import numpy as np

        x = np.random.default_rng(0).integers(0, 256, (192, 32, 32, 3), dtype=np.uint8)
        np.savez(images, x=x, y=np.arange(192) % 10)
    data = ["--data", str(images), "--train_size", "128", "--batch_size", "64"]
    model = ["--preset", "cifar10", "--model.num_inducing", widths, "--model.whitening", "false"]
    return [*model, *data, "--model.whiten_inducing", "false", "--max_epochs", "3"], 2


def milliseconds(name: str, environment: dict[str, str]) -> float:
    """Of a step, as the run's own record has it."""
    words, steps = words_for(name)
    unset = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    plain = {key: value for key, value in os.environ.items() if key not in unset}
    quiet = ["--evaluate_every", "1000", "--plots", "false", "--conditions", "false", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        where = ["--output", folder, "--name", "run"]
        command = [sys.executable, "-m", "gramian", "train", *words, *quiet, *where]
        subprocess.run(command, env=plain | environment, check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return median(1000 * json.loads(line)["seconds"] / steps for line in lines[1:])


@contextmanager
def busy(is_busy: bool) -> Iterator[None]:
    """As many processes as cores that never wait, or none."""
    others = [subprocess.Popen(BUSY) for _ in range(os.cpu_count() or 1)] if is_busy else []
    try:
        yield
    finally:
        for other in others:
            other.kill()


def main() -> None:
    """One table."""
    print("| Milliseconds of a step | " + " | ".join(f"{n}, idle | busy" for n in MODELS) + " |")
    print("|---" * (1 + 2 * len(MODELS)) + "|")
    for label, environment in SETTINGS.items():
        cells = []
        for name in MODELS:
            for is_busy in (False, True):
                with busy(is_busy):
                    cells.append(f"{milliseconds(name, environment):.0f}")
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
