"""Mutated files for every loader: a clear refusal or a right value, and nothing else.

`python tests/faults/fuzz.py --files 10000` lets Hypothesis change good files, and hostile ones,
byte by byte and value by value, and gives each to the loader that the program would use. What a
loader may do is return, or raise an error that the program knows: one with an exit code, or an
OSError. It may not print a traceback, run code from the file, import a module that it names, need
more than its bound of memory, or more than ten seconds. Hypothesis shrinks what goes wrong to a
small example and prints it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).parents[2]))  # of the paper, which is not installed

import numpy as np
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonargparse import Namespace
from PIL import Image

from gramian.image_files import ImageFileError

BOUND = 2**30  # bytes of address space beyond what the program has before it reads the file
SECONDS = 10.0
CANARY = "canary_module"
"""A module that can be imported, and that no file may have imported."""
canary: list[str] = []
"""What code from a file has written."""


class Hostile:
    """An object whose pickle runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Called when it is read."""
        return exec, ("import __main__; __main__.canary.append('!')",)


# ---- changes ----

CHANGES = ("flip", "cut", "repeat", "overwrite", "insert", "truncate", "number")


@st.composite
def changed_bytes(draw: Any, originals: list[bytes]) -> bytes:
    """A file with some bytes flipped, cut out, repeated, overwritten or put in."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        length = draw(st.one_of(st.integers(0, 16), st.integers(0, 4096)))
        match draw(st.sampled_from(CHANGES)):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at : at + length]
            case "repeat":
                content[at:at] = content[at : at + length]
            case "overwrite":
                some = draw(st.binary(max_size=64))
                content[at : at + len(some)] = some
            case "insert":
                content[at:at] = draw(st.binary(max_size=64))
            case "truncate":
                del content[at:]
            case "number":  # a size or an offset that is far too large, or negative
                some = draw(st.sampled_from([b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7]))
                content[at : at + len(some)] = some
    return bytes(content)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**4, 10**6, 10**8, 10**12, -1, 2**63, "1e400", "../x", "/etc/passwd"])
    | st.sampled_from(["\x00", "\x1b[31m", "ü" * 300, "os.abort", "cProfile.main", f"{CANARY}.x"])
    | st.sampled_from([{"class_path": f"{CANARY}.X"}, {"class_path": "os.abort", "init_args": {}}])
    | st.floats()
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def replaced(draw: Any, value: Any, new: Any) -> Any:
    """A nested value with one place replaced, dropped or doubled."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(list(value)))
        what = draw(st.integers(0, 9))
        if what == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if what == 1:
            return {**value, draw(st.text(max_size=8)): new}
        return {**value, key: replaced(draw, value[key], new)}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        what = draw(st.integers(0, 5))
        if what == 0:
            return value[:at] + value[at + 1 :]
        if what == 1:
            return [*value, value[at]]
        return [*value[:at], replaced(draw, value[at], new), *value[at + 1 :]]
    return new


@st.composite
def changed_value(draw: Any, original: Any, values: Any = VALUES) -> Any:
    """A nested value with one to three places changed."""
    for _ in range(draw(st.integers(1, 3))):
        original = replaced(draw, original, draw(values))
    return original


def changed_json(text: str) -> Any:
    """JSON with other values, or with other bytes."""
    values = changed_value(json.loads(text)).map(lambda value: json.dumps(value).encode())
    return values | changed_bytes([text.encode()])


def changed_yaml(text: str) -> Any:
    """YAML with other values, or with other bytes."""
    original = yaml.safe_load(text)

    def dump(value: Any) -> bytes:
        return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogateescape")

    hostile = b"!!python/object/apply:os.system ['true']\n"
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join('*' + old for _ in range(9))}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    files = [text.encode(), hostile, bomb.encode()]
    return changed_value(original).map(dump) | changed_bytes(files)


# ---- loaders ----


@dataclass
class Loader:
    """A kind of file: its mutants, and who reads them."""

    files: Any  # strategy
    read: Callable[[Any], object]
    accepted: int = 0
    refused: int = 0
    longest: float = 0.0
    messages: set[str] = field(default_factory=set)
    failing: Any = None
    bound: int = BOUND
    largest: int = 0  # bytes that one file needed


def npz(**arrays: Any) -> bytes:
    """An .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def image(mode: str, suffix: str, **more: Any) -> bytes:
    """A small image file."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).convert(mode)
    if more.pop("frames", 1) > 1:
        more |= {"save_all": True, "append_images": [picture.rotate(90)] * 3}
    picture.save(buffer, suffix, **more)
    return buffer.getvalue()


def images_by_format() -> dict[str, list[bytes]]:
    """Good files of each format that is read, and files of others with its suffix."""
    strangers = [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
        image("RGB", "ico"),
    ]
    files = {
        "BMP": [image(mode, "bmp") for mode in ("1", "L", "P", "RGB")],
        "GIF": [image("P", "gif"), image("P", "gif", frames=4), image("P", "gif", interlace=1)],
        "JPEG": [image("L", "jpeg"), image("RGB", "jpeg", progressive=True), image("CMYK", "jpeg")],
        "PNG": [image(mode, "png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")],
        "PPM": [image(mode, "ppm") for mode in ("1", "L", "RGB")] + [b"P3 2 1 255 1 2 3 4 5 6\n"],
        "TIFF": [
            image("RGB", "tiff"), image("L", "tiff", frames=4), image("1", "tiff"),
            *(image("RGB", "tiff", compression=kind) for kind in ("tiff_lzw", "tiff_deflate")),
        ],
        "WEBP": [image("RGB", "webp"), image("RGBA", "webp", lossless=True, frames=4)],
    }  # fmt: skip
    return {name: [*good, *strangers] for name, good in files.items()}


def loaders(folder: Path) -> dict[str, Loader]:
    """All kinds of files that the program reads, each with something good to start from."""
    from gramian.experiments.cli.run_data import chosen_data
    from gramian.experiments.cli.train_options import parse_train
    from gramian.image_files import FORMATS, decode
    from gramian.train.data import load
    from gramian.train.data.downloads import store
    from gramian.train.data.downloads.archives import gunzip, read_tar
    from gramian.train.predict.predictor import Predictor
    from gramian.train.record import checkpoint
    from gramian.train.record.run_folder import RunFolder
    from paper.report.gather import gather
    from paper.report.grids import result_grid
    from paper.report.markdown import as_markdown
    from paper.report.plain_runs import plain_grid

    trained = train(folder)
    model, run = trained / "model", trained
    description = json.loads((model / "config.json").read_text())
    del description["digest"]  # it would refuse all of them at once
    (model / "config.json").write_text(json.dumps(description))
    weights = (model / "model.safetensors").read_bytes()

    def file_of(name: str, place: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
        """A reader of one file among others that stay good."""

        def with_content(content: bytes) -> object:
            before = (place / name).read_bytes()
            (place / name).write_bytes(content)
            try:
                return read()
            finally:
                (place / name).write_bytes(before)

        return with_content

    def model_of() -> object:
        return Predictor.from_pretrained(model)

    newest = max((run / "checkpoints").glob("step=*.ckpt"))
    state = checkpoint.load(newest)
    scratch = folder / "scratch.ckpt"
    record = {"format": 1, "digest": "", "state": Hostile()}
    evil = io.BytesIO()
    torch.save(record, evil)

    def checkpoint_of(content: bytes) -> object:
        scratch.write_bytes(content)
        return checkpoint.load(scratch)

    trainer = resumed(run)

    def state_of(changed: Any) -> object:
        checkpoint.save(scratch, changed)
        saved = checkpoint.load(scratch)
        trainer.check(saved)
        trainer.load_state(saved)
        return saved

    own = folder / "own.npz"
    draw = np.random.default_rng(0)
    images = draw.integers(0, 255, (12, 8, 8), dtype=np.uint8)
    labels, rows = np.arange(12) % 2, draw.normal(size=(12, 3))
    npzs = [
        npz(x=images, y=labels),
        npz(x_train=rows, y_train=labels, x_test=rows, y_test=labels),
        npz(x=rows, y=np.array(["a", "b"] * 6)),
        npz(x=np.array([Hostile()], dtype=object), y=labels),
    ]

    def npz_of(content: bytes) -> object:
        own.write_bytes(content)
        return load(own)

    stored = folder / "stored.npz"
    fetched = npz(
        x_train=images[:, None], y_train=labels.astype(np.uint8), x_test=images[:, None],
        y_test=labels.astype(np.uint8), sha256=np.array("0" * 64),
    )  # fmt: skip

    def stored_of(content: bytes) -> object:
        stored.write_bytes(content)
        return store.read(stored)

    classes = folder / "classes"
    for name in ("a", "b"):
        (classes / name).mkdir(parents=True)
        for number in range(3):
            (classes / name / f"{number}.png").write_bytes(image("RGB", "png"))
    formats = images_by_format()
    assert formats.keys() == FORMATS.keys()

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        for name in ("data/batch.bin", "data/readme.html"):
            member = tarfile.TarInfo(name)
            member.size = 3073
            archive.addfile(member, io.BytesIO(images.tobytes() * 5))
    plain_tar = gzip.decompress(tar.getvalue())
    zipped = gzip.compress(images.tobytes())

    def archive_of(content: bytes) -> object:
        if content[:2] == b"\x1f\x8b" and len(content) < len(zipped) + 100:
            return gunzip(content, images.size, "file.gz")
        return read_tar(io.BytesIO(content), "archive.tar.gz", {"data/batch.bin": 3073})

    config = yaml.safe_load((run / "config.yaml").read_text())
    settings_file = folder / "settings.yaml"

    def settings_of(content: bytes) -> object:
        settings_file.write_bytes(content)
        return parse_train(["--data", "digits", "--config", str(settings_file)])[0]

    def report_of() -> object:
        found = gather([run])
        return as_markdown(plain_grid(found.plain_runs))

    table = folder / "table"
    make_table(table, run)

    def table_of() -> object:
        return [as_markdown(result_grid(found)) for found in gather([table]).tables]

    def result_of() -> object:
        return RunFolder(run).result(trainer.config, trainer.data_digest)

    options = Namespace(model=str(run), data=None, data_dir=None, split="test", **{"import": []})

    def data_of() -> object:
        return chosen_data(options)

    metrics = (run / "metrics.jsonl").read_text()
    lines = changed_json(metrics.splitlines()[0]).map(lambda line: line + b"\n")
    return {
        "config.json": Loader(
            changed_json(json.dumps(description)),
            file_of("config.json", model, model_of),
            bound=2**28,
        ),
        "model.safetensors": Loader(
            changed_bytes([weights]), file_of("model.safetensors", model, model_of), bound=2**28
        ),
        "checkpoint, bytes": Loader(
            changed_bytes([newest.read_bytes(), evil.getvalue(), pickle.dumps(Hostile())]),
            checkpoint_of,
        ),
        "checkpoint, values": Loader(changed_state(state), state_of),
        "own .npz": Loader(changed_bytes(npzs), npz_of),
        "fetched .npz": Loader(changed_bytes([fetched, npzs[3]]), stored_of),
        "folder of images": Loader(
            changed_bytes([file for files in formats.values() for file in files]),
            file_of("0.png", classes / "a", lambda: load(classes)),
        ),
        **{
            f"image, {name}": Loader(
                changed_bytes(files), lambda content: decode("image", content), bound=2**28
            )
            for name, files in formats.items()
        },
        "archives": Loader(changed_bytes([tar.getvalue(), plain_tar, zipped]), archive_of),
        "metrics.jsonl": Loader(
            lines | changed_bytes([metrics.encode()]), file_of("metrics.jsonl", run, report_of)
        ),
        "result.json, in a report": Loader(
            changed_json((run / "result.json").read_text()), file_of("result.json", run, report_of)
        ),
        "result.json, of a run to go on with": Loader(
            changed_json((run / "result.json").read_text()), file_of("result.json", run, result_of)
        ),
        "experiment.json": Loader(
            changed_json((table / "experiment.json").read_text()),
            file_of("experiment.json", table, table_of),
        ),
        "config.yaml, in a report": Loader(
            changed_yaml((run / "config.yaml").read_text()), file_of("config.yaml", run, report_of)
        ),
        "config.yaml, of a run to go on with": Loader(
            changed_yaml((run / "config.yaml").read_text()), file_of("config.yaml", run, result_of)
        ),
        "config.yaml, of a run to evaluate": Loader(
            changed_yaml((run / "config.yaml").read_text()),
            file_of("config.yaml", run, data_of),
            bound=2**28,
        ),
        "settings of train": Loader(
            changed_yaml(yaml.safe_dump({key: config[key] for key in config if key != "data"})),
            settings_of,
        ),
    }


def changed_state(state: Any) -> Any:
    """A checkpoint's state with other values and tensors, and a right digest."""
    tensors = st.sampled_from([torch.zeros(2, 2), torch.full((3,), torch.nan), torch.zeros(0)])
    return changed_value(state, VALUES | tensors).filter(is_json_like)


