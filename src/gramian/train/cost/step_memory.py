"""The memory of a training step, estimated before it runs, and which layers to compute twice."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from gramian.nn.contract import Trainable
from gramian.nn.layers import Layer, ResidualBlock, grams_of
from gramian.nn.likelihoods.categorical import PORTION
from gramian.nn.likelihoods.likelihood import MOST_NOISE
from gramian.nn.model import DKM
from gramian.nn.steps.centre import Centre
from gramian.nn.steps.conv import KernelConv
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.cost.full_rank_cost import HEAP_BLOCK
from gramian.train.runtime.memory import resident_bytes

CHAIN = 3  # bytes that autograd keeps of the inducing chain, for each byte of parameters (counted)
VECTORS = 4  # vectors of the size of g_tt that autograd keeps for a layer (counted)
PORTIONS = 4  # samples of the logits with their exponentials, and gaps in the heap (measured)
OUTPUTS = 5  # means, gradients and expectations of the size [batch, outputs] (counted)
NOISE_GAPS = 1.6  # of noise that is small enough for the heap (measured)
FIRST_STEP = 8_000_000  # pages of the libraries that a first step touches (measured)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Bytes that a layer of ``model.layers`` needs in a training step."""

    inside: int  # what autograd keeps within the layer; not kept if the layer is recomputed
    output: int  # its output, which the next layer keeps; for the first layer also its input
    work: int  # gradients within the layer in the backward pass


def layer_memories(model: DKM, batch: int) -> dict[str, LayerMemory]:
    """The memory of each layer, from the sizes of what it keeps: Φ_ti, X, U, filters (DKMLayer)."""
    size = torch.finfo(model.dtype).bits // 8
    space: tuple[int, ...] = model.data_shape[1:]
    P = model.inputs.num_inducing
    memories: dict[str, LayerMemory] = {}
    for name, module in model.layers.items():
        parts = [module.layer1, module.layer2] if isinstance(module, ResidualBlock) else [module]
        entry = 0 if memories else math.prod(space) * P
        kept, filters, gradients, output = 0, 0, [], 0
        for number, part in enumerate(parts):
            assert isinstance(part, Layer)
            P_in, rows_in = P, math.prod(space)
            space = part.output_space(space)
            rows, columns = math.prod(space), 0
            for gram in grams_of(part).values():  # one, but in a custom layer
                P, skr = gram.num_inducing, gram.skr
                gamma = min(skr.gamma(P), P) if skr.samples else P
                columns += P + gamma + (P if skr.jitter else 0)
            filters += sum(
                conv.raw_mixing.numel() for conv in part.modules() if isinstance(conv, KernelConv)
            )
            output = rows * P
            centred = any(isinstance(step, Centre) for step in part.modules())
            kept += rows_in * P_in * (2 if centred else 1) + rows * columns + VECTORS * rows
            kept += output if number + 1 < len(parts) else 0
            gradients.append(2 * rows_in * P_in + rows * columns)
            if isinstance(module, ResidualBlock) and module.shortcut is not None and number == 0:
                kept += rows * (P_in + P)  # the pixels that its stride takes, mixed or not
        work = max(gradients) + output
        memories[name] = LayerMemory(
            inside=size * (batch * kept + filters),
            output=size * batch * (entry + output),
            work=size * batch * work,
        )
    return memories


def peak_bytes(memories: Mapping[str, LayerMemory], recomputed: Collection[str]) -> int:
    """The most that the layers need at one time, in the backward pass from the last to the first.

    A layer's turn needs all that is kept of the layers before it, and its own inside and gradients.
    """
    before, peak = 0, 0
    for name, memory in memories.items():
        before += memory.output
        peak = max(peak, before + memory.inside + memory.work)
        before += 0 if name in recomputed else memory.inside
    return peak


def step_bytes(model: DKM, batch: int, recomputed: Collection[str]) -> int:
    """What a training step adds to a model: gradients, Adam, inducing chain, noise, layers.

    The samples of the logits are gone before the backward pass of the layers.
    """
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    memories = layer_memories(model, batch)
    kept = sum(m.output + m.inside * (name not in recomputed) for name, m in memories.items())
    noise, samples = likelihood_bytes(model, batch)
    most = max(kept + samples, peak_bytes(memories, recomputed))
    return FIRST_STEP + (3 + CHAIN) * parameters + noise + most


def likelihood_bytes(model: DKM, batch: int) -> tuple[int, int]:
    """Of the Monte-Carlo noise, and of a portion of the samples beside matrices [batch, C]."""
    S, C, size = model.likelihood.num_samples, model.num_outputs, model.dtype.itemsize
    noise = size * S * C * (batch if S * batch * C <= MOST_NOISE else 1)
    portion = min(S * batch * C, max(PORTION, S * C))
    samples = size * (PORTIONS * portion + OUTPUTS * batch * C)
    return round(noise * (NOISE_GAPS if noise < HEAP_BLOCK else 1)), samples


def set_recomputed_(
    model: Trainable, batch: int, config: TrainConfig, device: torch.device
) -> None:
    """Choose what the model computes again in the backward pass. A network can do no such thing."""
    if isinstance(model, DKM):
        model.recomputed = choose_recomputed(model, batch, config, device)
    elif config.recompute_activations or config.memory is not None:
        raise ConfigError("recompute_activations and memory are for deep kernel machines only")


def choose_recomputed(
    model: DKM, batch: int, config: TrainConfig, device: torch.device
) -> frozenset[str]:
    """The layers that the settings want recomputed: all, as many as memory needs, or none."""
    if config.recompute_activations:
        return frozenset(model.layers)
    if config.memory is None:
        return frozenset()
    return layers_to_recompute(model, batch, parse_bytes(config.memory), device)


def layers_to_recompute(
    model: DKM, batch: int, budget: int, device: torch.device
) -> frozenset[str]:
    """The layers to compute again in the backward pass, so that a step fits into ``budget`` bytes.

    What the ``device`` holds already counts: the model may not be there yet.

    One at a time the layer is chosen that lowers the peak most. ConfigError if even all of them
    are not enough.
    """
    present = resident_bytes(device)
    if model.device != device:
        present += sum(p.numel() * p.element_size() for p in model.parameters())
    memories = layer_memories(model, batch)
    recomputed: set[str] = set()
    while present + step_bytes(model, batch, recomputed) > budget:
        left = [name for name in memories if name not in recomputed]
        if not left:
            least = present + step_bytes(model, batch, recomputed)
            raise ConfigError(
                f"a step needs about {least / 1e9:.2f} GB even if every layer is recomputed, but "
                f"memory is {budget / 1e9:.2f} GB: raise accumulate, or lower the inducing points"
            )
        recomputed.add(min(left, key=lambda name: peak_bytes(memories, {*recomputed, name})))
    return frozenset(recomputed)


def parse_bytes(text: str) -> int:
    """A number of bytes such as 4000000000, 3.9GB or 800 MiB."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:
        number = 0.0
    if not found or number <= 0:
        raise ConfigError(f"memory must be a number of bytes such as 3.9GB, got {text!r}")
    return int(number * (1024 if found[3] else 1000) ** " kmgt".index(found[2] or " "))
