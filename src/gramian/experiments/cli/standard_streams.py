"""Standard streams that the program can rely on: training outlives whoever reads its messages."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def secure_streams() -> None:
    """Open closed streams on the null device, and let messages that nobody can read vanish.

    A file that is opened later would otherwise take the number of a closed stream, and receive
    what libraries write to it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    sys.stderr = io.TextIOWrapper(
        _Messages(2, "w", closefd=False), encoding, "backslashreplace", write_through=True
    )


class _Messages(io.FileIO):
    """Standard error: a closed pipe, a lost terminal or a full disk end nothing."""

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError:
            return memoryview(text).nbytes
