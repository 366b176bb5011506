"""Device, precision and processes: the only file that knows Lightning Fabric."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from gramian.gram.blocks import Marginals
from gramian.gram.errors import NumericalError
from gramian.gram.fast.split import Split
from gramian.nn.contract import ByPath, DKMResult, Trainable
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.norm import GramNorm, mean_over_batch
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.runtime.compiled import compile_, compiling, undo_compile_
from gramian.train.runtime.devices import choose_device
from gramian.train.runtime.memory import keep_freed_memory
from gramian.train.runtime.processes import leave, noticing_lost, start_processes
from gramian.train.runtime.tf32 import allow_tf32, emulate_tf32
from gramian.train.runtime.threads import chosen_by_user

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule

Forward = Callable[[Tensor, ByPath], DKMResult]
Precision = Literal["32-true", "64-true", "tf32", "tf32-emulated"]
Result = TypeVar("Result")


def dtype_of(precision: Precision) -> torch.dtype:
    """The floating-point type of the model."""
    return torch.float64 if precision == "64-true" else torch.float32


class Engine:
    """Where and how a model computes.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: processes on this machine. Under torchrun the launcher decides.
        num_nodes: machines.
        precision: ``32-true``, ``64-true``, or ``tf32``: float32 whose matrix products and
            convolutions round their inputs to 10 mantissa bits, on CUDA. ``tf32-emulated`` does
            the same on any device, slowly.
        compile: whether the data's way through each layer is compiled.
        split_chain: whether the processes share the inducing points' products; None: GPUs of one
            machine do.
        owns_process: whether the run may change what belongs to the whole process, for speed:
            freed memory is reused, and the number of threads is chosen by trial. Only the program
            says so.
    """

    def __init__(
        self,
        device: str = "auto",
        devices: int = 1,
        num_nodes: int = 1,
        precision: Precision = "32-true",
        compile: bool = False,
        split_chain: bool | None = None,
        owns_process: bool = False,
    ) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.fabric: Fabric | None = None
        self.wrapped: _FabricModule | None = None  # the model as the processes share it
        self.device = torch.device(choose_device(device))
        self.rank, self.world_size = 0, 1
        if devices * num_nodes > 1 or "WORLD_SIZE" in os.environ:
            self._join(self.device.type, devices, num_nodes)
        if precision == "tf32" and self.device.type != "cuda":
            raise ConfigError(f"precision tf32 needs a CUDA device, this is {self.device}")
        if precision == "tf32-emulated" and not hasattr(torch.library, "get_kernel"):
            raise ConfigError(
                f"precision {precision} needs PyTorch 2.9, this is {torch.__version__}"
            )
        self.precision, self.compile, self.owns_process = precision, compile, owns_process
        fast_links = self.device.type == "cuda" and num_nodes == 1
        self.splits_chain = fast_links if split_chain is None else split_chain
        self.defers_checks = compile or self.device.type == "cuda"  # each would make it wait
        self.dtype = dtype_of(precision)

    @classmethod
    def from_config(cls, config: TrainConfig, owns_process: bool = False) -> Engine:
        """The engine that a run's settings ask for."""
        return cls(
            config.device,
            config.devices,
            config.num_nodes,
            config.precision,
            config.compile,
            config.split_chain,
            owns_process,
        )

    def _join(self, device: str, devices: int, num_nodes: int) -> None:
        """Start the other processes, or find them; one process alone need not load Fabric."""
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import find_free_network_port
        from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces processes
        one = devices == 1 or SLURMEnvironment.detect()  # which starts the others itself
        self.children = start_processes(1 if one else devices, find_free_network_port())
        self.fabric = Fabric(
            accelerator=device,
            strategy="ddp" if devices * num_nodes > 1 else "auto",
            devices=devices,
            num_nodes=num_nodes,
            precision="32-true",  # does nothing; Fabric's 64-true rounds outputs to float32
        )
        self.fabric.launch()
        atexit.register(leave)
        self.device = self.fabric.device
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        if not chosen_by_user():  # a launcher has chosen, too
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // devices))

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """The context of all that a run computes."""
        kinds: dict[str, Callable[[], AbstractContextManager[None]]]
        kinds = {"tf32": allow_tf32, "tf32-emulated": partial(emulate_tf32, self.device.type)}
        multiplying = kinds.get(self.precision, nullcontext)()
        with multiplying, compiling() if self.compile else nullcontext():
            yield

    def set_up(
        self, model: Trainable, optimiser: torch.optim.Optimizer, batch: int
    ) -> tuple[Forward, torch.optim.Optimizer]:
        """The model's forward pass and the optimiser, for training in all processes.

        A process has ``batch`` data points in most steps.

        In a process of its own, what is freed from here on is kept, but not what the start freed.
        """
        if self.owns_process and self.device.type == "cpu":
            keep_freed_memory()
        for module in model.modules() if self.world_size > 1 else ():
            if isinstance(module, GramNorm):  # it then sees the whole batch
                module.batch_mean = mean_over_processes
            if isinstance(module, KernelConv | GramLayer) and self.splits_chain:
                module.split = Split(self.rank, self.world_size, self.sum_, batch)
        if self.compile:
            compile_(model, whole=self.world_size == 1)
        if self.fabric is None:
            return model, optimiser
        wrapped, optimiser = self.fabric.setup(_Plain(model), optimiser)
        self.wrapped = wrapped

        def forward(x: Tensor, noise: ByPath) -> DKMResult:
            mean, var, kl, seen = wrapped(x, noise)
            return DKMResult(Marginals(mean, var), kl, seen)

        return forward, optimiser

    def thread_choices(self) -> tuple[int, ...]:
        """Numbers of threads to try: one, and all; or those that somebody has chosen already."""
        present = torch.get_num_threads()
        mine = self.owns_process and self.device.type == "cpu" and self.world_size == 1
        return (1, present) if mine and present > 1 and not chosen_by_user() else (present,)

    def tear_down(self, model: Trainable) -> None:
        """From now on each process is by itself again, and nothing is compiled."""
        undo_compile_(model)
        for module in model.modules():
            if isinstance(module, GramNorm):
                module.batch_mean = mean_over_batch
            if isinstance(module, KernelConv | GramLayer):
                module.split = None

    def backward(self, loss: Tensor) -> None:
        """Gradients, averaged over the processes."""
        if self.fabric is None:
            loss.backward()
        else:
            self.fabric.backward(loss)

    def total(self, values: Sequence[int | float]) -> list[int | float]:
        """Sums of ``values`` over the processes."""
        if self.world_size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def mean(self, values: Sequence[int | float]) -> list[int | float]:
        """Means of ``values`` over the processes."""
        if self.world_size == 1:
            return list(values)
        return [value / self.world_size for value in self.total(values)]

    def together(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in all processes: a numerical error in one of them is one in all.

        Inside, another process waits in a normalisation or at the end of its work: each of these
        begins with the same small sum, whose second number counts the errors.
        """
        if self.world_size == 1:
            return work()
        mine: NumericalError | None = None
        try:
            result = work()
        except NumericalError as error:
            mine = error
        others = isinstance(mine, _OtherProcessFailed)
        if others or _count_and_errors(0.0, mine is not None, self.device)[1]:
            errors: list[NumericalError | None] = [None] * self.world_size
            dist.all_gather_object(errors, None if others else mine)
            raise next(error for error in errors if error is not None)
        return result

    def share(self, places: Tensor) -> tuple[Tensor, float]:
        """This process's share of the places in a batch, and the share's weight in their mean.

        With fewer than two places for each process, each computes all: one data point alone has no
        variance, which a network needs.
        """
        if len(places) < 2 * self.world_size:
            return places, 1.0
        mine = places[self.rank :: self.world_size]
        return mine, len(mine) * self.world_size / len(places)

    def accumulating(self, more: bool) -> AbstractContextManager[object]:
        """The context of one part of a step; if ``more`` are to come, gradients stay here."""
        if self.wrapped is None or self.fabric is None or self.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(self.wrapped, enabled=more)

    def sum_(self, value: Tensor) -> Tensor:
        """The sum over the processes, in place of a value."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value

    def connected(self) -> AbstractContextManager[None]:
        """Within this context the end of another process is a ProcessLost."""
        return noticing_lost(self.children)


class _Plain(nn.Module):
    """A model that returns plain tuples, because Fabric refuses frozen dataclasses."""

    def __init__(self, model: Trainable) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, noise: ByPath
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        result = self.model(x, noise)
        return result.marginals.mean, result.marginals.var, result.kl, result.seen


class _SumOverProcesses(torch.autograd.Function):
    """Σ over the processes. The gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def mean_over_processes(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Mean over ``dims`` and over all processes, with gradients."""
    total = values.sum(dims, keepdim=True)
    count, errors = _count_and_errors(values.numel() / total.numel(), False, values.device)
    if errors:
        raise _OtherProcessFailed
    mean: Tensor = _SumOverProcesses.apply(total) / count  # type: ignore[no-untyped-call]
    return mean


class _OtherProcessFailed(NumericalError):
    """Another process has met a numerical error, and will say which."""


def _count_and_errors(count: float, failed: bool, device: torch.device) -> list[float]:
    """Sums over the processes: of what they average over, and of their errors."""
    sums = torch.tensor([count, float(failed)], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return sums.tolist()
