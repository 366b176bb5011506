"""One training step on tensors without storage: of a deep kernel machine, and of the network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gramian.gram.fast.split import Split
from gramian.nn.baseline.resnet import ResNet
from gramian.nn.contract import DKMResult
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.nn.steps.conv import KernelConv
from gramian.nn.steps.gram_layer import GramLayer
from gramian.nn.steps.positive_definite import PositiveDefinite
from gramian.train.cost.step_memory import step_bytes
from gramian.train.objective import objective
from gramian.train.step import check_finite
from paper.cost.trace import Trace, traced

ADAM_PASSES = 7  # fused: reads parameter, gradient and two moments; writes all but the gradient


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device in a training step."""

    parameters: int
    buffers: int
    gradients: int
    adam: int  # two moments of each gradient
    kept_chain: int  # for the backward pass, of the inducing chain
    kept_data: int  # for the backward pass, of the data's way: the activations
    peak: int  # the most at one time
    estimate: int | None = None  # what ``train.memory``, which serves --memory, takes the peak for


@dataclass(frozen=True, slots=True)
class StepCost:
    """Size of a model, and what one training step does."""

    parameters: int
    used_parameters: int  # without entries above the diagonal of Cholesky factors
    product_flops: int  # matrix products and convolutions
    solve_flops: int  # Cholesky factors and triangular solves
    pass_bytes: int  # read and written by all other operations and by Adam
    operations: int
    normals: int  # random numbers that the device draws
    memory: Memory
    exchanged_bytes: int = 0  # of matrices that processes sum to share the inducing chain

    @property
    def flops(self) -> int:
        """All that are counted."""
        return self.product_flops + self.solve_flops


def dkm_step(
    config: ConvDKMConfig, batch: int, *, recompute: bool, compiled: bool = False, sharing: int = 1
) -> StepCost:
    """A step of ``train.trainer``; ``recompute`` is activation checkpointing in every layer.

    As there, the last step's gradients are freed after the forward pass. ``compiled``: the data's
    way, whose tensors are larger than any of the inducing chain, is compiled. ``sharing``: so many
    processes share the inducing chain; this is the first of them.
    """
    exchanged = 0

    def exchange(matrix: Tensor) -> Tensor:
        nonlocal exchanged
        exchanged += _bytes([matrix])
        return matrix

    with traced(max(config.num_inducing) ** 2 + 1 if compiled else None) as trace:
        model = ConvDKM.from_config(config)
        model.recomputed = frozenset(model.layers if recompute else ())
        for module in model.modules():
            if isinstance(module, KernelConv | GramLayer):
                module.split = Split(0, sharing, exchange, batch)
        state = _optimiser_state(model)
        start = _start(trace)
        noise = {
            path: torch.empty(gram.num_inducing, gram.skr.gamma(gram.num_inducing))
            for path, gram in model.layers.named_modules()
            if isinstance(gram, GramLayer) and gram.samples
        }
        samples = torch.empty(model.likelihood.num_samples, batch, config.num_outputs)
        normals = samples.numel() + sum(z.numel() for z in noise.values())
        images, labels = _batch(config, batch)
        chain = model.inducing_chain(noise)
        after_chain = trace.live_bytes
        marginals, seen = model.propagate(images, chain)
        result = DKMResult(marginals, model.kl(chain), seen)
        del chain, noise
        terms = objective(result, model.likelihood, labels, samples, 1)
        after_data = trace.live_bytes
        model.zero_grad()
        terms.loss.backward()
        check_finite(model, terms)
        trace.end_kernel()
        kept = after_chain - start, after_data - after_chain
        estimate = _bytes(model.parameters()) + step_bytes(model, batch, model.recomputed)
        cost = _cost(trace, model, normals, _memory(trace, model, state, kept, estimate))
        return replace(cost, exchanged_bytes=exchanged)


def network_step(config: ConvDKMConfig, batch: int) -> StepCost:
    """A step of the ResNet with the widths, blocks and strides of ``config``, and with Adam."""
    with traced() as trace:
        model = ResNet(
            config.image_shape,
            config.num_outputs,
            config.num_inducing,
            config.blocks_per_stage,
            config.strides,
            config.stem_stride,
        )
        state = _optimiser_state(model)
        start = _start(trace)
        images, labels = _batch(config, batch)
        loss = cross_entropy(model(images), labels)
        kept = trace.live_bytes - start
        model.zero_grad()
        loss.backward()
        return _cost(trace, model, 0, _memory(trace, model, state, (0, kept)))


def num_unused(model: nn.Module) -> int:
    """Σ P(P − 1)/2 over the Cholesky factors: their entries above the diagonal."""
    sizes = (len(m.raw_factor) for m in model.modules() if isinstance(m, PositiveDefinite))
    return sum(P * (P - 1) // 2 for P in sizes)


def _optimiser_state(model: nn.Module) -> list[Tensor]:
    """Adam's moments; and the gradients, as the step before left them."""
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    return [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(2)]


def _start(trace: Trace) -> int:
    """What was made so far belongs to no step."""
    trace.reset()
    return trace.live_bytes


def _batch(config: ConvDKMConfig, size: int) -> tuple[Tensor, Tensor]:
    return torch.empty(size, *config.image_shape), torch.empty(size, dtype=torch.int64)


def _memory(
    trace: Trace,
    model: nn.Module,
    state: list[Tensor],
    kept: tuple[int, int],
    estimate: int | None = None,
) -> Memory:
    return Memory(
        parameters=_bytes(model.parameters()),
        buffers=_bytes(model.buffers()),
        gradients=_bytes(p.grad for p in model.parameters() if p.grad is not None),
        adam=_bytes(state),
        kept_chain=kept[0],
        kept_data=kept[1],
        peak=trace.peak_bytes,
        estimate=estimate,
    )


def _cost(trace: Trace, model: nn.Module, normals: int, memory: Memory) -> StepCost:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return StepCost(
        parameters=parameters,
        used_parameters=parameters - num_unused(model),
        product_flops=trace.product_flops,
        solve_flops=trace.solve_flops,
        pass_bytes=trace.pass_bytes + ADAM_PASSES * memory.parameters,
        operations=trace.operations,
        normals=normals,
        memory=memory,
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
