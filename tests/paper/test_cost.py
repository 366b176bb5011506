"""The simulation: counts of the paper's model, memory against a real step, and the command."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.flops import count_flops
from gramian.gram.fast import passes, split
from gramian.nn.baseline.resnet import ResNet
from gramian.nn.conv_dkm import ConvDKM, ConvDKMConfig
from gramian.train.config import ConfigError
from gramian.train.cost.step_memory import FIRST_STEP
from gramian.train.objective import objective
from gramian.train.presets import presets
from paper.__main__ import main
from paper.cost import simulation as run
from paper.cost.cost_text import as_text
from paper.cost.device import REASONS, Rates
from paper.cost.simulation import read_preset, simulate
from paper.cost.step_cost import Memory, StepCost, dkm_step, network_step
from paper.cost.trace import traced
from tests.samples import generator

SMALL = ConvDKMConfig(
    num_inducing=(16, 32), strides=(1, 2), blocks_per_stage=1, num_samples=10, whitening=False
)
PRESET = """
kind: conv
data: cifar10
max_epochs: 3
batch_size: 32
train_size: 3200
model:
  num_inducing: [8]
  strides: [2]
  blocks_per_stage: 1
  num_samples: 10
  whitening: false
"""


@pytest.fixture
def small_preset(monkeypatch, tmp_path):
    path = tmp_path / "small_cifar10.yaml"
    path.write_text(PRESET)
    known = presets() | {"small_cifar10": path}
    monkeypatch.setattr("gramian.train.presets.presets", lambda: known)
    return path


# ---- counting ----


def test_memory_lives_from_the_operation_to_the_last_reference():
    with traced() as trace:
        a = torch.empty(1000)
        b = a + 1
        assert trace.live_bytes == 8000
        view = b[:10]
        del b
        assert trace.live_bytes == 8000
        del view
        assert trace.live_bytes == 4000
        assert trace.peak_bytes == 8000


def test_passes_are_what_is_read_and_written():
    with traced() as trace:
        a, row = torch.empty(10, 100), torch.empty(100)
        assert (trace.operations, trace.pass_bytes) == (0, 0)
        a * row.expand(10, 100)  # the row is read once
        assert trace.pass_bytes == 4000 + 400 + 4000
        a.view(100, 10).exp_()  # the view costs nothing
        assert (trace.operations, trace.pass_bytes) == (2, 16_400)
        a @ a.mT
        assert (trace.operations, trace.pass_bytes) == (3, 16_400)
        assert trace.product_flops == 2 * 10 * 10 * 100
        torch.linalg.cholesky(torch.empty(6, 6))
        assert trace.solve_flops == 6**3 // 3
        trace.reset()
        assert (trace.operations, trace.pass_bytes, trace.product_flops) == (0, 0, 0)


def test_compiled_chains_are_one_pass():
    """A chain reads what it is given and writes what lives on; a product or a sum ends it."""
    with traced(fused_from=1000) as trace:
        x, y, small = torch.empty(10, 100), torch.empty(10, 100), torch.empty(10, 10)
        trace.reset()
        z = (x * y).exp().mul_(2)
        trace.end_kernel()
        assert trace.pass_bytes == 3 * 4000  # x, y and z
        z.add_(1)
        total = (z * x).sum(1)
        assert trace.pass_bytes == 3 * 4000 + 3 * 4000 + 40  # z, x; z and the sums
        small.add_(1)  # by itself
        assert trace.pass_bytes == 6 * 4000 + 40 + 2 * 400
        del total


def test_a_traced_step_has_the_flops_that_are_counted():
    """Of products and solves; ``test_flops.py`` has the formulas."""
    cost = network_step(SMALL, 4)
    with torch.device("meta"):
        network = ResNet(SMALL.image_shape, 10, SMALL.num_inducing, 1, SMALL.strides)
        images, labels = torch.empty(4, 3, 32, 32), torch.zeros(4, dtype=torch.int64)
        expected = count_flops(lambda: cross_entropy(network(images), labels).backward())
    assert cost.flops == expected


def test_processes_that_share_the_chain_have_less_to_do_and_something_to_exchange(monkeypatch):
    alone = dkm_step(SMALL, 4, recompute=False)
    assert dkm_step(SMALL, 4, recompute=False, sharing=2) == alone  # too small to be worth it
    monkeypatch.setattr(split, "WORTH_SHARING", 1)
    shared = dkm_step(SMALL, 4, recompute=False, sharing=2)
    assert shared.solve_flops < alone.solve_flops
    assert shared.product_flops < alone.product_flops
    assert shared.exchanged_bytes > 0
    assert alone.exchanged_bytes == 0


def test_convolutions_keep_channels_where_cudnn_does():
    with traced():
        images, filters = torch.empty(2, 3, 8, 8), torch.empty(5, 3, 3, 3)
        assert torch.conv2d(images, filters).is_contiguous()
        last = torch.conv2d(images.to(memory_format=torch.channels_last), filters)
        assert last.is_contiguous(memory_format=torch.channels_last)


def measured_peak(config: ConvDKMConfig, batch: int, recompute: bool) -> int:
    """Largest number of bytes from PyTorch's allocator in a real step, by PyTorch's profiler."""
    model = ConvDKM.from_config(config)
    model.initialise_(torch.randn(64, *config.image_shape, generator=generator()), generator(1))
    model.recomputed = frozenset(model.layers if recompute else ())
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    images = torch.randn(batch, *config.image_shape, generator=generator(2))
    labels = torch.zeros(batch, dtype=torch.int64)

    def step() -> None:
        samples = model.draw_samples(batch, generator(4))
        result = model(images, model.draw_noise(generator(3)))
        loss = objective(result, model.likelihood, labels, samples, 1).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    step()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 4 * 4 * sum(p.numel() for p in model.parameters())
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("recompute", [False, True])
def test_the_memory_is_that_of_a_real_step(recompute, monkeypatch):
    """Within 5 %; and the quick estimate that serves --memory within 15 %."""
    monkeypatch.setattr(passes, "BLOCK_BYTES", 2**40)  # all rows at once, as on a GPU
    memory = dkm_step(SMALL, 32, recompute=recompute).memory
    measured = measured_peak(SMALL, 32, recompute)
    assert memory.peak == pytest.approx(measured, rel=0.05)
    assert memory.estimate is not None
    assert memory.estimate - FIRST_STEP == pytest.approx(measured, rel=0.15)


def test_the_network_has_the_same_widths():
    cost = network_step(SMALL, 4)
    assert cost.parameters == cost.used_parameters
    assert cost.solve_flops == cost.normals == 0
    assert cost.memory.gradients == cost.memory.parameters == 4 * cost.parameters


# ---- time ----


def test_seconds_are_work_over_rates():
    nothing = Memory(*[0] * 7)
    cost = StepCost(
        parameters=0, used_parameters=0, product_flops=600, solve_flops=70, pass_bytes=8000,
        operations=90, normals=10, memory=nothing,
    )  # fmt: skip
    rates = Rates(100.0, 0.5, 10.0, 0.5, 1000.0, 0.5, starts=10.0, normals=5.0)
    seconds = rates.step_seconds(cost)
    assert (seconds.products, seconds.solves, seconds.passes) == (12, 14, 16)
    assert (seconds.waiting, seconds.noise) == (0, 2)
    assert seconds.times(3.0).total == 3 * 44
    slow_host = replace(rates, starts=2.0).step_seconds(cost)
    assert slow_host.waiting == 45 - 42
    calibrated = rates.calibrated(cost, 56.0)
    assert calibrated.product_share == 0.25
    assert calibrated.step_seconds(cost).total == 56
    assert set(REASONS) == set(Rates.__dataclass_fields__)


# ---- the paper ----


def test_the_paper():
    """One test, so that one worker makes the simulation once."""
    paper = simulate("paper")
    check_sizes(paper)
    check_flops(paper)
    check_memory(paper)
    check_seconds(paper)
    check_text(paper)


def check_sizes(paper):
    assert paper["parameters"]["dkm"] == paper["published"]["parameters"] == 316_442_198
    assert paper["parameters"]["dkm_effective"] / 1e6 == pytest.approx(297.7, abs=0.05)
    assert paper["parameters"]["network"] / 1e6 == pytest.approx(276.6, abs=0.05)
    assert "19 scalars more" in paper["published"]["difference"]
    assert (paper["batch"], paper["images"], paper["run"]["epochs"]) == (256, 50_000, 1200)


def check_flops(paper):
    """A step of the DKM (512, 1024, 2048 inducing points, 256 images) costs twice a network's."""
    flops = {name: value / 1e12 for name, value in paper["step_flops"].items()}
    assert flops["plain"] == pytest.approx(29.2, abs=0.1)
    assert flops["network"] == pytest.approx(16.0, abs=0.05)
    assert flops["plain"] <= 30  # the published implementation: 42.7
    assert flops["plain"] < flops["checkpointed"] < paper["published"]["step_flops"] / 1e12
    assert paper["epoch_flops"]["plain"] == pytest.approx(
        paper["step_flops"]["plain"] * 50_000 / 256
    )