def is_json_like(value: Any) -> bool:
    """Whether a checkpoint could hold it: a digest exists."""
    from gramian.train.record.checkpoint import digest

    try:
        digest(value)
    except (TypeError, ValueError):
        return False
    return True


TINY = [
    "--preset", "digits", "--train_size", "35", "--batch_size", "16", "--device", "cpu",
    "--model.num_inducing", "[8,8]", "--model.num_samples", "10", "--max_epochs", "2",
]  # fmt: skip


def train(folder: Path) -> Path:
    """A run folder of a small model."""
    from gramian.experiments.cli.main import main as program

    words = ["train", *TINY, "--plots", "false", "--output", str(folder), "--name", "run"]
    stdout = sys.stdout
    sys.stdout = io.StringIO()
    try:
        assert program([*words, "--json", "--quiet"]) == 0
    finally:
        sys.stdout = stdout
    return folder / "run"


def resumed(run: Path) -> Any:
    """A trainer that could go on from the run's checkpoints."""
    from gramian.experiments.cli.train_options import parse_train
    from gramian.train.record.run_folder import RunFolder
    from gramian.train.run import prepare
    from gramian.train.task import load_task

    config, _, splits = parse_train(TINY)
    trainer = prepare(config, RunFolder(run), quiet=True, task=load_task(config, splits))
    with trainer.engine.arithmetic():
        trainer.start(True)
    return trainer


