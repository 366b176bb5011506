"""Models on a CUDA device that is not there: shapes and devices of every tensor, no numbers.

PyTorch's fake tensors know their device, and every mixing of devices is an error. A build without
CUDA needs a device guard that does nothing first, which a few lines of C++ register: for a process
of its own, because backward passes do not work afterwards. Run by test_fake_cuda.py; prints what
each case says as JSON.
"""

import ctypes
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gramian.gram.blocks import Marginals
from gramian.gram.errors import deferred_checks

waits: list[str] = []
"""Where the program asked for a number."""

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
static impl::DeviceGuardImplRegistrar cuda(
    DeviceType::CUDA, new impl::NoOpDeviceGuardImpl<DeviceType::CUDA>());
"""


def register_guard(folder: Path) -> None:
    """Compile the guard, and load it."""
    root, library = Path(torch.__file__).parent, folder / "guard.so"
    (folder / "guard.cpp").write_text(GUARD)
    words = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}"]
    words += [str(folder / "guard.cpp"), "-o", str(library), f"-L{root / 'lib'}", "-lc10"]
    subprocess.run(words, check=True, capture_output=True)
    ctypes.CDLL(str(library))


class Simulated(FakeTensorMode):
    """Fake tensors; who asks for a number, which a GPU makes the host wait for, gets a good one."""

    def __deepcopy__(self, memo: Any) -> "Simulated":
        return self

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            frames = [frame for frame in traceback.extract_stack() if "gramian" in frame.filename]
            waits.append(f"{Path(frames[-1].filename).name}:{frames[-1].lineno}")
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 0
        return super().dispatch(func, types, args, kwargs)


def apply(module: nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """``nn.Module._apply``, which cannot change fake tensors in place."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(function(value.detach()), value.requires_grad)
        for name, value in part._buffers.items():
            part._buffers[name] = None if value is None else function(value)
    return module


def devices(*values: Any) -> str:
    """Where tensors and marginals are."""
    pairs = [(v.mean, v.var) if isinstance(v, Marginals) else (v,) for v in values]
    tensors = [tensor for pair in pairs for tensor in pair]
    return " ".join(sorted({str(tensor.device) for tensor in tensors}))


def conv(preset: str) -> str:
    """Start, a forward pass in training mode, its KL, and the frozen form."""
    from gramian import ConvDKM, ConvDKMConfig
    from gramian.train.objective import objective
    from gramian.train.presets import preset_config

    config = preset_config(preset).model
    assert isinstance(config, ConvDKMConfig)
    config = replace(
        config,
        num_inducing=(8,),
        strides=(2,),
        image_shape=(3, 16, 16),
        norm=replace(config.norm, statistics="running"),  # others cannot be frozen
        inducing_start="random",  # clusters are of as many patches as the data say
    )
    model = ConvDKM.from_config(config).to("cuda")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, 16, 16, device="cuda")
    model.initialise_(x, draw)
    waits.clear()
    with deferred_checks():  # as a trainer does
        result = model.train()(x, model.draw_noise(draw))
        samples = model.draw_samples(1, draw)
        y = torch.zeros(40, dtype=torch.long, device="cuda")
        terms = objective(result, model.likelihood, y, samples, 1000)
    assert not waits, waits
    frozen = model.eval().freeze()(x)
    every = [*model.parameters(), *model.buffers(), result.marginals, *result.kl.values()]
    return devices(*every, samples, frozen, terms.total)


def dense() -> str:
    """Start, a natural step, and the frozen form."""
    from gramian import DenseDKM, DenseDKMConfig
    from gramian.train.natural import natural_step_

    config = DenseDKMConfig(
        num_features=4, num_outputs=3, num_inducing=8, num_layers=2, divergence="exact"
    )
    model = DenseDKM.from_config(config).to("cuda")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, device="cuda"), torch.zeros(40, dtype=torch.long, device="cuda")
    model.initialise_(x, draw)
    natural_step_(model, [(x, y, None)], 40, 0.5, model.draw_samples(1, draw))
    return devices(*model.parameters(), *model.buffers(), model.eval().freeze()(x))


def full_rank() -> str:
    """Start, the objective, and a prediction."""
    from gramian import FullRankConfig, FullRankDKM

    x, y = torch.randn(20, 4, device="cuda"), torch.randn(20, 1, device="cuda")
    model = FullRankDKM(x, y, FullRankConfig(nu=10.0))
    model.initialise_()
    return devices(model.objective().total, *model.parameters(), model.predict(x[:5]))


def network() -> str:
    """The network of the same widths."""
    from gramian.nn.baseline.network import NetworkConfig
    from gramian.train.config import build_model

    config = NetworkConfig(image_shape=(3, 16, 16), widths=(8, 8), strides=(2, 2))
    model = build_model(config).to("cuda")
    x = torch.randn(4, 3, 16, 16, device="cuda")
    model.initialise_(x, torch.Generator().manual_seed(0))
    return devices(model.train()(x).marginals, model.eval()(x).marginals)


def mixed() -> str:
    """Images on the host: this must be noticed, or nothing is tested here."""
    from gramian import ConvDKM, ConvDKMConfig

    model = ConvDKM.from_config(ConvDKMConfig(num_inducing=(8,), strides=(2,))).to("cuda")
    model.initialise_(torch.randn(40, 3, 32, 32, device="cuda"), torch.Generator())
    return devices(model.eval()(torch.randn(2, 3, 32, 32)).marginals)


CASES: dict[str, Callable[[], str]] = {
    "published": lambda: conv("paper_cifar10"),
    "recipe": lambda: conv("small_cifar10"),
    "dense": dense,
    "full_rank": full_rank,
    "network": network,
    "mixed": mixed,
}


def main() -> None:
    register_guard(Path(sys.argv[1]))
    from gramian.nn.steps import inputs

    nn.Module._apply = apply  # type: ignore[method-assign,assignment]
    inputs._choose = lambda candidates, count, *_: candidates[:count].clone()
    said = {}
    for name, case in CASES.items():
        with Simulated():
            try:
                said[name] = {"devices": case()}
            except Exception as error:
                where = [f for f in traceback.extract_tb(error.__traceback__) if "src/g" in f[0]]
                said[name] = {"error": f"{error} in {[f'{f[0]}:{f[1]}' for f in where[-3:]]}"}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