def check_memory(paper):
    """Checkpointing saves some, and one A100 has enough without it."""
    plain, checkpointed = paper["memory"]["plain"], paper["memory"]["checkpointed"]
    assert checkpointed["kept_data"] < plain["kept_data"] / 4
    assert checkpointed["kept_chain"] == plain["kept_chain"]
    for memory in (plain, checkpointed):
        assert memory["gradients"] == memory["parameters"] == 4 * 316_442_198
        assert memory["adam"] == 2 * memory["parameters"]
        assert memory["estimate"] == pytest.approx(memory["peak"], rel=0.1)
    assert checkpointed["peak"] < plain["peak"] < 40e9


def check_seconds(paper):
    """Between two cruder guesses, and less than published."""
    seconds, published = paper["epoch_seconds"], paper["published"]
    assert seconds["network"]["total"] == pytest.approx(45)  # sets the share of the peak
    assert 0.3 < paper["assumptions"]["product_share"]["value"] < 0.7
    assert (
        published["ours_at_network_rate_seconds"]
        < seconds["plain"]["total"]
        < published["ours_at_published_rate_seconds"]
    )
    assert seconds["plain"]["total"] < seconds["checkpointed"]["total"] < 260
    assert seconds["compiled"]["total"] < 115 < seconds["plain"]["total"]
    run_seconds = 1200 * seconds["plain"]["total"]
    assert paper["run"]["seconds"]["plain"] == pytest.approx(run_seconds)
    assert paper["run"]["all_seeds_seconds"]["plain"] == pytest.approx(4 * run_seconds)


