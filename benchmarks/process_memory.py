"""Peak memory of a training process, in bytes: ``… benchmarks.process_memory dkm 64 2 16 32 64``.

A process of its own, because memory that another model has used cannot be told apart.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.subjects import SUBJECTS
from gramian.train.runtime.memory import keep_freed_memory, peak_bytes

ROOT = Path(__file__).parents[1]
STEPS = 2  # the first one makes the optimiser's buffers


def memory_of_training(name: str, widths: Sequence[int], batch: int, threads: int) -> int:
    """Largest resident memory, in bytes, of a new process that trains ``name`` only."""
    words = [name, batch, threads, *widths]
    command = [sys.executable, "-m", "benchmarks.process_memory", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()}")
    return int(done.stdout)


def main(words: list[str]) -> None:
    """Train for a few steps and write the peak in bytes."""
    name, (batch, threads, *widths) = words[0], map(int, words[1:])
    torch.set_num_threads(threads)
    keep_freed_memory()
    subject = SUBJECTS[name](tuple(widths))
    data = subject.batch(batch)
    for _ in range(STEPS):
        subject.step(data)
    sys.stdout.write(f"{peak_bytes()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
