"""Where the time and the FLOPs of a DKM's training step go.

Functions of the library are wrapped for a while, and a ledger notes when each begins and ends. A
node of the backward pass belongs to the part that was running when the forward pass made it, which
its number in PyTorch's count of nodes tells. PyTorch's own profiler is no help here: pages that it
touches change the times.
"""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch import Tensor
from torch._C._autograd import _get_sequence_nr as nodes_so_far
from torch.autograd.graph import Node

from benchmarks.flops import flop_counter
from benchmarks.subjects import Batch, Subject
from gramian.gram.conditional import Conditional
from gramian.nn.contract import Trainable
from gramian.nn.likelihoods import Categorical
from gramian.nn.model import DKM
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.inputs import PatchInput
from gramian.nn.steps.kernels import Kernel
from gramian.nn.steps.output import GPOutput
from gramian.nn.steps.whitening import AnyZCA

Phase = str
"""``forward``, or ``backward`` with the optimiser."""

Totals = defaultdict[tuple[str, Phase], float]
"""What a clock counted, by part and phase."""

OTHER, OPTIMISER = "other", "optimiser"
WRAPPED: list[tuple[type, str, str]] = [
    (Kernel, "data", "kernel"),
    (KernelConv, "data", "convolution"),
    (PatchInput, "data", "convolution"),
    (Conditional, "whiten", "products with data"),
    (Conditional, "project", "products with data"),
    (Conditional, "cross", "products with data"),
    (GPOutput, "data", "products with data"),
    (DKM, "draw_noise", "inducing chain"),
    (DKM, "inducing_chain", "inducing chain"),
    (Trainable, "draw_samples", "likelihood"),
    (Categorical, "expected_log_prob", "likelihood"),
    (AnyZCA, "forward", "whitening"),
]
"""Class, method, and the part of a step that it is."""

PARTS = (*dict.fromkeys(part for _, _, part in WRAPPED), OPTIMISER, OTHER)


class Ledger:
    """Charges what a clock has counted to the part that is running; an inner part comes first.

    Args:
        clock: seconds, or FLOPs, so far.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.totals: Totals = defaultdict(float)
        self.phase: Phase = "forward"
        self._clock = clock
        self._running = [OTHER]
        self._ends: list[int] = []  # of stretches of the forward pass, in nodes
        self._owners: list[str] = []
        self._last = clock()

    def enter(self, part: str) -> None:
        """A part begins."""
        self._settle()
        self._running.append(part)

    def leave(self) -> None:
        """The part that began last ends."""
        self._settle()
        self._running.pop()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens inside belongs to ``name``."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is charged to nobody."""
        self._settle()
        yield
        self._last = self._clock()

    def follow(self, loss: Tensor) -> None:
        """Charge the nodes of the backward pass to the parts that made them."""
        assert loss.grad_fn is not None
        seen, waiting = {loss.grad_fn}, [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            part = self._maker(node)
            node.register_prehook(lambda _, part=part: self.enter(part))
            node.register_hook(lambda *_: self.leave())
            new = {n for n, _ in node.next_functions if n is not None} - seen
            seen |= new
            waiting += new

    def _maker(self, node: Node) -> str:
        """The part that made a node; leaves of the graph, which have no number, are ``other``."""
        stretch = bisect_right(self._ends, node._sequence_nr())
        return self._owners[stretch] if stretch < len(self._owners) else OTHER

    def _settle(self) -> None:
        now = self._clock()
        self.totals[self._running[-1], self.phase] += now - self._last
        self._last = now
        if self.phase == "forward":
            self._ends.append(nodes_so_far())
            self._owners.append(self._running[-1])


@contextmanager
def patched(ledger: Ledger) -> Iterator[None]:
    """Wrap the functions of ``WRAPPED``, and put them back afterwards."""
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in WRAPPED]
    try:
        for owner, name, part in WRAPPED:
            setattr(owner, name, _charged(vars(owner)[name], ledger, part))
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def parts_of_step(subject: Subject, batch: Batch, repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds forward and backward, and FLOPs, of each part of a training step.

    Optimiser steps count as backward, and so do sums of gradients between nodes, as ``other``.
    """
    seconds = [step_totals(subject, batch, time.perf_counter) for _ in range(repeats)]
    with flop_counter() as counter:
        flops = step_totals(subject, batch, counter.get_total_flops)
    return {
        part: {
            "seconds_forward": median(totals[part, "forward"] for totals in seconds),
            "seconds_backward": median(totals[part, "backward"] for totals in seconds),
            "flops": int(flops[part, "forward"] + flops[part, "backward"]),
        }
        for part in PARTS
    }


def step_totals(subject: Subject, batch: Batch, clock: Callable[[], float]) -> Totals:
    """One training step; what the clock counted, by part and phase."""
    ledger = Ledger(clock)
    with ledger.part(OPTIMISER):
        subject.optimiser.zero_grad()
    with patched(ledger):
        loss = subject.loss(batch)
    with ledger.paused():
        ledger.follow(loss)
        ledger.phase = "backward"
    loss.backward()
    with ledger.part(OPTIMISER):
        subject.optimiser.step()
    return ledger.totals


def _charged(function: Callable[..., Any], ledger: Ledger, part: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        with ledger.part(part):
            return function(*args, **kwargs)

    return charged
