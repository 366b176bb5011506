"""Which device a computation runs on."""

from __future__ import annotations

import torch

from gramian.train.run_settings import ConfigError, check_device


def choose_device(name: str) -> str:
    """cpu, cuda or mps. ``auto`` is cuda where there is one, else cpu: mps has no float64.

    Raises:
        ConfigError: an unknown name, or a device that this machine does not have.
    """
    check_device(name)
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not has.get(name, True):
        raise ConfigError(f"device {name} is not available here: take cpu or auto")
    return ("cuda" if has["cuda"] else "cpu") if name == "auto" else name
