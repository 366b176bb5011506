"""Peak memory of a training process: ``… benchmarks.process_memory dkm 16 64 2`` prints bytes.

A process of its own, because memory that another model has used cannot be told apart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.subjects import SUBJECTS, BenchConfig
from gramian.train.runtime.memory import keep_freed_memory, peak_bytes

ROOT = Path(__file__).parents[1]
STEPS = 2  # the first one makes the optimiser's buffers


def memory_of_training(name: str, config: BenchConfig) -> int:
    """Largest resident memory, in bytes, of a new process that trains ``name`` only."""
    words = [name, config.width, config.batch, config.threads]
    command = [sys.executable, "-m", "benchmarks.process_memory", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()}")
    return int(done.stdout)


def main(words: list[str]) -> None:
    """Train for a few steps and write the peak in bytes."""
    name, width, batch, threads = words[0], *map(int, words[1:])
    config = BenchConfig(width=width, batch=batch, repeats=STEPS, threads=threads)
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    subject = SUBJECTS[name](config.widths)
    data = subject.batch(config.batch)
    for _ in range(config.repeats):
        subject.step(data)
    sys.stdout.write(f"{peak_bytes()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
