"""What must work where the wheel is installed: without extras, and with each of them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.environments import Environment, ReleaseError, environment, run

DEMO = ("train", "--preset", "digits", "--max_epochs", "1", "--quiet", "--output", "runs")
DIGITS = """
import numpy
from sklearn.datasets import load_digits
numpy.savez("digits.npz", x=load_digits().images[:50, None] * 15)
"""
RIGHT = """
import csv
from sklearn.datasets import load_digits
found = [int(row["class"]) for row in csv.DictReader(open("predictions.csv"))]
print(sum(found == load_digits().target[:50]))
"""
ONNX = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
images = numpy.load(DIGITS)["x"].astype("uint8")
(probabilities,) = session.run(["probabilities"], {session.get_inputs()[0].name: images})
print(probabilities.shape)
"""


def check_plain(plain: Environment, version: str) -> Path:
    """Import, version, the demo's short form and predictions; the demo's run folder."""
    for line in ("import gramian", "from gramian import DKMClassifier"):
        say(f"{line}: {seconds(plain, line):.2f} s")
    said = run([str(plain.folder / "bin" / "gramian"), "--version"], plain.work)
    expect(said == f"gramian {version}\n", f"gramian --version says {said}")
    expect(version in plain.gramian("info"), "gramian info does not name its version")
    start = time.perf_counter()
    plain.gramian(*DEMO, "--name", "demo")
    say(f"demo, one epoch: {time.perf_counter() - start:.0f} s")
    plain.code(DIGITS)
    rows = plain.gramian("predict", "runs/demo", "digits.npz").splitlines()
    expect(len(rows) == 51, f"gramian predict gives {len(rows)} lines for 50 digits")
    plain.gramian("predict", "pretrained:digits", "digits.npz", "--output", "predictions.csv")
    right = int(plain.code(RIGHT))
    expect(right >= 48, f"pretrained:digits is right about {right} of 50")
    say(f"pretrained:digits: {right} of 50 digits")
    return plain.work / "runs" / "demo"


def seconds(installed: Environment, line: str) -> float:
    """How long a line takes: the quickest of three new processes, without Python's own start."""
    code = f"import time; start = time.perf_counter(); {line}; print(time.perf_counter() - start)"
    return min(float(installed.code(code)) for _ in range(3))


def check_missing(plain: Environment, extra: str, demo: Path) -> None:
    """Without the extra, the command that needs it says how to install it."""
    words = [plain.python, "-m", "gramian", *command_of(extra, demo)]
    done = subprocess.run(
        words, cwd=plain.work, env=environment(), capture_output=True, text=True, timeout=300
    )
    expect(
        done.returncode in (1, 2) and f"gramian[{extra}]" in done.stderr,
        f"without gramian[{extra}] it should be named: {' '.join(words)}\n{done.stderr}",
    )


def command_of(extra: str, demo: Path) -> Sequence[str]:
    """A command that needs an extra."""
    return {
        "plots": ("map", str(demo), "--points", "200", "--output", "map"),
        "log": (*DEMO, "--name", "log", "--tensorboard", "true"),
        "tune": ("tune", "--data", "digits", "--train_size", "200", "--max_epochs", "1",
                 "--trials", "2", "--output", "tune", "--quiet"),
        "serve": ("serve", "pretrained:digits", "--port", "0", "--json"),
        "export": ("export", str(demo), "--format", "onnx", "--output", "model.onnx"),
    }[extra]  # fmt: skip


def use_plots(installed: Environment, demo: Path, source: Path) -> None:
    """The map of a run, and the plots of a run of its own."""
    installed.gramian(*command_of("plots", demo))
    expect_files(installed.work / "map", "map.html", "map.png")
    installed.gramian(*DEMO, "--name", "plots")
    expect_files(installed.work / "runs" / "plots" / "plots", "*.png")


def use_log(installed: Environment, demo: Path, source: Path) -> None:
    """A run whose curves TensorBoard reads."""
    installed.gramian(*command_of("log", demo))
    found = installed.module("tensorboard.main", "--inspect", "--logdir", "runs/log/tensorboard")
    expect("objective" in found, f"TensorBoard finds only {found}")


def use_tune(installed: Environment, demo: Path, source: Path) -> None:
    """A search of two trials."""
    installed.gramian(*command_of("tune", demo))
    expect_files(installed.work / "tune", "best.yaml", "trials.csv", "tune.png")


def use_serve(installed: Environment, demo: Path, source: Path) -> None:
    """The page and an answer from a server of its own."""
    words = [installed.python, "-m", "gramian", *command_of("serve", demo)]
    log = installed.work / "serve.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            words, cwd=log.parent, env=environment(), stdout=subprocess.PIPE, stderr=errors
        ) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            expect(line != b"", f"gramian serve does not start:\n{log.read_text()}")
            url = json.loads(line)["url"]
            expect(b"<html" in fetch(url), "the page of gramian serve is none")
            question = json.dumps({"inputs": [[[[0] * 8] * 8]]}).encode()
            answer = json.loads(fetch(f"{url}predict", question))
            expect(len(answer["predictions"]) == 1, f"gramian serve answers {answer}")
        finally:
            server.send_signal(signal.SIGTERM)
    expect(server.returncode == 143, f"gramian serve ends with {server.returncode}")


def use_export(installed: Environment, demo: Path, source: Path) -> None:
    """A file that ONNX Runtime runs."""
    installed.gramian(*command_of("export", demo))
    digits = repr(str(demo.parents[1] / "digits.npz"))
    shape = installed.code(ONNX.replace("DIGITS", digits)).strip()
    expect(shape == "(50, 10)", f"the ONNX model gives {shape} for 50 digits")


def use_docs(installed: Environment, demo: Path, source: Path) -> None:
    """The site, but for running its tutorials, which `make docs` does."""
    quick = ["-q", "-D", "nb_execution_mode=off"]
    installed.module("sphinx", "-b", "html", *quick, str(source / "docs"), "site")
    expect_files(installed.work / "site", "index.html", "tutorials/digits.html")
    installed.code("import gpytorch")


USES: dict[str, Callable[[Environment, Path, Path], None]] = {
    "plots": use_plots,
    "log": use_log,
    "tune": use_tune,
    "serve": use_serve,
    "export": use_export,
    "docs": use_docs,
}


def fetch(url: str, data: bytes | None = None) -> bytes:
    """The answer to a request."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def expect_files(folder: Path, *patterns: str) -> None:
    """Files that a command should have written."""
    for pattern in patterns:
        expect(any(folder.glob(pattern)), f"there is no {pattern} in {folder}")


def expect(true: bool, otherwise: str) -> None:
    """Stop the release if something is not so."""
    if not true:
        raise ReleaseError(otherwise)


def say(line: str) -> None:
    """A line of the release's protocol."""
    print(f"  {line}", flush=True)
