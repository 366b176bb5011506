"""The estimate of a step's memory, against what autograd keeps, and the choice it leads to."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gramian import SKR, ConvDKM, ConvDKMConfig
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.cost import step_memory as memory
from gramian.train.cost.step_memory import (
    choose_recomputed,
    layer_memories,
    layers_to_recompute,
    parse_bytes,
    peak_bytes,
    step_bytes,
)
from gramian.train.runtime.memory import resident_bytes
from tests.samples import generator

CONFIG = ConvDKMConfig(num_inducing=(8, 16), strides=(1, 2), blocks_per_stage=2, whitening=False)
BATCH = 8
CPU = torch.device("cpu")


def model(config=CONFIG) -> ConvDKM:
    built = ConvDKM.from_config(config)
    built.initialise_(torch.randn(BATCH, 3, 32, 32, generator=generator()), generator(1))
    return built


def kept(function) -> tuple[int, object]:
    """Bytes of the distinct tensors that autograd keeps of a function, and its result."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return sum(t.untyped_storage().nbytes() for t in storages.values()), result


@pytest.mark.parametrize("skr", [SKR(), SKR(None), SKR.off()], ids=["skr", "jitter", "off"])
@pytest.mark.parametrize(
    ("unexplained", "centre"), [("kept", False), ("dropped", False), ("dropped", True)]
)
def test_the_estimate_is_what_autograd_keeps(skr, unexplained, centre):
    dkm = model(replace(CONFIG, skr=skr, unexplained=unexplained, centre=centre))
    x = torch.randn(BATCH, 3, 32, 32, generator=generator(2))
    chain = dkm.inducing_chain(dkm.draw_noise(generator(3)))
    counted, _ = kept(lambda: dkm.propagate(x, chain))
    layers = layer_memories(dkm, BATCH).values()
    assert sum(layer.inside + layer.output for layer in layers) == pytest.approx(counted, rel=0.1)


def test_the_inducing_chain_keeps_three_times_the_parameters():
    dkm = model(replace(CONFIG, num_inducing=(32, 64)))
    counted, _ = kept(lambda: dkm.inducing_chain(dkm.draw_noise(generator(3))))
    parameters = sum(4 * parameter.numel() for parameter in dkm.parameters())
    assert memory.CHAIN * parameters == pytest.approx(counted, rel=0.25)


def test_recomputing_lowers_the_peak_and_all_layers_lower_it_most():
    memories = layer_memories(model(), BATCH)
    peaks = [
        peak_bytes(memories, set(list(memories)[:count])) for count in range(len(memories) + 1)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.7 * peaks[0]


def test_as_few_layers_are_recomputed_as_the_budget_needs(monkeypatch):
    dkm = model()
    monkeypatch.setattr(memory, "resident_bytes", lambda device: 0)
    full, least = step_bytes(dkm, BATCH, ()), step_bytes(dkm, BATCH, dkm.layers)
    assert layers_to_recompute(dkm, BATCH, full, CPU) == frozenset()
    counts = []
    for budget in (full - 1, (full + least) // 2, least):
        chosen = layers_to_recompute(dkm, BATCH, budget, CPU)
        assert step_bytes(dkm, BATCH, chosen) <= budget
        counts.append(len(chosen))
    assert counts == sorted(counts)
    assert counts[0] < len(dkm.layers)
    with pytest.raises(
        ConfigError, match=r"even if every layer is recomputed, but memory is 0\.00"
    ):
        layers_to_recompute(dkm, BATCH, 1000, CPU)


def test_some_recomputed_layers_give_identical_gradients():
    gradients = []
    for recomputed in ((), ("stem", "stage2_block1"), None):
        dkm = model()
        dkm.recomputed = frozenset(dkm.layers if recomputed is None else recomputed)
        x = torch.randn(BATCH, 3, 32, 32, generator=generator(2))
        result = dkm(x, dkm.draw_noise(generator(3)))
        (result.marginals.mean.sum() + result.total_kl).backward()
        gradients.append([parameter.grad for parameter in dkm.parameters()])
    for others in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], others, strict=True))


def test_the_settings_choose():
    dkm, everything = (
        model(),
        frozenset({"stem", *(f"stage{s}_block{b}" for s in (1, 2) for b in (1, 2))}),
    )
    assert choose_recomputed(dkm, BATCH, TrainConfig(), CPU) == frozenset()
    assert choose_recomputed(dkm, BATCH, TrainConfig(recompute_activations=True), CPU) == everything
    assert choose_recomputed(dkm, BATCH, TrainConfig(memory="100GB"), CPU) == frozenset()
    with pytest.raises(ConfigError, match="raise accumulate"):
        choose_recomputed(dkm, BATCH, TrainConfig(memory="1MB"), CPU)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4000", 4000), ("3.9GB", 3_900_000_000), ("800 MiB", 800 * 2**20), ("2e9", 2_000_000_000)],
)
def test_bytes_are_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-3GB", "0", "1.2.3GB", "3 XB"])
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match=r"memory must be a number of bytes such as 3\.9GB"):
        parse_bytes(text)


def test_the_process_has_a_size():
    assert resident_bytes(torch.device("cpu")) > 50e6


STEPS = """
import sys
import psutil
import torch
from gramian import DenseDKM, DenseDKMConfig, objective
from gramian.train.cost.step_memory import step_bytes
from gramian.train.runtime.memory import peak_bytes

C, batch, samples = map(int, sys.argv[1:])
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
config = DenseDKMConfig(num_features=10, num_inducing=64, num_outputs=C, num_samples=samples)
model = DenseDKM.from_config(config)
x, y = torch.randn(batch, 10, generator=draw), torch.arange(batch) % C
model.initialise_(x, draw)
optimiser = torch.optim.Adam(model.parameters(), fused=True)
before = psutil.Process().memory_info().rss
for _ in range(2):
    noise, points = model.draw_noise(draw), model.draw_samples(batch, draw)
    terms = objective(model(x, noise), model.likelihood, y, points, 1000)
    del points
    optimiser.zero_grad()
    terms.loss.backward()
    optimiser.step()
print(step_bytes(model, batch, ()) / (peak_bytes() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(
    ("classes", "batch", "samples"), [(2, 4000, 1000), (100, 500, 1000), (3000, 500, 100)]
)
def test_the_estimate_is_what_a_step_of_many_classes_takes(classes, batch, samples):
    command = [sys.executable, "-c", STEPS, str(classes), str(batch), str(samples)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 1 / 1.5 < float(found.stdout) < 1.5
