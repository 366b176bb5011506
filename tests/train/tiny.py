"""A task and a model that train in a second."""

import numpy as np
import pytest
import torch

from gramian import SKR, Bandwidth, ConvDKMConfig, Predictor, fit
from gramian.train.config import TrainConfig, build_model
from gramian.train.data import Augmentation, Normaliser, digits
from gramian.train.defaults import IMAGE_MODEL
from gramian.train.runtime.engine import Engine
from gramian.train.task import Task, fit_model_config
from gramian.train.trainer import Trainer

can_emulate_tf32 = hasattr(torch.library, "get_kernel")
needs_tf32_emulation = pytest.mark.skipif(
    not can_emulate_tf32, reason="precision tf32-emulated needs PyTorch 2.9"
)

MODEL = ConvDKMConfig(
    num_inducing=(8, 8),
    strides=(2, 2),
    blocks_per_stage=1,
    num_samples=10,
    mixing_start="near_identity",
    output_start="kernel",
    whitening=False,
)


def digits_predictor() -> Predictor:
    """A small model of digits by the recipe, in a few seconds: about 90 % right."""
    data = digits().train
    bandwidths = {
        name: Bandwidth(**IMAGE_MODEL[name]) for name in ("bandwidth", "output_bandwidth")
    }
    model = ConvDKMConfig(
        num_inducing=(16, 16), strides=(2, 2), blocks_per_stage=1, whitening=False,
        num_samples=20, skr=SKR(None, 0.1), **IMAGE_MODEL | bandwidths,
    )  # fmt: skip
    settings = {"max_epochs": 4, "lr": 0.03, "schedule": "one_cycle", "optimiser": "muon"}
    return fit(model, data.x, np.array(data.class_names)[data.y.numpy()], **settings)


def config(**changes) -> TrainConfig:
    settings = {"max_epochs": 3, "batch_size": 16, "crop_padding": 1, "model": MODEL}
    return TrainConfig(**(settings | changes))


def task(settings: TrainConfig, validation: bool = False) -> Task:
    data = digits().train
    part = {
        name: data.subset(torch.arange(start, start + 40))
        for name, start in {"train": 0, "validation": 40, "test": 80}.items()
    }
    return Task(
        part["train"],
        part["validation"] if validation else None,
        part["test"],
        Normaliser.fit(data.x),
        Augmentation(settings.crop_padding, settings.flip),
    )


def trainer(
    settings: TrainConfig | None = None, folder=None, validation=False, engine=None
) -> Trainer:
    settings = settings or config()
    data = task(settings, validation)
    model_config = fit_model_config(settings.model, data.train)
    torch.manual_seed(0)
    predictor = Predictor(
        build_model(model_config), model_config, data.scaler, data.train.class_names
    )
    engine = engine or Engine("cpu", precision=settings.precision)
    return Trainer(predictor, data, settings, engine, folder, quiet=True)


def weights(run: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def assert_same_weights(a, b) -> None:
    assert all(torch.equal(a[name], b[name]) for name in a), "weights differ"
