"""The cost of a full-rank model: what the formulas say, and what really happens."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.flops import count_flops
from gramian.nn.full_rank.full_rank_config import FullRankConfig
from gramian.nn.full_rank.full_rank_dkm import FullRankConvDKM, FullRankDKM
from gramian.nn.steps.kernels import KERNELS, Kernel, Linear
from gramian.train.cost.full_rank_cost import HEAP_BLOCK, Cost, estimate
from gramian.train.cost.machine import Machine
from tests.samples import generator

CONFIG = FullRankConfig()
LARGE = math.isqrt(HEAP_BLOCK // 8) + 1  # rows of a float64 matrix that is no part of the heap
SCRIPT = Path(__file__).parents[2] / "examples" / "full_rank_cost.py"
LIKELIHOODS = ["gaussian", "categorical", "dirichlet"]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("space", [None, (4, 4)])
def test_twice_the_data_cost_eight_times_the_work_and_four_times_the_memory(likelihood, space):
    config = replace(CONFIG, likelihood=likelihood, num_samples=1)
    one, two = (estimate(config, P, space, num_outputs=3) for P in (LARGE, 2 * LARGE))
    assert two.flops / one.flops == pytest.approx(8, rel=0.01)
    assert two.bytes / one.bytes == pytest.approx(4, rel=0.01)
    assert two.passes / one.passes == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    ("changes", "space"),
    [
        ({"num_layers": 0}, None),
        ({}, None),
        ({"relative": False}, None),
        ({"num_layers": 2}, None),
        ({"nu": math.inf}, None),
        ({}, (2, 2)),
    ],
    ids=["no_layer", "one", "not_relative", "two", "nngp", "images"],
)
def test_the_flops_are_those_that_happen(changes, space, likelihood):
    config = replace(CONFIG, likelihood=likelihood, num_samples=1, **changes)
    P, C = (128, 3) if space is None else (64, 3)
    x = torch.randn(P, 2, *(space or ()), generator=generator(), dtype=torch.float64)
    y = x.flatten(1)[:, :1].sin() if likelihood == "gaussian" else torch.arange(P) % C
    model = (FullRankDKM if space is None else FullRankConvDKM)(x, y, config)
    model.initialise_()
    noise = model.draw_samples(generator()) if likelihood == "categorical" else None
    flops = count_flops(lambda: model.objective(noise).total.backward())
    C = 1 if likelihood == "gaussian" else C
    assert estimate(config, P, space, num_outputs=C).flops == pytest.approx(flops, rel=0.1)


def test_what_else_the_estimate_depends_on():
    kernels = sorted([*KERNELS.values(), Linear], key=lambda kernel: kernel.cost)
    assert kernels[0] is Linear
    assert kernels[-1].cost == Kernel.cost  # what a kernel has that nobody has measured
    names = {kernel: name for name, kernel in (KERNELS | {"linear": Linear}).items()}
    costs = [estimate(replace(CONFIG, kernel=names[kernel]), LARGE) for kernel in kernels]
    assert [cost.bytes for cost in costs] == sorted(cost.bytes for cost in costs)
    few, many = (
        estimate(replace(CONFIG, likelihood="dirichlet", num_classes=C), LARGE) for C in (2, 20)
    )
    assert many.bytes - few.bytes == 8 * 6 * 18 * LARGE**2
    small, large = (
        estimate(replace(CONFIG, likelihood="categorical", num_samples=S), LARGE, num_outputs=10)
        for S in (1, 3000)
    )
    assert large.bytes - small.bytes == pytest.approx(8 * 3000 * LARGE * 10, rel=0.01)
    single, double = (estimate(CONFIG, 2 * LARGE, dtype=t) for t in (torch.float32, torch.float64))
    assert single.bytes > double.bytes / 2  # L-BFGS knows float64 only
    assert single.flops == double.flops


def test_the_memory_of_a_process_that_trains_is_as_estimated():
    command = [sys.executable, str(SCRIPT), "measure", "dense", "500"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert 1 / 1.5 < estimate(CONFIG, 500).bytes / measured["bytes"] < 1.5
    assert measured["seconds"] > 0


def test_seconds_from_counted_work():
    machine = Machine(flops_per_second=1e9, numbers_per_second=1e8)
    assert machine.seconds(Cost(bytes=1, flops=2 * 10**9, passes=3 * 10**8)) == 5.0


def test_speeds_by_a_clock():
    """A clock that is asked at the start and at the end, and says one second later each time."""
    clock = itertools.count().__next__
    machine = Machine.measure(30, torch.float32, clock=lambda: float(clock()))
    assert machine.flops_per_second == 61 * 30**3 / 3
    assert machine.numbers_per_second == 46 * 30**2
