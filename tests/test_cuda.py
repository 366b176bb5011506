"""On a GPU: precisions, waits, a resumed run, estimators, two processes. `make test-gpu` runs them.

``GRAMIAN_TEST_DEVICE=cpu`` tries their logic where there is no GPU.
"""

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gramian import ConvDKMConfig, DenseDKMConfig, FullRankConfig, fit
from gramian.experiments.cli.main import main
from gramian.nn.conv_dkm import ConvDKM
from gramian.train.objective import objective
from gramian.train.record.run_folder import RunFolder
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.signals import Stopped
from tests.test_clusters import TEN_STEPS, TRAIN
from tests.test_clusters import weights as saved_weights
from tests.train.test_trainer import stop_after
from tests.train.tiny import config, trainer, weights

DEVICE = os.environ.get("GRAMIAN_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU"
    ),
]
MODEL = ConvDKMConfig(
    image_shape=(3, 16, 16), num_outputs=10, num_inducing=(32, 64), strides=(2, 2),
    blocks_per_stage=1, num_samples=20,
)  # fmt: skip


@pytest.fixture(autouse=True)
def usual_device():
    """Tensors are made on the CPU again: these tests say where."""
    torch.set_default_device("cpu")


def step(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective of a step and its gradients; start values and noise are drawn on the CPU."""
    draw = torch.Generator().manual_seed(0)
    model = ConvDKM.from_config(MODEL).double()
    images = torch.randn(64, 3, 16, 16, generator=draw, dtype=torch.float64)
    labels = torch.randint(10, (64,), generator=draw)
    model.initialise_(images, draw)
    noise, samples = model.draw_noise(draw), model.draw_samples(64, draw)
    model.to(device, dtype)
    noise = {path: value.to(device, dtype) for path, value in noise.items()}
    result = model.train()(images.to(device, dtype), noise)
    terms = objective(result, model.likelihood, labels.to(device), samples.to(device, dtype), 1000)
    terms.loss.backward()
    gradients = [p.grad.double().cpu().flatten() for p in model.parameters() if p.grad is not None]
    return terms.total.detach().double().cpu(), torch.cat(gradients)


@pytest.mark.parametrize(
    ("dtype", "tf32", "tolerance"),
    [(torch.float64, False, 1e-9), (torch.float32, False, 1e-3), (torch.float32, True, 0.1)],
    ids=["float64", "float32", "TF32"],
)
def test_a_step_has_the_numbers_of_the_cpu(dtype, tf32, tolerance):
    expected, expected_gradients = step("cpu", torch.float64)
    if DEVICE == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        found, gradients = step(DEVICE, dtype)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    error = (gradients - expected_gradients).norm() / expected_gradients.norm()
    assert error < (0.2 if tf32 else 10 * tolerance)


def test_a_stopped_run_goes_on(tmp_path):
    def new(folder=None):
        record = None if folder is None else RunFolder(folder)
        settings = config(precision="64-true")
        return trainer(settings, record, engine=Engine(DEVICE, precision="64-true"))

    whole = new()
    whole.fit()
    run = new(tmp_path)
    stop_after(run, 5)
    with pytest.raises(Stopped):
        run.fit()
    run = new(tmp_path)
    run.fit()
    assert run.resumed
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.skipif(DEVICE != "cuda", reason="only CUDA counts waits")
def test_a_step_waits_for_the_device_at_most_twice():
    run = trainer(engine=Engine("cuda"))
    run.start(resume=False)
    run.train_step()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(one.message) for one in seen if "synchronizing" in str(one.message)]
    assert len(waits) <= 2, waits


def test_every_kind_of_model_is_fitted_there():
    draw = np.random.default_rng(0)
    rows, images = draw.normal(size=(60, 4)), draw.normal(size=(60, 8, 8)).astype(np.float32)
    labels, targets = np.arange(60) % 3, rows[:, 0]
    small = replace(MODEL, image_shape=(1, 8, 8), num_outputs=3, num_inducing=(8, 8))
    for model, x, y in [
        (DenseDKMConfig(num_inducing=10), rows, targets),
        (DenseDKMConfig(num_inducing=10), rows, labels),
        (FullRankConfig(), rows, targets),
        (small, images, labels),
    ]:
        steps = {"max_iter": 3} if isinstance(model, FullRankConfig) else {"max_epochs": 1}
        predictor = fit(model, x, y, **steps, device=DEVICE)
        assert all(value.isfinite().all() for value in predictor.predictions(x).values())


@pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="there are not two GPUs"
)
def test_two_processes_give_the_weights_of_one(tmp_path):
    where = ["--device", DEVICE]
    for count in ("1", "2"):
        words = [*TRAIN, *TEN_STEPS, *where, "--output", str(tmp_path / count), "--devices", count]
        from tests.test_processes import finish, start

        code, err = finish(start("-m", "gramian", *words))
        assert code == 0, err
    one, two = saved_weights(tmp_path / "1"), saved_weights(tmp_path / "2")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-8, atol=1e-9)


def test_the_program_there(tmp_path):
    words = [*TRAIN, *TEN_STEPS, "--device", DEVICE, "--output", str(tmp_path), "--max_epochs", "1"]
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--device", DEVICE, "--json"]) == 0
