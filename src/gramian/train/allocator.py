"""Keep freed memory: on Linux, large tensors are otherwise given back and fetched at every step."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large blocks, for the whole process; whether it could be told.

    The GNU C library maps every block above 32 MB anew and returns it to the system when it is
    freed. The system then has to clear each page at its first use, which costs several times a pass
    over the tensor. Nothing but speed changes, and the process keeps its largest size.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another system, or another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))
