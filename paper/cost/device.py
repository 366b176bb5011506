"""How long a step would take on a GPU: counted work, divided by stated rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paper.cost.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of a step, or of many."""

    products: float
    solves: float
    passes: float
    waiting: float  # of the device for the host, which starts the operations
    noise: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.products + self.solves + self.passes + self.waiting + self.noise

    def times(self, factor: float) -> Seconds:
        """The same for ``factor`` steps."""
        own = (self.products, self.solves, self.passes, self.waiting, self.noise)
        return Seconds(*(factor * seconds for seconds in own))


@dataclass(frozen=True, slots=True)
class Rates:
    """Of an A100 with 40 GB, in units a second; ``REASONS`` says why these.

    With F FLOPs of products, S of solves, b bytes of passes, n operations and z random numbers

        seconds = max(F / (product_peak · product_share) + S / (solve_peak · solve_share)
                      + b / (bandwidth · bandwidth_share), n / starts) + z / normals

    Nothing here is a measurement of a deep kernel machine: an estimate.
    """

    product_peak: float = 156e12
    product_share: float = 0.5
    solve_peak: float = 19.5e12
    solve_share: float = 0.4
    bandwidth: float = 1.555e12
    bandwidth_share: float = 0.85
    starts: float = 1e5
    normals: float = 5e10

    def step_seconds(self, cost: StepCost) -> Seconds:
        """Of one step."""
        products = cost.product_flops / (self.product_peak * self.product_share)
        solves = cost.solve_flops / (self.solve_peak * self.solve_share)
        passes = cost.pass_bytes / (self.bandwidth * self.bandwidth_share)
        waiting = max(0.0, cost.operations / self.starts - products - solves - passes)
        return Seconds(products, solves, passes, waiting, cost.normals / self.normals)

    def calibrated(self, cost: StepCost, seconds: float) -> Rates:
        """With the share of the products' peak at which a known step takes its known time."""
        rest = self.step_seconds(replace(cost, product_flops=0)).total
        return replace(
            self, product_share=cost.product_flops / self.product_peak / (seconds - rest)
        )


REASONS = {
    "product_peak": "FLOP/s of products and convolutions: TF32 tensor cores, data sheet",
    "product_share": "of that, sustained: the share that gives the network of the paper's widths "
    "its published 45 s per epoch, at the same batch size",
    "solve_peak": "FLOP/s of Cholesky factors and triangular solves: float32, data sheet",
    "solve_share": "of that, sustained: assumed, not measured",
    "bandwidth": "bytes a second, for all other operations and Adam, none fused: data sheet, 40 GB",
    "bandwidth_share": "of that, sustained: assumed; plain copies reach about 0.9",
    "starts": "operations that Python starts a second: assumed; they overlap with the device's "
    "work",
    "normals": "random numbers a second that the device draws: assumed, a fifth of its bandwidth",
}
"""Why each rate of ``Rates`` is what it is."""
