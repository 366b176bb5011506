import os
import subprocess
import sys
from pathlib import Path


def test_compiled_layers():
    """The tests of compiled.py, without the type checks that pyproject.toml asks for."""
    here = Path(__file__).parent
    options = ["-q", "-n0", "-o", "addopts=", "-o", "filterwarnings=", "--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(here / "compiled.py")],
        cwd=here.parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
