"""Memory of this process and its device: in use, at its peak, free, or kept for the next step."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import psutil
import torch

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


def resident_bytes(device: torch.device) -> int:
    """Memory in use now: of this process, or what it has on a CUDA device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def free_bytes(device: torch.device) -> int:
    """Memory that is free now: on a CUDA device, or in this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def peak_bytes() -> int:
    """Largest resident memory of this process so far, without that of its parent.

    Linux counts what the parent had at the fork towards ``ru_maxrss``; the process's own peak is in
    a file. ``ru_maxrss`` is in bytes on macOS, and does not exist on Windows.
    """
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