def make_table(table: Path, run: Path) -> None:
    """A folder of ``python -m paper`` with one row and one seed."""
    shutil.copytree(run, table / "headline" / "seed0")
    facts = {
        "name": "table3", "kind": "table", "scale": "small", "title": "t", "data": "digits",
        "epochs": 2, "seeds": 1, "precision": "32-true", "headline": "headline",
        "rows": [{"key": "headline", "label": "DKM", "difference": "", "published": None}],
        "quoted": [{"label": "x", "accuracy": "1", "log_likelihood": "2"}],
    }  # fmt: skip
    (table / "experiment.json").write_text(json.dumps(facts))


# ---- the campaign ----


@contextmanager
def bounded(loader: Loader) -> Any:
    """No more address space than the bound beyond what is in use, and SECONDS; notes the peak."""
    pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    before, page = resource.getrlimit(resource.RLIMIT_AS), resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    resource.setrlimit(resource.RLIMIT_AS, (pages * page + loader.bound, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # what no signal ends
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
        loader.largest = max(loader.largest, peak - resident * page)


def too_long(*_: object) -> NoReturn:
    """End a loader that hangs."""
    raise AssertionError(f"more than {SECONDS:.0f} s")


def try_one(loader: Loader, content: Any) -> None:
    """Give a file to its loader; raises what may not be."""
    canary.clear()
    started = time.monotonic()
    try:
        with bounded(loader):
            loader.read(content)
        loader.accepted += 1
    except BaseException as error:
        ours = isinstance(error, OSError | ImageFileError)
        known = ours or getattr(error, "exit_code", None) in (1, 2, 3, 4)
        greedy = isinstance(error.__cause__, MemoryError)
        if not known or greedy or not str(error).strip():
            raise
        loader.refused += 1
        loader.messages.add(str(error)[:60])
    loader.longest = max(loader.longest, time.monotonic() - started)
    assert not canary, "code from the file was run"
    assert CANARY not in sys.modules, "a module that the file names was imported"


def fuzz(loader: Loader, count: int, seed: int) -> None:
    """So many mutants of one kind of file."""
    quick = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=quick,
        phases=(Phase.generate, Phase.shrink), derandomize=False,
    )  # fmt: skip
    @given(loader.files)
    def each(content: Any) -> None:
        try:
            try_one(loader, content)
        except BaseException:
            loader.failing = content  # the last one is the smallest
            raise

    from hypothesis import seed as with_seed

    with_seed(seed)(each)()


def main() -> int:
    """All loaders, or some; then a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loaders", nargs="+", help="names, or their beginnings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of Pillow and PyTorch, about what is then refused
    failed = 0
    signal.signal(signal.SIGALRM, too_long)
    heads = ("File", "Mutants", "Read", "Refused", "Different messages", "Longest", "Peak", "All")
    print(f"| {' | '.join(heads)} |\n|---|" + "---:|" * 7, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.append(folder)
        (Path(folder) / f"{CANARY}.py").write_text("")
        for name, loader in loaders(Path(folder)).items():
            chosen = arguments.loaders
            if chosen and not any(name.startswith(word) for word in chosen):
                continue
            started = time.monotonic()
            try:
                fuzz(loader, arguments.files, arguments.seed)
            except (Exception, BaseExceptionGroup) as error:
                failed += 1
                found = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
                for each in found:
                    print(f"\n{name}: {type(each).__name__}: {str(each)[:500]}")
                    print("".join(traceback.format_tb(each.__traceback__)[-4:]))
                    print(repr(loader.failing)[:1500], repr(each.__cause__), flush=True)
            total = loader.accepted + loader.refused
            cells = [name, total, loader.accepted, loader.refused, len(loader.messages)]
            cells += [f"{loader.longest:.2f} s", f"{loader.largest / 1e6:.0f} MB"]
            cells += [f"{time.monotonic() - started:.0f} s"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
