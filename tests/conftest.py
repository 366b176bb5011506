"""Settings for all tests: one thread a worker, reproducible hypothesis, no crash on AMX CPUs."""

import logging
import os

import pytest

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
from hypothesis import settings

torch.set_num_threads(1)
if "GRAMIAN_TEST_DEVICE" in os.environ:  # make test-gpu: the parity tests on another device
    torch.set_default_device(os.environ["GRAMIAN_TEST_DEVICE"])
settings.register_profile("gramian", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gramian")


@pytest.fixture(autouse=True)
def logging_as_it_was():
    """The program sets up logging for its process; the next test must not see that."""
    yield
    logger = logging.getLogger("gramian")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
