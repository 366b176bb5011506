"""Every model on a CUDA device, without one: nothing stays on the host, nothing is mixed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_processes import ENVIRONMENT

SCRIPT = Path(__file__).parent / "fake_cuda.py"
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    words = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path_factory.mktemp("guard"))]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["published", "recipe", "dense", "full_rank", "network"])
def test_start_training_pass_and_prediction_stay_on_the_device(said, case):
    assert said[case].get("error") is None
    assert said[case]["devices"] == "cuda:0"


def test_a_mixing_of_devices_is_noticed(said):
    assert re.search("found (at least two|two different) devices,? c", said["mixed"]["error"])
