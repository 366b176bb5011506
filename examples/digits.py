"""The demo: train on handwritten digits with the real program, beside two classics.

1,797 real 8×8 images that come with scikit-learn; 450 of them are held out.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.spatial.distance import pdist
from sklearn.calibration import CalibratedClassifierCV
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import accuracy_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gramian.experiments.cli.main import main
from gramian.train.data import digits

FOLDER = Path("runs/demo")

code = main(["train", "--preset", "digits", "--output", "runs", "--name", "demo", *sys.argv[1:]])
if code:
    sys.exit(code)

result = json.loads((FOLDER / "result.json").read_text())
ours = result["metrics"]["test"]
table = Table(title="Held-out digits, the same 450 images for all", title_justify="left")
for column in ("", "accuracy", "log-likelihood", "seconds to fit"):
    table.add_column(column, justify="left" if not column else "right")


def add(name: str, accuracy: float, log_likelihood: float, seconds: float) -> None:
    """One row of the table."""
    table.add_row(name, f"{accuracy:.2%}", f"{log_likelihood:.4f}", f"{seconds:.0f}")


add(
    "convolutional DKM with SKR",
    ours["accuracy"],
    ours["log_likelihood"],
    result["train_seconds"],
)

data = digits()
x_train, x_test = (part.x.flatten(1).double().numpy() / 255 for part in (data.train, data.test))
y_train, y_test = data.train.y.numpy(), data.test.y.numpy()
# The Gaussian process has its kernel fixed at the median distance: fitting it takes many minutes.
classics = {
    "SVC, calibrated (scikit-learn)": make_pipeline(
        StandardScaler(),
        CalibratedClassifierCV(SVC(C=10), method="temperature", cv=5, ensemble=False),
    ),
    "Gaussian process (scikit-learn)": GaussianProcessClassifier(
        10.0 * RBF(np.median(pdist(x_train))), optimizer=None, n_jobs=2
    ),
}
for name, classifier in classics.items():
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier.fit(x_train, y_train)
    seconds = time.perf_counter() - start
    probabilities = classifier.predict_proba(x_test)
    accuracy = accuracy_score(y_test, np.argmax(probabilities, axis=1))
    add(name, accuracy, -log_loss(y_test, probabilities), seconds)

Console().print(table)
Console().print(f"Plots: {FOLDER / 'plots'}    Everything else of the run: {FOLDER}")
