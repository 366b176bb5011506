"""Own images in folders: one folder for each class, optionally below train/ and test/."""

from __future__ import annotations

from pathlib import Path

import torch

from gramian.image_files import SUFFIXES
from gramian.train.data.class_names import in_order
from gramian.train.data.data_errors import DataError
from gramian.train.data.dataset import Dataset, Splits, split_off_test
from gramian.train.data.images import read_images

SYSTEM_FILES = ("thumbs.db", "desktop.ini")  # hidden, where they come from


def read_folder(folder: Path) -> Splits:
    """train/<class>/… with test/<class>/…, or <class>/… of which a fixed fifth is the test set."""
    entries = {path.name: path for path in _visible(folder)}
    if "train" not in entries:
        if "test" in entries:
            raise DataError(f"{folder} has test/ but no train/: add it, or name it by its class")
        return split_off_test(_read_classes(folder, _classes(folder)))
    unknown = sorted(set(entries) - {"train", "test"})
    if unknown:
        raise DataError(
            f"{folder} may hold only train/ and test/, but it also holds {', '.join(unknown)}"
        )
    names = _classes(entries["train"])
    train = _read_classes(entries["train"], names)
    if "test" not in entries:
        return split_off_test(train)
    strangers = sorted(set(_classes(entries["test"])) - set(names))
    if strangers:
        raise DataError(f"test/ has classes that train/ does not have: {', '.join(strangers)}")
    return Splits(train, _read_classes(entries["test"], names))


def files_below(folder: Path, depth: int = 2) -> list[Path]:
    """All files of a folder and of those in it, as deep as train/<class>/, without hidden ones."""
    files: list[Path] = []
    for path in _visible(folder):
        if not path.is_dir():
            files.append(path)
        elif depth:
            files += files_below(path, depth - 1)
        else:
            raise DataError(
                f"{path} is a folder in a folder in a folder: name the folders one by one"
            )
    return files


def _visible(folder: Path) -> list[Path]:
    """What lies in a folder, without hidden files, in a fixed order."""
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder")
    found = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in found if path.name.lower() not in SYSTEM_FILES)


def _classes(folder: Path) -> tuple[str, ...]:
    """Names of the class folders."""
    entries = _visible(folder)
    loose = [path for path in entries if not path.is_dir()]
    if loose:
        raise DataError(
            f"{folder} must hold one folder for each class, but {loose[0].name} is a file: move "
            "it into the folder of its class, or remove it"
        )
    if len(entries) < 2:
        raise DataError(
            f"{folder} must hold one folder for each of two classes or more, got {len(entries)}"
        )
    return in_order(path.name for path in entries)


def _read_classes(folder: Path, names: tuple[str, ...]) -> Dataset:
    """All images of the class folders that are there, class after class."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        found = _images(folder / name) if (folder / name).exists() else []
        paths += found
        labels += [number] * len(found)
    return Dataset(read_images(paths), torch.tensor(labels), names)


def _images(folder: Path) -> list[Path]:
    """The image files of one class, of which there must be some."""
    paths = _visible(folder)
    for path in paths:
        if path.is_dir():
            raise DataError(f"the class folder {folder} holds another folder, {path.name}")
        if path.suffix.lower() not in SUFFIXES:
            known = " ".join(SUFFIXES)
            raise DataError(f"{path} is not an image ({known}): remove it, or hide it with a dot")
    if not paths:
        raise DataError(f"the class folder {folder} holds no images")
    return paths
