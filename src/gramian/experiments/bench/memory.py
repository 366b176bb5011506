"""Peak memory of a training process: ``python -m gramian.experiments.bench.memory dkm 16 64 2``.

A process of its own, because memory that another model has used cannot be told apart.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import torch

from gramian.experiments.bench.subjects import SUBJECTS, BenchConfig
from gramian.train.allocator import keep_freed_memory

STEPS = 2  # the first one makes the optimiser's buffers


def memory_of_training(name: str, config: BenchConfig) -> int:
    """Largest resident memory, in bytes, of a new process that trains ``name`` only."""
    words = [name, config.width, config.batch, config.threads]
    command = [sys.executable, "-m", __name__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()}")
    return int(done.stdout)


def peak_bytes() -> int:
    """Largest resident memory of this process so far.

    Linux counts what the parent used towards ``ru_maxrss``; the process's own peak is in a file.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
