"""Which device a computation runs on."""

from __future__ import annotations

import torch

from gramian.train.config import DEVICES, ConfigError


def choose_device(name: str) -> str:
    """cpu, cuda or mps. ``auto`` is cuda where there is one, else cpu: mps has no float64.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have.
    """
    if name not in DEVICES:
        raise ConfigError(f"device must be {', '.join(DEVICES)}, got {name!r}")
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not has.get(name, True):
        raise ConfigError(f"device {name} is not available here: take cpu or auto")
    return ("cuda" if has["cuda"] else "cpu") if name == "auto" else name
