"""Settings for all tests: one thread a worker, reproducible hypothesis, no crash on AMX CPUs."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("gramian", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gramian")