def check_text(paper):
    """The published time stands beside ours, and every assumption below."""
    text = as_text(paper)
    ours = f"{paper['epoch_seconds']['plain']['total']:.0f}"
    row = next(line for line in text.splitlines() if "all, about" in line)
    assert row.split()[2] == ours
    assert row.split()[-1] == "260"
    assert "estimate" in text
    for name in Rates.__dataclass_fields__:
        assert f"  {name} = " in text
    assert max(map(len, text.splitlines())) <= 100


def test_another_model_is_not_taken_for_the_papers():
    assert "-1 beside the published number" in run._difference(316_442_197)


# ---- the command ----


def test_json_and_text_of_a_small_preset(small_preset, capsys):
    assert main(["cost", "--scale", "small", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["widths"], result["images"]) == ([8], 3200)
    assert (result["steps_per_epoch"], result["published"]) == (100, None)
    assert result["epoch_seconds"]["plain"]["waiting"] > 0  # so small that Python is the slower one
    text = as_text(result)
    assert "published" not in text.split("Assumptions")[0]
    assert "not so in this preset" in text


def test_the_environment_changes_nothing(small_preset, monkeypatch):
    monkeypatch.setenv("GRAMIAN_TRAIN__BATCH_SIZE", "7")
    assert read_preset("small")[0].batch_size == 32


def test_other_kinds_of_models_are_refused(small_preset):
    small_preset.write_text("kind: dense\ndata: sine\n")
    with pytest.raises(ConfigError, match="not a convolutional model"):
        read_preset("small")


def test_wrong_words(monkeypatch, capsys):
    known = {name: path for name, path in presets().items() if name != "small_cifar10"}
    monkeypatch.setattr("gramian.train.presets.presets", lambda: known)
    for words, message in (
        (["--scale", "small"], "unknown preset 'small_cifar10'; known are "),
        (["--scale", "huge"], "huge"),
    ):
        assert main(["cost", *words]) == 2
        assert message in capsys.readouterr().err
