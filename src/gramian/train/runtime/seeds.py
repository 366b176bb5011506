"""Randomness as a function of (seed, purpose, step): nothing to save, nothing to restore.

Each purpose (start values, shuffling, augmentation, SKR noise, likelihood samples) has a stream of
its own, and each step its own generator. So a run that is resumed at step k draws what the run that
was never stopped drew, and a change of one purpose does not move the others.

The host draws what is small or belongs to the data: start values, shuffling, augmentation. The
noise of a step, SKR's and the likelihood's, is drawn by the device that uses it. So a GPU starts as
a CPU does, sees the same batches, and has other noise.
"""

from __future__ import annotations

import hashlib

import torch


def generator(
    seed: int, purpose: str, *place: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator for one purpose at one place of a run."""
    text = f"{seed}/{purpose}/{'/'.join(map(str, place))}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
    return torch.Generator(device=device).manual_seed(number)
