"""How many threads PyTorch uses, and how they wait.

A thread of OpenMP that waits for another spins: by default for milliseconds, in which the other may
have no core. On a busy machine a step of many short operations is then 40 times slower. A bounded
spin is as quick on an idle machine, and not slow on a busy one. It must be in the environment
before PyTorch is loaded, so only a program can set it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SPINS = {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "1"}
"""Of GNU's OpenMP in turns, and of Intel's and LLVM's in milliseconds."""


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Let threads, also of processes started later, spin briefly, unless the user has a policy."""
    if not {"OMP_WAIT_POLICY", *SPINS} & environment.keys():
        environment.update(SPINS)


def chosen_by_user() -> bool:
    """Whether the environment says how many threads there are to be."""
    return any(os.environ.get(name) for name in COUNTS)


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """So many threads of PyTorch, for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
